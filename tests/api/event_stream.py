"""An event stream as a client reads the stream, on the connection of the request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.api.conftest import DEADLINE_SECONDS, request_bytes
from tests.event_stream import Event, EventStreamParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.api.conftest import Connection


@dataclass
class Streaming:
    """An answer with an event stream as the body. The connection has sent the request."""

    connection: Connection
    http_status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """True after the last chunk: the server ended the stream, and nobody cut the stream."""
    parser: EventStreamParser = field(default_factory=EventStreamParser)

    async def open(self) -> Streaming:
        async with asyncio.timeout(DEADLINE_SECONDS):
            line, *lines = (
                (await self.connection.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            )
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


async def stream(
    connection: Connection, method: str, target: str, body: bytes = b"", **headers: str
) -> Streaming:
    named = {"Accept": "text/event-stream"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    await connection.send(request_bytes(method, target, body, named))
    return await Streaming(connection).open()
