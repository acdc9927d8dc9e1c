"""What if? The same brains in a fake world: a seed rules its time, network, disks and clocks."""
