"""Streams of executions under bad conditions: broken connections, readers that do not read, holes,
crowds."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import selectors
import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.event_stream import Event, EventStreamParser, text_of

from ..patience import patience
from .contract import RECORDER
from .target import PROGRAMS, READ_SECONDS, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .conftest import Run
    from .target import Target

URL = "/v1/executions"
JSON = {"Content-Type": "application/json"}
SSE = {"Accept": "text/event-stream"}
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket that ends with a reset, as when a client's machine dies."""


class AnswerParser:
    """A chunked answer and the events in the answer, from bytes that may end anywhere."""

    def __init__(self) -> None:
        self.http_status: int | None = None
        self.is_whole = False
        self._parser = EventStreamParser()
        self._rest = b""
        self._left_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        self._rest += data
        if self.http_status is None:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                return []
            assert b"chunked" in head, head
            self.http_status, self._rest = int(head.split()[1]), rest
        content = b""
        while self._rest:
            if self._left_bytes:
                content += self._rest[: self._left_bytes]
                taken = min(len(self._rest), self._left_bytes)
                self._rest, self._left_bytes = self._rest[taken:], self._left_bytes - taken
                continue
            size = re.match(rb"(?:\r\n)?([0-9A-Fa-f]+)\r\n", self._rest)
            if size is None:
                break
            self._rest, self._left_bytes = self._rest[size.end() :], int(size[1], 16)
            if not self._left_bytes:
                self.is_whole = True
                break
        return self._parser.feed(content)


class Follower:
    """Follows an execution through broken connections, by the number of the last complete event."""

    def __init__(self, target: Target) -> None:
        self.events: list[Event] = []
        self.kills = 0
        self._target = target

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and self.events[-1].kind == "exited"

    def headers(self) -> dict[str, str]:
        return SSE | ({"Last-Event-ID": self.events[-1].id} if self.events else {})

    def read(self, request: bytes) -> None:
        """Read a connection to the end."""
        with self._target.connect() as connection:
            connection.sendall(request)
            parser = AnswerParser()
            while data := connection.recv(1 << 16):
                self.events += parser.feed(data)
            assert (parser.http_status, parser.is_whole) == (200, True)

    def killed(self, request: bytes, after_bytes: int, *, reset: bool) -> None:
        """Make a connection that breaks after ``after_bytes``, counted over the request and then
        the answer."""
        self.kills += 1
        with self._target.connect() as connection:
            connection.sendall(request[:after_bytes])
            left_bytes = after_bytes - len(request)
            parser = AnswerParser()
            while left_bytes > 0 and not parser.is_whole:
                data = connection.recv(min(left_bytes, 1 << 16))
                assert data, "the daemon has ended a stream that is not whole"
                left_bytes -= len(data)
                self.events += parser.feed(data)
            assert parser.http_status in (None, 200)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


KILLS = 200
# As many lines as are due by now, so that a slow machine has as much to read.
NUMBERED = """
import sys, time
with open("COUNT", "a") as file:
    file.write("ran\\n")
begun = time.monotonic()
number = 0
while (elapsed := time.monotonic() - begun) < 5:
    while number < elapsed * 8000:
        number += 1
        (sys.stderr if number % 7 == 0 else sys.stdout).write(f"{number} caf\\u00e9 \\u20ac\\n")
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.002)
"""


@pytest.mark.parametrize("kind", ["detached", "keyed"])
def test_client_killed_200_times_assembles_exactly_what_was_written(
    target: Target, client: httpx.Client, run: Run, marker: str, kind: str
) -> None:
    rng = random.Random(kind)
    name = f"numbered-{marker.replace('.', '-')}"
    fields: dict[str, Any] = {"argv": ["python3", "-c", NUMBERED.replace("COUNT", name)]}
    if kind == "detached":
        made = client.post(URL, json=fields | {"detach": True, "id": name})
        assert made.status_code == 202, made.text
    follower = Follower(target)

    def request() -> bytes:
        if kind == "keyed" and (not follower.events or rng.random() < 0.5):
            return request_bytes(
                "POST",
                URL,
                json.dumps(fields | {"id": name}).encode(),
                JSON | follower.headers() | {"Idempotency-Key": name},
            )
        return request_bytes("GET", f"{URL}/{name}/events", headers=follower.headers())

    while follower.kills < KILLS and not follower.has_ended:
        sent = request()
        # A quarter of the connections die within the request or the head of the answer, the rest
        # within the events.
        after_bytes = (
            rng.randrange(len(sent) + 400)
            if rng.random() < 0.25
            else len(sent) + rng.randrange(6000)
        )
        follower.killed(sent, after_bytes, reset=rng.random() < 0.5)
    assert follower.kills == KILLS
    follower.read(request())
    sequences = [int(event.id) for event in follower.events]
    assert sequences == sorted(set(sequences))
    for stream in ("stdout", "stderr"):
        written = client.get(f"{URL}/{name}/{stream}").content
        assert text_of(follower.events, stream).encode() == written
        assert written
    result = follower.events[-1].fields
    assert (result["exit_reason"], result["exit_code"]) == ("exited", 0)
    lines = [
        line
        for stream in ("stdout", "stderr")
        for line in text_of(follower.events, stream).splitlines()
    ]
    assert sorted(int(line.split()[0]) for line in lines) == list(range(1, len(lines) + 1))
    assert run.out(f"cat {name}") == "ran\n"


def test_reader_that_never_reads_does_not_hold_up_the_program(
    target: Target, client: httpx.Client, marker: str
) -> None:
    """22 MB: more than sockets hold. The daemon has not given the reader up either, when the
    program has ended."""
    name = f"unread-{marker.replace('.', '-')}"
    body = json.dumps({"command": f"seq 3000000; echo {marker} >&2", "id": name}).encode()
    with target.connect() as connection:
        connection.sendall(request_bytes("POST", URL, body, JSON | SSE))
        wait_until(lambda: client.get(f"{URL}/{name}").status_code == 200, 10, "it is known")
        done = client.get(f"{URL}/{name}?wait_seconds=25").json()
        assert (done["state"], done["exit_reason"], done["exit_code"]) == ("EXITED", "exited", 0)
        parser, events = AnswerParser(), []
        while data := connection.recv(1 << 20):
            events += parser.feed(data)
    assert parser.is_whole
    assert text_of(events) == "".join(f"{number}\n" for number in range(1, 3_000_001))
    assert text_of(events, "stderr") == f"{marker}\n"
    assert events[-1].kind == "exited"


# --- dropped output

LOG_BYTES = 300_000
WHOLE = b"".join(b"%d\n" % number for number in range(1, 300_001))


@pytest.fixture
def holed(client: httpx.Client) -> str:
    """The URL of an execution whose stdout is WHOLE, too much for ``log_bytes``."""
    done = client.post(
        URL, json={"command": "seq 300000", "limits": {"log_bytes": LOG_BYTES}}
    ).json()
    assert (done["exit_reason"], done["truncated"]["stdout"]["total_bytes"]) == (
        "exited",
        len(WHOLE),
    )
    return f"{URL}/{done['id']}"


def the_hole(dropped: list[tuple[int, int]]) -> tuple[int, int]:
    """The first byte of the hole and the first byte after the hole. Asserts that the dropped
    offsets and sizes in bytes are parts of a single hole."""
    for (offset, size_bytes), (following, _) in itertools.pairwise(dropped):
        assert offset + size_bytes == following
    start, end = dropped[0][0], sum(dropped[-1])
    assert LOG_BYTES <= start < end < len(WHOLE)
    return start, end


def test_hole_in_the_log_is_an_event(target: Target, holed: str) -> None:
    follower = Follower(target)
    follower.read(request_bytes("GET", f"{holed}/events", headers=SSE))
    reached, dropped = 0, list[tuple[int, int]]()
    for event in follower.events:
        fields = event.fields
        if event.kind in ("stdout", "dropped"):
            assert fields["offset"] == reached
            reached += fields["size_bytes"]
        if event.kind == "stdout":
            assert fields["text"].encode() == WHOLE[fields["offset"] : reached]
        elif event.kind == "dropped":
            assert fields["stream"] == "stdout"
            dropped.append((fields["offset"], fields["size_bytes"]))
    assert reached == len(WHOLE)
    the_hole(dropped)


def test_bytes_that_were_not_kept_are_416_and_the_others_can_be_had(
    client: httpx.Client, holed: str
) -> None:
    answer = client.get(f"{holed}/stdout")
    assert (answer.status_code, answer.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert answer.headers["content-range"] == f"bytes */{len(WHOLE)}"
    hole = answer.json()["details"]["hole"]
    start, end = the_hole([(hole["offset"], hole["size_bytes"])])
    for asked in (f"{start}-{start}", f"{end - 1}-{end - 1}", f"0-{start}", f"{end - 1}-"):
        assert client.get(f"{holed}/stdout", headers={"Range": f"bytes={asked}"}).status_code == 416
    for asked, expected in ((f"0-{start - 1}", WHOLE[:start]), (f"{end}-", WHOLE[end:])):
        part = client.get(f"{holed}/stdout", headers={"Range": f"bytes={asked}"})
        assert (part.status_code, part.content) == (206, expected)


async def test_hole_in_the_log_is_told_to_a_viewer(target: Target, holed: str) -> None:
    received, dropped = b"", list[tuple[int, int]]()
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{target.url}{holed}/attach") as viewer,
    ):
        async for message in viewer:
            if message.type is aiohttp.WSMsgType.BINARY:
                received += message.data
                continue
            control = json.loads(message.data)
            RECORDER.add_message("sends", control)
            if control["type"] == "dropped":
                dropped.append((control["offset"], control["size_bytes"]))
                assert control["offset"] == len(received)
                received += bytes(control["size_bytes"])
    start, end = the_hole(dropped)
    assert received == WHOLE[:start] + bytes(end - start) + WHOLE[end:]


# Each write is a separate event: the next write waits until the daemon has taken the event. The
# events are twice as many as the index holds and have no neighbours to merge with, so the daemon
# gives up the order of the oldest.
MANY_EVENTS = 9_000
ALTERNATING = f"""
import fcntl, os, struct, termios
for number in range({MANY_EVENTS}):
    fd = 1 + number % 2
    os.write(fd, b"%05d\\n" % number)
    while struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]:
        os.sched_yield()
"""


def test_events_that_were_trimmed_are_410_and_their_bytes_can_be_had(
    target: Target, client: httpx.Client
) -> None:
    done = client.post(
        URL, json={"argv": ["python3", "-c", ALTERNATING]}, timeout=READ_SECONDS * 2
    ).json()
    path = f"{URL}/{done['id']}"
    follower = Follower(target)
    follower.read(request_bytes("GET", f"{path}/events", headers=SSE))
    assert int(follower.events[-1].id) > MANY_EVENTS, "each was an event"
    for stream, numbers in (
        ("stdout", range(0, MANY_EVENTS, 2)),
        ("stderr", range(1, MANY_EVENTS, 2)),
    ):
        assert text_of(follower.events, stream) == "".join(f"{number:05d}\n" for number in numbers)
    answer = client.get(f"{path}/events?after=2")
    assert (answer.status_code, answer.json()["code"]) == (410, "GONE")
    assert client.get(f"{path}/events", headers={"Last-Event-ID": "2"}).status_code == 410
    place = follower.events[len(follower.events) // 2].id
    again = Follower(target)
    again.read(request_bytes("GET", f"{path}/events?after={place}", headers=SSE))
    assert again.events == [event for event in follower.events if int(event.id) > int(place)]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_output_has_a_place_to_resume_at_every_16_kib(client: httpx.Client, accept: str) -> None:
    done = client.post(URL, json={"command": "seq 50000; seq 40000 >&2"}).json()

    def read(after: int) -> list[tuple[int, str, dict[str, Any]]]:
        headers = {"Accept": accept, "Last-Event-ID": str(after)}
        answer = client.get(f"{URL}/{done['id']}/events", headers=headers)
        if accept == "text/event-stream":
            events = EventStreamParser().feed(answer.content)
            return [(int(event.id), event.kind, event.fields) for event in events]
        lines = map(json.loads, answer.text.splitlines())
        return [(line.pop("sequence"), line.pop("event"), line) for line in lines]

    events = read(0)
    numbers = [number for number, _, _ in events]
    assert numbers == sorted(set(numbers))
    for stream in ("stdout", "stderr"):
        pieces = [fields for _, kind, fields in events if kind == stream]
        assert "".join(piece["text"] for piece in pieces) == done[stream]
        assert max(piece["size_bytes"] for piece in pieces) <= 16384
    for index, number in enumerate(numbers[:-1]):
        assert read(number) == events[index + 1 :]


def test_long_event_comes_in_parts_on_demand(target: Target, client: httpx.Client) -> None:
    """Each connection ends after 40 kB, and the event ``exited`` has over 300 kB."""
    done = client.post(URL, json={"command": "seq 50000"}).json()
    follower, whole = Follower(target), b""
    while len(whole) < 300_000 or not whole.endswith(b"}"):
        after = follower.events[-1].id if follower.events else "0"
        path = f"{URL}/{done['id']}/events?parts=true&after={after}&part_offset={len(whole)}"
        known = len(follower.events)
        follower.killed(request_bytes("GET", path, headers=SSE), 40_000, reset=False)
        assert len(follower.events) > known, "progress"
        for event in follower.events[known:]:
            if event.kind == "part":
                assert (event.fields["of"], event.fields["offset"]) == ("exited", len(whole))
                whole += base64.b64decode(event.fields["base64"])
                assert (len(whole) == event.fields["size_bytes"]) is (event.id != after)
            else:
                assert not whole
                after = event.id
    assert json.loads(whole) == client.get(f"{URL}/{done['id']}").json()
    assert text_of(follower.events) == done["stdout"]


# --- many

READERS = 500
LINES = 100
HANG_SECONDS = 180
"""Programs that start all at once take seconds, and minutes beside fork bombs of other tests."""
GATED = f"""
import os, time
while not os.path.exists("GATE"):
    time.sleep(0.02)
for number in range({LINES}):
    print(number, flush=True)
    time.sleep(0.01)
"""


class Crowd:
    """Connections read side by side."""

    def __init__(self, connections: list[socket.socket]) -> None:
        self.stories: list[list[Event]] = [[] for _ in connections]
        self._readers = [
            (connection, AnswerParser(), story)
            for connection, story in zip(connections, self.stories, strict=True)
        ]

    def read_until(self, kind: str, deadline_seconds: float) -> None:
        """Until each has had an event of this kind."""
        end = time.monotonic() + patience.seconds(deadline_seconds)
        with selectors.DefaultSelector() as selector:
            for connection, parser, story in self._readers:
                if all(event.kind != kind for event in story):
                    selector.register(connection, selectors.EVENT_READ, (parser, story))
            while waiting := selector.get_map():
                ready = selector.select(max(0.0, end - time.monotonic()))
                assert ready, f"{len(waiting)} of {len(self._readers)} readers have had no {kind!r}"
                for key, _ in ready:
                    parser, story = key.data
                    data = key.fileobj.recv(1 << 16)
                    assert data, "the daemon has cut a reader off"
                    story += parser.feed(data)
                    if any(event.kind == kind for event in story):
                        selector.unregister(key.fileobj)


def held_bytes(target: Target, run: Run) -> int:
    """The memory of the daemon; where the pid is unknown, of the whole sandbox."""
    if target.pid:
        return target.resident_bytes()
    kib = dict(re.findall(r"(\w+): +(\d+) kB", run.out("cat /proc/meminfo")))
    return (int(kib["MemTotal"]) - int(kib["MemAvailable"])) * 1024


def test_500_streams_at_once_all_get_everything(
    target: Target, client: httpx.Client, run: Run, marker: str
) -> None:
    gate = f"gate-{marker}"
    made = client.post(
        URL, json={"argv": ["python3", "-c", GATED.replace("GATE", gate)], "detach": True}
    ).json()
    request = request_bytes("GET", f"{URL}/{made['id']}/events", headers=SSE)
    before_bytes = held_bytes(target, run)
    with ExitStack() as open_now:
        connections = [open_now.enter_context(target.connect()) for _ in range(READERS)]
        crowd = Crowd(connections)
        for connection in connections:
            connection.sendall(request)
        crowd.read_until("started", 30)
        assert held_bytes(target, run) - before_bytes < 64 << 20
        run.out(f"touch {gate}")
        crowd.read_until("exited", 60)
    assert held_bytes(target, run) - before_bytes < 64 << 20
    assert text_of(crowd.stories[0]) == "".join(f"{number}\n" for number in range(LINES))
    assert all(story == crowd.stories[0] for story in crowd.stories)


def test_programs_at_once_are_each_streamed_to_a_reader(own_daemon: Callable[..., Target]) -> None:
    """The programs wait for a lock held by another command."""
    daemon = own_daemon(f"--max-running={PROGRAMS + 1}")
    holder = json.dumps(
        {"command": "exec flock gate cat", "id": "holder", "stdin_open": True, "detach": True}
    ).encode()
    assert daemon.request("POST", URL, holder, JSON).http_status == 202
    wait_until(
        lambda: daemon.request(
            "POST", "/execute", b'{"command":"flock -n gate true"}', JSON
        ).json()["exit_code"],
        10,
        "it is held",
    )
    with ExitStack() as open_now:
        connections = [open_now.enter_context(daemon.connect()) for _ in range(PROGRAMS)]
        crowd = Crowd(connections)
        for number, connection in enumerate(connections):
            body = json.dumps({"command": f"echo {number}; exec flock -s gate echo end"}).encode()
            connection.sendall(request_bytes("POST", URL, body, JSON | SSE))
        crowd.read_until("stdout", HANG_SECONDS)
        assert daemon.request("POST", f"{URL}/holder/stdin?eof=true").http_status in (200, 204)
        crowd.read_until("exited", HANG_SECONDS)
    for number, story in enumerate(crowd.stories):
        assert text_of(story) == f"{number}\nend\n"


# str.splitlines, and httpx's iter_lines, end a line at each of these.
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
SPLIT = f"x{'x'.join(LINE_ENDS)}x"


def stream_of_a_command(client: httpx.Client, headers: dict[str, str], _folder: str) -> str:
    return client.post(
        URL, json={"argv": ["printf", "%s", SPLIT]}, headers=headers
    ).content.decode()


def stream_of_a_cell(client: httpx.Client, headers: dict[str, str], _folder: str) -> str:
    code = (
        "from IPython.display import display\n"
        f"display({{'text/plain': {SPLIT!r}, 'x-test/' + {SPLIT!r}: {{{SPLIT!r}: 1}}}}, raw=True)"
    )
    return client.post("/v1/code", json={"code": code}, headers=headers).content.decode()


def stream_of_a_watch(client: httpx.Client, headers: dict[str, str], folder: str) -> str:
    url = f"/v1/watch/{folder}?debounce_seconds=0"
    with client.stream("GET", url, headers=headers) as response:
        made = client.put("/v1/fs/file", params={"path": f"{folder}/{SPLIT}"}, content=b"1")
        assert made.status_code == 204, made.text
        pieces = []
        for piece in response.iter_bytes():
            pieces.append(piece)
            if b"changes" in b"".join(pieces):
                client.delete(f"/v1/files/{folder}?recursive=true")
        return b"".join(pieces).decode()


def stream_of_a_session(client: httpx.Client, headers: dict[str, str], folder: str) -> str:
    session = f"/v1/sessions/{folder}"
    assert client.post("/v1/sessions", json={"id": folder}).status_code == 201
    # Output between cells: of a thread that outlives the cell.
    code = (
        "import os, threading, time\n"
        "def later():\n"
        f"    while not os.path.exists('{folder}/gate'): time.sleep(0.01)\n"
        f"    print({SPLIT!r}, flush=True)\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    pieces = []
    with client.stream("GET", f"{session}/events", headers=headers) as response:
        assert client.post(f"{session}/execute", json={"code": code}).json()["exit_code"] == 0
        client.put(f"/v1/files/{folder}/gate", content=b"").raise_for_status()
        for piece in response.iter_bytes():
            pieces.append(piece)
            if b"stdout" in piece:
                client.delete(session)
    return b"".join(pieces).decode()


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
@pytest.mark.parametrize(
    "read", [stream_of_a_command, stream_of_a_cell, stream_of_a_watch, stream_of_a_session]
)
def test_events_are_whole_lines_for_readers_that_split_with_splitlines(
    client: httpx.Client, folder: str, read: Callable[..., str], accept: str
) -> None:
    stream = read(client, {"Accept": accept}, folder)
    lines = [line for line in stream.splitlines() if line]
    assert lines == [line for line in stream.split("\n") if line]
    if accept == "text/event-stream":
        lines = [line.removeprefix("data: ") for line in lines if line.startswith("data:")]
    events = [json.loads(line) for line in lines]
    assert any(SPLIT in text for text in strings_of(events))


def strings_of(value: Any) -> list[str]:
    """All strings in a JSON value, the names of fields too."""
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings_of(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings_of(item)]
    return [value] if isinstance(value, str) else []
