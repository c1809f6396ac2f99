"""What a plan asks of the program around it.

A plan is a generator that holds all decisions of an operation: what to send, when to repeat, where
to resume. A plan yields effects and receives their results; ``drive_blocking`` and ``drive_async``
carry out the effects. So the blocking and the async client share every decision, and a test can
play the other side of a plan without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Plan: TypeAlias = Generator[Any, Any, T]
"""A generator of effects that returns a T."""

SILENCE_SECONDS = 25.0
"""A request without an answer for this time is cut and repeated: routers give up after 30 s, and a
dead connection tells nobody."""


@dataclass(frozen=True)
class Request:
    """A request below the base URL."""

    method: str
    path: str
    """Percent-encoded, with the query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    source: Callable[[], Iterator[bytes]] | None = None
    """Instead of ``content``: makes the body anew for each attempt."""
    on_sent: Callable[[int], None] | None = None
    """Called with the size of each piece of ``source`` that was sent."""
    silence_seconds: float = SILENCE_SECONDS
    body_seconds: float | None = None
    """The body of an ``Open`` is cut after this time, however lively the body is."""

    def with_headers(self, **headers: str) -> Request:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **named})


@dataclass(frozen=True)
class Reply:
    http_status: int
    headers: Mapping[str, str]
    """The names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Send:
    """Send a request, and receive the whole ``Reply``."""

    request: Request


@dataclass(frozen=True)
class Open:
    """Send a request, and receive an ``Opened``, or a ``Reply`` if the status is not 2xx."""

    request: Request


@dataclass(frozen=True)
class Opened:
    """A reply whose body is still to come. The driver closes the body when the plan ends."""

    http_status: int
    headers: Mapping[str, str]
    number: int
    """The driver's name for the body."""


@dataclass(frozen=True)
class NextEvent:
    """Receive the next server-sent event as (event, id, data), or None at the end."""

    opened: Opened


@dataclass(frozen=True)
class NextChunk:
    """Receive the next bytes of the body, or None at the end."""

    opened: Opened


@dataclass(frozen=True)
class Close:
    opened: Opened


@dataclass(frozen=True)
class Sleep:
    seconds: float


class Local:
    """Call a function that may block, for example on a local file, and receive its result."""

    __match_args__ = ("call",)

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = partial(function, *arguments)


@dataclass(frozen=True)
class Emit:
    """Give a value to the caller, who iterates over the plan's values."""

    value: Any


class Cut(Exception):
    """The connection failed. The driver throws a Cut into the plan."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """Whether execd may have the request."""
