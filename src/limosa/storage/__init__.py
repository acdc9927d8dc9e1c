"""Where do rows live? On a node's volumes: a write-ahead log, and immutable segments."""
