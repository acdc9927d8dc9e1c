"""What are rows? Schemas, batches, their order, digests, and how versions of a row merge."""
