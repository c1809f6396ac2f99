"""Changes below a directory, told as they happen."""
