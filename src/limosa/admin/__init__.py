"""What do operators see? The state of the cluster, and an HTTP service to query and change it."""
