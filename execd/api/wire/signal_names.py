"""Signals by name, as people and kill(1) write them: SIGINT, INT, SIGRTMIN+3, 2. Pure."""

from __future__ import annotations

import re
import signal

from execd.errors import InvalidArgument

# Not all of this range is in the enum of every platform; the two below SIGRTMIN are the C library's
# own.
FIRST_REALTIME, LAST_REALTIME = signal.SIGRTMIN, signal.SIGRTMAX


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; numbers without a name of their own in terms of SIGRTMIN."""
    try:
        return signal.Signals(number).name
    except ValueError:
        offset = number - FIRST_REALTIME
        return f"SIGRTMIN{offset:+d}"


def signal_number(name: str | int) -> int:
    """Raises InvalidArgument, which names the field ``signal``."""
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
