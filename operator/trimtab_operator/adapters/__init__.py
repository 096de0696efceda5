"""The operator's doors to Redis, S3 and Kubernetes; foreign exceptions end here."""
