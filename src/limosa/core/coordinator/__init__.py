"""What should happen next? The coordinator compares what is agreed with what nodes report."""
