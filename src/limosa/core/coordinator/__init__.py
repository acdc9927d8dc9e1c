"""What should happen next? The coordinator compares the agreed state with nodes' statuses."""
