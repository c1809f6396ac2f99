"""The warden: the process that is the parent of all user code. Standard library only."""
