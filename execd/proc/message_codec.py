"""The bytes of the warden's protocol. Pure; standard library only; imported by the daemon and the
warden.

A message is a SEQPACKET datagram: a header (form, number of descriptors), then the payload. Most
payloads are a JSON array of the type's name and the fields. Each command has a Spawn and an Exited,
so these two have payloads of fixed fields (``packed_messages``).

A datagram ends at about 213 kB, so a message over 64 KiB travels in a memfd: the datagram is the
header and the message's tag, and the memfd is the first descriptor. The header states the number of
descriptors because gVisor drops descriptors silently when the receiver has no room: a mismatch
fails the request instead of a start with the wrong files.

Neither side trusts the other side's bytes: ``decode`` returns a valid message or raises
ProtocolError, and raises nothing else.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, get_args

from execd.proc import packed_messages
from execd.proc.messages import Exited, ProtocolError, Reply, Request, Spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.messages import Message

INLINE, IN_MEMFD = 0, 1
HEADER_BYTES = 2
MAX_INLINE_BYTES = 64 * 1024
# argv and environment together cannot exceed a quarter of the stack limit, 2 MiB, at exec
# (execve(2)). JSON may double the size.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_DESCRIPTORS = 8
assert MAX_DESCRIPTORS < 256, "the header has a byte for the number"


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**64


def _is_number(value: object) -> bool:
    # JSON has no infinity, but 1e999 decodes to infinity. No float holds every larger integer.
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) <= 2**53


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(check, value))


_is_ints = _is_list_of(_is_int)


_CHECKS: dict[object, Callable[[object], bool]] = {
    int: _is_int,
    float: _is_number,
    bool: lambda value: type(value) is bool,
    str: _is_str,
    list[str]: _is_list_of(_is_str),
    list[int]: _is_ints,
}

_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in (*get_args(Request), *get_args(Reply))}
assert len(_TYPES) == len(get_args(Request)) + len(get_args(Reply)), "two types share a name"
_FIELD_CHECKS = {
    name: [_CHECKS[cls.__annotations__[field]] for field in cls._fields]
    for name, cls in _TYPES.items()
    if cls is not Spawn
}


def _refuse(constant: str) -> float:
    raise ValueError(constant)


# Created once: json.dumps and json.loads create a new coder at each call with non-default options.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder(parse_constant=_refuse).decode


def encode(message: Message) -> bytes:
    """Return the message's payload, without the header. Raises ValueError for a Spawn with a number
    that no system call takes."""
    assert type(message).__name__ in _TYPES
    if isinstance(message, Spawn):
        return packed_messages.pack_spawn(message)
    if isinstance(message, Exited) and (packed := packed_messages.pack_exited(message)):
        return packed
    return _to_json([type(message).__name__, *message]).encode()


def header(*, in_memfd: bool, n_descriptors: int) -> bytes:
    """Return the header of a datagram."""
    assert 0 <= n_descriptors <= MAX_DESCRIPTORS
    return bytes((IN_MEMFD if in_memfd else INLINE, n_descriptors))


def encode_tag(message: Message) -> bytes:
    """Return the tag that the receiver answers if the memfd is lost; 0: a message without a tag."""
    return b"%d" % getattr(message, "tag", 0)


def decode_tag(text: bytes) -> int:
    """Return the tag. Raises ProtocolError."""
    if not text.isdigit() or len(text) > 20:
        raise ProtocolError("not a tag")
    return int(text)


def split(datagram: bytes) -> tuple[bool, int, bytes]:
    """Return whether the payload is in a memfd, the number of descriptors, and the payload.

    With a memfd the third value is the tag instead of the payload. Raises ProtocolError.
    """
    if len(datagram) < HEADER_BYTES:
        raise ProtocolError("a datagram without a header")
    form, n_descriptors = datagram[0], datagram[1]
    payload = datagram[HEADER_BYTES:]
    if (
        form not in (INLINE, IN_MEMFD)
        or n_descriptors > MAX_DESCRIPTORS
        or (form == IN_MEMFD and not n_descriptors)
    ):
        raise ProtocolError("a malformed header")
    return form == IN_MEMFD, n_descriptors, payload


def decode(payload: bytes) -> Message:
    """Return the message. Raises ProtocolError for all bytes that ``encode`` does not produce."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolError("a message over the size limit")
    if (kind := payload[:1]) == packed_messages.EXITED:
        return packed_messages.unpack_exited(payload)
    if kind == packed_messages.SPAWN:
        return packed_messages.unpack_spawn(payload)
    try:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors; deep nesting is a RecursionError.
        parts = _from_json(payload.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if (
        type(parts) is not list
        or not parts
        or type(parts[0]) is not str
        or parts[0] not in _FIELD_CHECKS
    ):
        raise ProtocolError("an unknown message")
    name, *fields = parts
    checks = _FIELD_CHECKS[name]
    if len(fields) != len(checks) or not all(
        check(field) for check, field in zip(checks, fields, strict=True)
    ):
        raise ProtocolError(f"{name}: malformed fields")
    message: Message = _TYPES[name](*fields)
    return message
