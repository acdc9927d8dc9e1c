"""What should change? Plans are values; nothing here acts."""
