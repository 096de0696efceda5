"""A real one-node Kubernetes with Redis and S3 on this machine, for the demo and the tests."""
