"""The output of executions: kept in memory and on disk, and read while the program writes."""
