"""What do operators type? A module or package for each command, found under its name."""
