"""Damaged input: docs/testing.md says how to fuzz for longer."""
