"""What execd can do, whoever asks: executions, sessions, files. Importing this package loads none
of it."""
