"""What do processes say to each other? Messages as bytes, statuses, scans, slices and links."""
