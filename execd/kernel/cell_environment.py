"""The environment of one cell: variables that hold for the cell, and are undone after the cell.

``set_up`` and ``undo`` run while the worker owns the signal handlers (``cell_signals``): neither an
interrupt nor a handler of user code stops them halfway.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import time

# Bound at import, in the zygote: a cell may assign another object to os.environ. This object also
# sets the variables of the C library, which child processes inherit.
_environ = os.environ
_tzset = time.tzset


class CellEnvironment:
    """Sets variables for a cell, and knows the values before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set_up(self, env: dict[str, str]) -> None:
        """Set the variables of the cell that begins."""
        assert not self._before, "the cell before was not undone"
        for name, value in env.items():
            self._before[name] = _environ.get(name)
            _environ[name] = value
        if "TZ" in env:
            _tzset()

    def undo(self) -> None:
        """Give each variable of ``set_up`` the value before, whatever the cell did to the variable.

        Other variables that the cell changed stay changed, as variables of Python do.
        """
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is not None:
                _environ[name] = value
                continue
            try:
                del _environ[name]
            except KeyError:
                pass  # the cell has deleted the variable
        if "TZ" in before:
            _tzset()
