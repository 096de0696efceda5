"""The only modules of the trainer that speak to S3 and Redis; foreign errors end here."""
