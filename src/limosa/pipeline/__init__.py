"""How is bulk data copied? By tasks, on Spark, that pipe Arrow batches from node to node."""
