"""The dialect of execd's own: ``/v1``."""
