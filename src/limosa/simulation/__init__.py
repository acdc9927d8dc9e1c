"""What if? The real core in a simulated world: a seed decides time, network, disks and clocks."""
