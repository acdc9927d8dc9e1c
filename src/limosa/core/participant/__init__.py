"""What does a node do now? `handle(now, event) → effects`, in a node as in the simulator."""
