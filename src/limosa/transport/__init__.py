"""How do processes communicate? By Arrow Flight: each process has one port for all traffic."""
