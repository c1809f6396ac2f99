"""Watches: changes below a directory, reported as they happen."""
