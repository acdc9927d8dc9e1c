"""What may change? Each machine is a table; rules over neighbouring stages refuse unsafe ones."""
