"""The command line's ways to the outside: the Kubernetes API server, S3, and other programs."""
