"""A long mixed load, and the slopes of what must not grow."""
