"""What does `limosa read` consist of? The command, and its conditions."""
