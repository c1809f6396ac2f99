"""What all dialects share of HTTP: requests in, replies out."""
