"""Paths and bytes: knows a root directory, never a request, an event loop or HTTP."""
