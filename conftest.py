"""The tests of execd and of its wings have the same guards and options."""

from __future__ import annotations

import pytest

# Helpers assert as well; a failure must show the values. Before these modules are imported.
pytest.register_assert_rewrite(
    *(f"tests.{name}" for name in ("api", "conformance", "difference", "engine", "model", "proc")),
    "tests.readers",
)
pytest_plugins = ["tests.guards", "tests.drawn", "tests.timed"]
