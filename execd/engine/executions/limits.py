"""Limits of executions: the daemon's own limits, and the smaller of two limits.

``model.Limits`` has the fields. ``proc/rlimits.py`` sets the limits of each process at the spawn;
the warden's supervisor watches the limits of the whole tree. Add a limit to ``own_limits``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument
from execd.model import Limits
from execd.proc.rlimits import DEFAULT_OPEN_FILES, open_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.config import Config

NO_LIMITS = Limits()
LIMIT_NAMES = tuple(name for name in Limits.__struct_fields__ if name != "core_bytes")
"""The limits that callers may set."""


@functools.cache
def own_limits(config: Config) -> Limits:
    """The daemon's own limits, which bound every command."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        address_space_bytes=config.address_space_bytes,
        file_size_bytes=config.file_size_bytes,
        open_files=config.open_files or DEFAULT_OPEN_FILES,
        processes=config.processes,
        memory_bytes=config.memory_bytes,
        reply_bytes=config.reply_bytes,
        log_bytes=config.log_bytes,
    )


@functools.lru_cache(maxsize=64)
def limits_as_applied(limits: Limits) -> Mapping[str, int | None]:
    """Return the limits that callers may set, by name, as they hold for each process."""
    applied = {name: getattr(limits, name) for name in LIMIT_NAMES}
    return {**applied, "open_files": open_files(limits)}


def narrower(asked: Limits, own: Limits) -> Limits:
    """Each limit the smaller of the two; None is no limit."""
    if asked == NO_LIMITS:
        return own
    narrowed = {}
    for name in Limits.__struct_fields__:
        values = [
            value for value in (getattr(asked, name), getattr(own, name)) if value is not None
        ]
        if values:
            narrowed[name] = min(values)
    return Limits(**narrowed)


def least(asked: float, own: float, field: str) -> float:
    """Return the smaller limit; inf asks for none. Raises InvalidArgument for a number that is no
    duration."""
    if not asked > 0:  # NaN is not above 0 either
        raise InvalidArgument(f"{field}: must be a positive number of seconds", field=field)
    return min(asked, own)
