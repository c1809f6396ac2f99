"""The arithmetic behind the published figures."""
