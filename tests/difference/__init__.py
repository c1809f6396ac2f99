"""The five python-runtime routes of execd beside an upstream-style server."""
