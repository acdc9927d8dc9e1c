"""What must be true when a simulated run has ended?"""
