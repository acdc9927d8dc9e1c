"""What must be true of a finished run?"""
