"""Paths and bytes below a root directory, without requests, event loop or HTTP."""
