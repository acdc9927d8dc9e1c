"""What is decided, nothing else: values in, values out. No clock, dice, thread, socket or file."""
