"""What does `limosa demo` consist of? The command, a script, a ledger of rows, and a screen."""
