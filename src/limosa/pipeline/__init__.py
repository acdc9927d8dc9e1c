"""How do the bytes move? In tasks that pipe Arrow batches from one node to another, on Spark."""
