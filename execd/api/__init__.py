"""The wire: HTTP requests in, engine calls, HTTP replies out. Dialects never import each other."""
