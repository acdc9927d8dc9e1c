"""Who runs it? One driver for each brain, and what a process needs around it."""
