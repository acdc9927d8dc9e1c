"""Where do rows and records live?"""
