"""What a restart of the daemon finds again: the state dir and the journal."""
