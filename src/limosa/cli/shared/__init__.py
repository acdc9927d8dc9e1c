"""What do several commands share? Options, output for terminals, files of rows, progress."""
