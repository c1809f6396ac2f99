"""Processes: the warden (another process), its client in the daemon, and the pure parts they share."""
