"""Python sessions: the half in the user's interpreter (zygote, worker and what they import) and the daemon's half."""
