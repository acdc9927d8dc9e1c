"""What does a node do now? `handle(now, event) → effects`: the same code in a node and in the simulator."""
