"""What does `limosa up` consist of? The command, and the supervisor of its processes."""
