"""The state of a daemon on disk: the state dir, the spools and the journal."""
