"""What a hostile cell is, and what may become of it. The cells are in ``hostile_to_process`` and
``hostile_to_python``."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

ANYTHING = "*"


class Ending(StrEnum):
    LIVES = "LIVES"
    """The cell ends by itself; the next one finds its state."""
    FORGETS = "FORGETS"
    """As LIVES, but the cell has thrown its own variables away."""
    BREAKS = "BREAKS"
    """It has broken IPython under its own session, whose next cells say so or cannot be right; a
    restart mends it."""
    DIES = "DIES"
    """Its process ends, and the state with it."""
    STOPS = "STOPS"
    """It has to be interrupted; the next one finds its state."""
    KILLED = "KILLED"
    """It does not let itself be interrupted, and is ended with its state."""
    ANY = "ANY"


class HostileCell(NamedTuple):
    code: str
    ending: Ending
    raises: str | None = None
    """The name of the error it must report; None: it is a success; ANYTHING: versions differ."""


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
