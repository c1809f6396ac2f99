"""The HTTP side: requests in, engine calls, replies out. Dialects never import each other."""
