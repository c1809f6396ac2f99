"""A model of the whole daemon, over HTTP: docs/testing.md says how to run the model for longer."""
