"""What do operators see? Read models of the agreed state and of nodes' statuses; no decisions."""
