"""What does `limosa write` consist of? The command, and the conversion of columns."""
