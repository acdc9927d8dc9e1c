"""Who carries decisions out? A driver for each state machine, and the process around it."""
