"""The warden: the parent process of all user code. Standard library only."""
