"""The output of executions: bytes kept in memory and on disk, and read while they are written."""
