"""What do operators see? The cluster at a look, and an HTTP service to ask and to change it."""
