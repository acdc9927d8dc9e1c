"""What exists? The records that the whole cluster agrees on, and how they change."""
