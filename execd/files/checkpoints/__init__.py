"""Checkpoints of directories: what was there, what has changed since, and the way back."""
