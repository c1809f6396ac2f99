"""The HTTP parts that all dialects share: requests in, replies out."""
