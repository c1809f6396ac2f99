"""The readers: programs as users write them, with the libraries that users take.

A reader gets sources and returns the events of each, as ``{"sequence", "event", "fields"}``. A line
that cannot be understood is an exception: a reader that skips such a line would hide a loss.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import httpx
import httpx_sse
import pytest
import requests

from tests.readers.generated import NDJSON, SSE

if TYPE_CHECKING:
    from collections.abc import Iterable

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
SECONDS = 300.0
BETWEEN_STREAMS = b"\x04"
"""Ends each stream of curl's output: JSON has no raw control character."""

Events = list[dict[str, Any]]


class Source(NamedTuple):
    url: str
    accept: str


def events_of(lines: Iterable[str], accept: str) -> Events:
    """Put events together from lines, however a library has split the lines."""
    found: Events = []
    event: dict[str, Any] = {}
    for line in lines:
        if accept == NDJSON:
            if line:
                fields = json.loads(line)
                sequence, kind = fields.pop("sequence"), fields.pop("event")
                found.append({"sequence": sequence, "event": kind, "fields": fields})
        elif line.startswith("id: "):
            event["sequence"] = int(line.removeprefix("id: "))
        elif line.startswith("event: "):
            event["event"] = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event["fields"] = json.loads(line.removeprefix("data: "))
        elif not line and event:
            found.append(event)
            event = {}
        else:
            assert not line or line.startswith(":"), f"a torn line: {line!r}"
    assert not event, f"an event without an end: {event}"
    return found


def read_with_httpx(sources: list[Source]) -> list[Events]:
    found = []
    with httpx.Client(timeout=SECONDS) as client:
        for url, accept in sources:
            with client.stream("GET", url, headers={"Accept": accept}) as response:
                found.append(events_of(response.iter_lines(), accept))
    return found


def read_with_httpx_sse(sources: list[Source]) -> list[Events]:
    found = []
    with httpx.Client(timeout=SECONDS) as client:
        for url, _ in sources:
            with httpx_sse.connect_sse(client, "GET", url) as source:
                found.append(
                    [
                        {"sequence": int(event.id), "event": event.event, "fields": event.json()}
                        for event in source.iter_sse()
                    ]
                )
    return found


def read_with_requests(sources: list[Source]) -> list[Events]:
    found = []
    with requests.Session() as session:
        for url, accept in sources:
            with session.get(url, headers={"Accept": accept}, stream=True) as response:
                lines = response.iter_lines()
                found.append(events_of((line.decode() for line in lines), accept))
    return found


def read_with_requests_as_text(sources: list[Source]) -> list[Events]:
    found = []
    with requests.Session() as session:
        for url, accept in sources:
            with session.get(url, headers={"Accept": accept}, stream=True) as response:
                # requests knows no encoding for application/x-ndjson, and would give bytes.
                response.encoding = response.encoding or "utf-8"
                found.append(events_of(response.iter_lines(decode_unicode=True), accept))
    return found


def read_with_aiohttp(sources: list[Source]) -> list[Events]:
    return asyncio.run(_read_with_aiohttp(sources))


async def _read_with_aiohttp(sources: list[Source]) -> list[Events]:
    found = []
    # aiohttp refuses a line over twice this size.
    async with aiohttp.ClientSession(read_bufsize=1 << 24) as session:
        for url, accept in sources:
            async with session.get(url, headers={"Accept": accept}) as response:
                lines = [line.decode().rstrip("\r\n") async for line in response.content]
                found.append(events_of(lines, accept))
    return found


def read_with_curl(sources: list[Source]) -> list[Events]:
    if not shutil.which("curl"):
        pytest.skip("no curl on this machine")
    requests_ = [
        f'url = "{url}"\nheader = "Accept: {accept}"\nno-buffer\nsilent\nshow-error\nfail\n'
        f'write-out = "{BETWEEN_STREAMS.decode()}"\n'
        for url, accept in sources
    ]
    shown = _output_of(["curl", "--disable", "--config", "-"], "next\n".join(requests_))
    *streams, rest = shown.split(BETWEEN_STREAMS)
    assert not rest
    # As a script reads the output: `for line in output.splitlines()`.
    return [
        events_of(stream.decode().splitlines(), accept)
        for stream, (_, accept) in zip(streams, sources, strict=True)
    ]


def read_with_node_fetch(sources: list[Source]) -> list[Events]:
    return _read_with_node("fetch", sources)


def read_with_eventsource_parser(sources: list[Source]) -> list[Events]:
    return _read_with_node("eventsource-parser", [Source(url, SSE) for url, _ in sources])


def _read_with_node(how: str, sources: list[Source]) -> list[Events]:
    program = _node_program()
    shown = _output_of(
        ["node", str(program), how], json.dumps([source._asdict() for source in sources])
    )
    return [json.loads(line) for line in shown.split(b"\n")[:-1]]


def _node_program() -> Path:
    """The program beside its package, which npm installs on first use, as package-lock.json says.
    An installation left half-made is made anew."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node and npm on this machine")
    folder = REPOSITORY / ".cache" / "readers"
    lock = (HERE / "package-lock.json").read_text()
    installed = folder / "installed"
    if not installed.exists() or installed.read_text() != lock:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, folder)
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--silent"], cwd=folder, check=True, timeout=SECONDS
        )
        installed.write_text(lock)
    return Path(shutil.copy(HERE / "read.mjs", folder))


def _output_of(command: list[str], given: str) -> bytes:
    ended = subprocess.run(
        command, input=given.encode(), capture_output=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    return ended.stdout


READERS = {
    "httpx": read_with_httpx,
    "httpx-sse": read_with_httpx_sse,
    "requests": read_with_requests,
    "requests, text": read_with_requests_as_text,
    "aiohttp": read_with_aiohttp,
    "curl": read_with_curl,
    "Node's fetch": read_with_node_fetch,
    "eventsource-parser": read_with_eventsource_parser,
}
