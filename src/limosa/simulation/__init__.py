"""What if? The same brains in a fake world, whose time, network, disks and clocks are ruled by a seed."""
