"""Reading streams as a client does: the event stream of the HTML standard, from bytes in any pieces, and a connection that carries one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .conftest import DEADLINE_SECONDS, request_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .conftest import Connection


class Event(NamedTuple):
    id: str
    kind: str
    data: str

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.data)


@dataclass
class EventStreamParser:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation."""

    comments: int = 0
    last_event_id: str = ""
    _rest: bytes = b""
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now. A line may end with CR, LF or both; a CR at the very end may be half of one."""
        events = []
        self._rest += data
        while True:
            ends = [at for at in (self._rest.find(b"\n"), self._rest.find(b"\r")) if at >= 0]
            if not ends or (self._rest[min(ends)] == 13 and min(ends) + 1 == len(self._rest)):
                return events
            line, rest = self._rest[: min(ends)], self._rest[min(ends) :]
            self._rest = rest[2:] if rest.startswith(b"\r\n") else rest[1:]
            event = self._line(line.decode())
            if event is not None:
                events.append(event)

    def _line(self, line: str) -> Event | None:
        if not line:
            kind, data = self._kind or "message", self._data
            self._kind, self._data = "", []
            return Event(self.last_event_id, kind, "\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                self.comments += 1
            case "id" if "\0" not in value:
                self.last_event_id = value
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
        return None


@dataclass
class Streaming:
    """An answer whose body is an event stream, on a connection that has sent its request."""

    connection: Connection
    http_status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """The last chunk has come: the server ended it, nobody cut it."""
    parser: EventStreamParser = field(default_factory=EventStreamParser)

    async def open(self) -> Streaming:
        async with asyncio.timeout(DEADLINE_SECONDS):
            line, *lines = (await self.connection.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        self.http_status = int(line.split()[1])
        self.headers = dict(line.split(": ", 1) for line in lines)
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        reader = self.connection.reader
        try:
            while size := int(await reader.readline() or b"0", 16):
                yield await reader.readexactly(size)
                await reader.readline()
            self.is_whole = await reader.readline() == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for chunk in self.chunks():
            for event in self.parser.feed(chunk):
                yield event

    async def rest(self) -> list[Event]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return [event async for event in self]


async def stream(connection: Connection, method: str, target: str, body: bytes = b"", **headers: str) -> Streaming:
    named = {"Accept": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    await connection.send(request_bytes(method, target, body, named))
    return await Streaming(connection).open()


def text_of(events: list[Event], kind: str = "stdout") -> str:
    return "".join(event.fields["text"] for event in events if event.kind == kind)
