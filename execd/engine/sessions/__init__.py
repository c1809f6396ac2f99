"""Python sessions: the daemon's half. The half in the user's interpreter is ``execd.kernel``."""
