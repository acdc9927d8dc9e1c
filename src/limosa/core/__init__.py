"""What is decided? Values in, values out; no clock, dice, threads, sockets or files."""
