"""What may change? Each machine is a table; a rule over neighbouring stages refuses an unsafe one."""
