"""Executions, sessions and files, the same for all dialects. An import of this package loads no
module of the package."""
