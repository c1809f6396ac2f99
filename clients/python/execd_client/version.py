"""The version of the client. ``pyproject.toml`` reads this file."""

__version__ = "0.1.0"
