"""Processes: the warden's client in the daemon, and what the daemon and the warden share."""
