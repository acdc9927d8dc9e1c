"""How do processes talk? Arrow Flight: one port a process, for calls, streams and bulk data."""
