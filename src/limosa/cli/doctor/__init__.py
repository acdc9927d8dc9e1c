"""What does `limosa doctor` consist of? The command, and its checks."""
