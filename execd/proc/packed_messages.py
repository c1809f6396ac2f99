"""Spawn and Exited as bytes of fixed fields. Pure; standard library only; used by
``message_codec``.

Each of the two begins with a byte of its own, and no JSON array begins with either. Numbers have
this machine's byte order. After the fixed fields of a Spawn come the limits, the descriptors, the
groups, the marker and the program, and the fixed fields tell their numbers and sizes.
"""

from __future__ import annotations

import os
import struct
from math import isfinite

from execd.proc.messages import Exited, ProtocolError, Spawn
from execd.proc.program_block import FILE_SYSTEM_CODEC

SPAWN, EXITED = b"\x01", b"\x02"

KEEP = 2**32 - 1
"""In the place of a user or group id: None."""
_TERMINAL, _IS_IDLE, _ANNOUNCE = 1, 2, 4
_KNOWN_FLAGS = _TERMINAL | _IS_IDLE | _ANNOUNCE

_SPAWN = struct.Struct("=cBBBiIIHIQQQ")
"""Kind, flags, numbers of limits, of descriptors and of groups (-1: None), uid, gid, sizes of the
marker and of the program, tag, processes, memory."""
_LIMIT_FIELDS = "iQQ"
_LIMIT = struct.Struct(f"={_LIMIT_FIELDS}")
_EXITED = struct.Struct("=cQqddqddQQQd?")
"""Kind, and the fields in the order of the message."""


def pack_spawn(message: Spawn) -> bytes:
    """Return the payload. Raises ValueError for a number out of its range."""
    uid, gid, groups = message.uid, message.gid, message.groups
    stdio, limits = message.stdio, message.limits
    n_limits, n_stdio, n_groups = len(limits), len(stdio), len(groups or ())
    text = message.marker.encode(*FILE_SYSTEM_CODEC)
    flags = (
        (_TERMINAL if message.terminal else 0)
        | (_IS_IDLE if message.is_idle else 0)
        | (_ANNOUNCE if message.announce else 0)
    )
    try:
        return b"".join(
            (
                _SPAWN.pack(
                    SPAWN,
                    flags,
                    n_limits,
                    n_stdio,
                    -1 if groups is None else n_groups,
                    KEEP if uid is None else _id(uid),
                    KEEP if gid is None else _id(gid),
                    len(text),
                    len(message.program),
                    message.tag,
                    message.processes,
                    message.memory_bytes,
                ),
                struct.pack(
                    f"={_LIMIT_FIELDS * n_limits}{n_stdio}i{n_groups}I",
                    *[number for limit in limits for number in limit],
                    *stdio,
                    *map(_id, groups or ()),
                ),
                text,
                message.program,
            )
        )
    except struct.error as error:
        raise ValueError(f"a number that no system call takes: {error}") from None


def _id(number: int) -> int:
    """Raises ValueError: the largest number stands for "keep", and larger numbers may be cut, to
    the id of root."""
    if not 0 <= number < KEEP:
        raise ValueError(f"{number} is not a user or group id")
    return number


def unpack_spawn(payload: bytes) -> Spawn:
    """Raises ProtocolError. The program is checked where it is used, in ``_spawn.c``."""
    try:
        _, flags, n_limits, n_stdio, n_groups, uid, gid, marker_bytes, program_bytes, *numbers = (
            _SPAWN.unpack_from(payload)
        )
        at = _SPAWN.size + n_limits * _LIMIT.size
        limits = list(map(list, _LIMIT.iter_unpack(payload[_SPAWN.size : at])))
        # ``struct.unpack_from`` caches compiled formats, so a format for each message is cheap.
        rest = f"={n_stdio}i{max(0, n_groups)}I"
        stdio_and_groups = struct.unpack_from(rest, payload, at)
    except struct.error:
        raise ProtocolError("Spawn: malformed fields") from None
    at += 4 * len(stdio_and_groups)
    program_at = at + marker_bytes
    if flags & ~_KNOWN_FLAGS or n_groups < -1 or len(payload) != program_at + program_bytes:
        raise ProtocolError("Spawn: malformed fields")
    groups = stdio_and_groups[n_stdio:]
    if KEEP in groups:
        raise ProtocolError("Spawn: malformed fields")
    tag, processes, memory_bytes = numbers
    return Spawn(
        tag,
        payload[program_at:],
        [*stdio_and_groups[:n_stdio]],
        flags & _TERMINAL != 0,
        limits,
        processes,
        os.fsdecode(payload[at:program_at]),
        None if uid == KEEP else uid,
        None if gid == KEEP else gid,
        None if n_groups < 0 else [*groups],
        memory_bytes,
        flags & _IS_IDLE != 0,
        flags & _ANNOUNCE != 0,
    )


def pack_exited(message: Exited) -> bytes:
    """Return the payload, or no bytes if a number does not fit: then JSON carries the message."""
    try:
        return _EXITED.pack(EXITED, *message)
    except struct.error:
        return b""


def unpack_exited(payload: bytes) -> Exited:
    """Raises ProtocolError."""
    try:
        message = Exited(*_EXITED.unpack(payload)[1:])
    except struct.error:
        raise ProtocolError("Exited: malformed fields") from None
    if not all(map(isfinite, message)):
        raise ProtocolError("Exited: malformed fields")
    return message
