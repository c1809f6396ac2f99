"""Frames between the daemon and its zygote and workers: bytes and fields. Pure; both sides use this
module.

A frame is a length of four bytes, big-endian, and a JSON object in UTF-8 with a "type". In Python a
frame is a plain dict: mime bundles and variables are JSON anyway, and the user's interpreter may be
any Python from 3.9 on.

Neither side trusts the bytes of its peer. A malformed frame, or a frame of the wrong direction,
raises FrameError, and the stream cannot be read further. The daemon then ends the worker; a worker
ends itself.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FRAME_BYTES = 32 * 1024 * 1024
"""Longest payload of a frame, in bytes."""
HEADER_BYTES = 4
MAX_BRANCHES = 60
"""Most branches of a fork frame. Each branch takes four descriptors, and the kernel passes at most
253 descriptors with a message (SCM_MAX_FD)."""

assert FRAME_BYTES < 1 << (8 * HEADER_BYTES)
assert 4 * MAX_BRANCHES <= 253


class FrameError(Exception):
    """The peer sent a malformed frame, or a frame is too long to be sent."""


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    # JSON has no infinity, but Python reads 1e999 as infinity.
    return _is_natural(value) or (type(value) is float and math.isfinite(value) and value >= 0)


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_str(value: object) -> bool:
    return type(value) is str


def _list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _is_environment(value: object) -> bool:
    return type(value) is dict and all(map(_is_str, value.values()))


def _is_limit(value: object) -> bool:
    return type(value) is list and len(value) == 3 and all(map(_is_int, value))


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_BRANCHES


_are_strs = _list_of(_is_str)

# One table per direction: type -> field -> check. A field whose name ends in "?" is optional. The
# frames of a worker are in ``engine.sessions.worker_messages``: the daemon does not decode all.
TO_ZYGOTE: dict[str, dict[str, Callable[[object], bool]]] = {
    "fork": {"id": _is_natural},
}
FROM_ZYGOTE: dict[str, dict[str, Callable[[object], bool]]] = {
    # Each is sent once. "began": the interpreter runs (``zygote_process``); ``version`` has three
    # numbers, ``folders`` are those of sys.path. "ready": the zygote can fork. "failed": the zygote
    # cannot fork and ends; for ``cause`` see ``zygote.main``.
    "began": {"version": _list_of(_is_natural), "folders": _are_strs},
    "ready": {
        "python": _is_str,
        "ipython": _is_str,
        "import_seconds": _is_number,
        "warnings": _are_strs,
    },
    "failed": {"cause": _is_str, "message": _is_str},
    "fork_failed": {"id": _is_natural, "message": _is_str},
}
TO_WORKER: dict[str, dict[str, Callable[[object], bool]]] = {
    "configure": {"cwd": _is_str, "env": _is_environment, "limits": _list_of(_is_limit)},
    "execute": {
        "id": _is_natural,
        "code": _is_str,
        "allow_input": _is_bool,
        "store_history": _is_bool,
        "env?": _is_environment,
        "mark?": _is_natural,
    },
    "input": {"id": _is_natural, "text": _is_str},
    "complete": {"id": _is_natural, "code": _is_str, "cursor": _is_natural},
    "variables": {"id": _is_natural, "limit": _is_natural},
    "fork": {"id": _is_natural, "count": _is_count},
    # Run the exit functions, write the buffers of files, reply, and end.
    "end": {"id": _is_natural},
    # The sandbox was restored from a checkpoint, which may be restored again: draw fresh numbers.
    # Without an answer. A zygote needs no such frame: each new worker reseeds.
    "reseed": {},
}


assert not any(
    "type" in fields
    for direction in (TO_ZYGOTE, FROM_ZYGOTE, TO_WORKER)
    for fields in direction.values()
)

# Directions whose lone surrogates stay: they stand for undecodable bytes of paths and of variables
# (surrogateescape). Strings of user code may hold lone surrogates too, and UTF-8 has no bytes for
# them, so those of a zygote are replaced.
_UNCHANGED_DIRECTIONS = (TO_ZYGOTE, TO_WORKER)


def _without_lone_surrogates(value: Any) -> Any:
    if type(value) is str:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if type(value) is list:
        return [_without_lone_surrogates(item) for item in value]
    if type(value) is dict:
        return {
            _without_lone_surrogates(key): _without_lone_surrogates(item)
            for key, item in value.items()
        }
    return value


def _refuse_constant(constant: str) -> float:
    raise ValueError(constant)


# Made once: json.dumps and json.loads make a new coder at each call with options. The output is
# ASCII, because text of user code may hold lone surrogates, and UTF-8 has no bytes for them.
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_from_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


def encode(frame: dict[str, Any]) -> bytes:
    """Return the bytes of a frame.

    Raises FrameError for more than FRAME_BYTES; TypeError, ValueError or RecursionError for values
    without a JSON form.
    """
    return with_header(_to_json(frame).encode())


def with_header(payload: bytes) -> bytes:
    """Put the header before a payload. Raises FrameError for more than FRAME_BYTES."""
    if len(payload) > FRAME_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes")
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Splitter:
    """Splits a byte stream into payloads of frames. Cannot be used after a FrameError."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def missing_bytes(self) -> int:
        """Bytes that the unfinished frame still lacks; 0 while the header is incomplete."""
        if len(self._buffer) < HEADER_BYTES:
            return 0
        return HEADER_BYTES + int.from_bytes(self._buffer[:HEADER_BYTES], "big") - len(self._buffer)

    @property
    def held_bytes(self) -> int:
        """Bytes received of the unfinished frame."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Take bytes and return all payloads that are complete now. Raises FrameError."""
        self._buffer += data
        found = []
        start, end = 0, len(self._buffer)
        while end - start >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[start : start + HEADER_BYTES], "big")
            if length > FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            if end - start - HEADER_BYTES < length:
                break
            start += HEADER_BYTES
            # A slice of the bytearray itself would copy the payload twice.
            with memoryview(self._buffer) as view:
                found.append(bytes(view[start : start + length]))
            start += length
        assert start <= end
        del self._buffer[:start]
        return found


class FrameDecoder:
    """Decodes and checks the frames of one direction. Cannot be used after a FrameError."""

    def __init__(self, direction: dict[str, dict[str, Callable[[object], bool]]]) -> None:
        self._direction = direction
        self._splitter = Splitter()

    def feed(self, data: bytes | memoryview) -> list[dict[str, Any]]:
        """Take bytes and return all frames that are complete now. Raises FrameError."""
        return [self.decode(payload) for payload in self._splitter.feed(data)]

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Decode and check one payload. Raises FrameError."""
        try:
            # UnicodeDecodeError and JSONDecodeError are ValueErrors. An integer with more digits
            # than Python converts raises ValueError, deep nesting RecursionError.
            frame = _from_json(payload.decode())
            if self._direction not in _UNCHANGED_DIRECTIONS and (
                b"\\ud" in payload or b"\\uD" in payload
            ):
                frame = _without_lone_surrogates(frame)
        except (ValueError, RecursionError):
            raise FrameError("not JSON") from None
        if type(frame) is not dict:
            raise FrameError("not an object")
        kind = frame.get("type")
        fields = self._direction.get(kind) if type(kind) is str else None
        if fields is None:
            raise FrameError("an unknown type")
        n_known = 1
        for name, check in fields.items():
            optional = name.endswith("?")
            key = name[:-1] if optional else name
            if key in frame:
                n_known += 1
                if not check(frame[key]):
                    raise FrameError(f"{kind}: {key} is malformed")
            elif not optional:
                raise FrameError(f"{kind}: {key} is missing")
        if n_known != len(frame):
            raise FrameError(f"{kind}: an unknown field")
        return frame
