"""A hostile cell, and the endings a test allows. The cells are in ``hostile_to_process`` and
``hostile_to_python``."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

ANYTHING = "*"


class Ending(StrEnum):
    LIVES = "LIVES"
    """The cell ends by itself; the next cell finds the session's state."""
    FORGETS = "FORGETS"
    """As LIVES, but the cell has deleted the session's variables."""
    BREAKS = "BREAKS"
    """The cell has broken IPython in the session, or has set a trap. Later cells report the damage,
    die, or cannot be right. A restart repairs the session."""
    DIES = "DIES"
    """The cell's process ends, and the state is lost."""
    STOPS = "STOPS"
    """The test has to interrupt the cell; the next cell finds the session's state."""
    KILLED = "KILLED"
    """The cell resists the interrupt; the daemon ends the process, and the state is lost."""
    ANY = "ANY"


class HostileCell(NamedTuple):
    code: str
    ending: Ending
    raises: str | None = None
    """The error name the cell must report. None: success. ANYTHING: versions differ."""
    left: str = ""
    """A word of a process that the cell leaves behind: the next cell waits for its end."""


def lives(code: str, raises: str | None = None) -> HostileCell:
    return HostileCell(code, Ending.LIVES, raises)


def forgets(code: str) -> HostileCell:
    return HostileCell(code, Ending.FORGETS)


def breaks(code: str) -> HostileCell:
    return HostileCell(code, Ending.BREAKS, ANYTHING)


def dies(code: str) -> HostileCell:
    return HostileCell(code, Ending.DIES, ANYTHING)


def stops(code: str) -> HostileCell:
    return HostileCell(code, Ending.STOPS, ANYTHING)


def killed(code: str) -> HostileCell:
    return HostileCell(code, Ending.KILLED, ANYTHING)


def unsure(code: str) -> HostileCell:
    return HostileCell(code, Ending.ANY, ANYTHING)
