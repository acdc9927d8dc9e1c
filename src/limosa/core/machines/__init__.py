"""What may change? Each machine is a table of stages; rules refuse unsafe tables."""
