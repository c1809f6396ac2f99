"""The dialect of execd's own API: ``/v1``."""
