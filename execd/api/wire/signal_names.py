"""Signals by name, as people and kill(1) write them: SIGINT, INT, SIGRTMIN+3, 2. Pure."""

from __future__ import annotations

import re
import signal

from execd.errors import InvalidArgument

# Not every platform has the whole range in its enum. The two numbers below SIGRTMIN belong to the C
# library.
FIRST_REALTIME, LAST_REALTIME = signal.SIGRTMIN, signal.SIGRTMAX


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9. Numbers without a name are given relative to SIGRTMIN."""
    try:
        return signal.Signals(number).name
    except ValueError:
        offset = number - FIRST_REALTIME
        return f"SIGRTMIN{offset:+d}"


def signal_number(name: str | int) -> int:
    """Return the number of a signal. Raises InvalidArgument with the field ``signal``."""
    number = _number(name)
    if number is None or not 1 <= number <= LAST_REALTIME:
        raise InvalidArgument(f"signal: there is no signal {name!r}", field="signal")
    return number


def _number(name: str | int) -> int | None:
    if isinstance(name, int):
        return name
    realtime = re.fullmatch(r"(?:SIG)?RTMIN\+([0-9]{1,2})", name, re.ASCII | re.IGNORECASE)
    if realtime is not None:
        return FIRST_REALTIME + int(realtime[1])
    if re.fullmatch(r"[0-9]{1,2}", name, re.ASCII):
        return int(name)
    upper = name.upper()
    try:
        return signal.Signals[upper if upper.startswith("SIG") else f"SIG{upper}"].value
    except KeyError:
        return None
