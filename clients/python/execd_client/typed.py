"""Typed values of what execd sent, from any thread.

msgspec 0.22 works out the fields of a Struct at the first use of the type, and shows the unfinished
list to other threads: two threads that use a type for the first time at once end the process with
SIGSEGV. So the first use of each type is made under a lock, and completed before any value is read.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_first_use = threading.Lock()


def from_json(body: bytes, kind: type[T]) -> T:
    """Raises msgspec.MsgspecError for a body that is not a ``kind``."""
    decoder: msgspec.json.Decoder[T] = _decoder(kind)
    return decoder.decode(body)


def from_builtins(said: object, kind: type[T]) -> T:
    """Raises msgspec.ValidationError for a value that is not a ``kind``."""
    _decoder(kind)
    return msgspec.convert(said, kind)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        with _first_use:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder
