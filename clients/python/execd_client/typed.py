"""Typed values of what execd sent, from any thread.

msgspec 0.22 works out the fields of a Struct at the first use of the type, and shows the unfinished
list to other threads: two threads that use a type for the first time at once end the process with
SIGSEGV. So the import of the client uses each type once. Not a lock at the first use: a fork by
another thread would leave the lock locked in the child, and a signal handler could wait for the
code that the handler interrupted.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from execd_client import models

T = TypeVar("T")


def from_json(body: bytes, kind: type[T]) -> T:
    """Raises msgspec.MsgspecError for a body that is not a ``kind``."""
    return msgspec.json.decode(body, type=kind)


def from_builtins(said: object, kind: type[T]) -> T:
    """Raises msgspec.ValidationError for a value that is not a ``kind``."""
    return msgspec.convert(said, kind)


def prepare(*kinds: type[msgspec.Struct]) -> None:
    """Use the types for the first time."""
    for kind in kinds:
        msgspec.json.Decoder(kind)


prepare(
    *(
        kind
        for kind in vars(models).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_fields__
    )
)
