"""Streams of executions over raw sockets: sent, resumed and cut streams, slow and many readers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.conftest import DEADLINE_SECONDS, Wire, wait_until
from tests.api.event_stream import Streaming, stream
from tests.api.v1.test_executions import (
    SLEEP,
    URL,
    detached,
    ended,
    exists,
    get,
    open_gate,
    ran,
    seq_output,
)
from tests.event_stream import EventStreamParser, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]

SSE_TYPE = "text/event-stream; charset=utf-8"


async def run(
    wire: Wire,
    program: str | list[str],
    query: str = "",
    accept: str = "text/event-stream",
    read_ahead_bytes: int = 1 << 26,
    **fields: Any,
) -> Streaming:
    body = json.dumps(
        {"command" if isinstance(program, str) else "argv": program} | fields
    ).encode()
    return await stream(
        await wire.connect(read_ahead_bytes),
        "POST",
        URL + query,
        body,
        Content_Type="application/json",
        Accept=accept,
    )


async def follow(wire: Wire, execution_id: str, query: str = "", **headers: str) -> Streaming:
    return await stream(
        await wire.connect(), "GET", f"{URL}/{execution_id}/events{query}", **headers
    )


# --- sent events


READ_BEFORE_THE_NEXT = """
import array, fcntl, os, termios
unread = array.array("i", [0])
for n in range(50):
    fd = 1 + n % 2
    os.write(fd, b"%d " % n)
    while fcntl.ioctl(fd, termios.FIONREAD, unread) or unread[0]:
        os.sched_yield()
"""


async def test_streams_tell_output_in_the_order_in_which_the_daemon_read_the_output(
    wire: Wire,
) -> None:
    streaming = await run(wire, ["python3", "-c", READ_BEFORE_THE_NEXT])
    events = [event for event in await streaming.rest() if event.kind in ("stdout", "stderr")]
    assert "".join(event.fields["text"] for event in events).split() == [str(n) for n in range(50)]


async def test_ndjson_has_the_same_events(wire: Wire) -> None:
    execution_id = (await ran(wire, "echo out; echo err >&2"))["id"]
    as_events = await (await follow(wire, execution_id)).rest()
    answer = await get(wire, execution_id, "/events", {"Accept": "application/x-ndjson"})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert lines == [
        {"event": event.kind, "sequence": int(event.id), **event.fields} for event in as_events
    ]


async def test_base64_stream_has_the_bytes(wire: Wire) -> None:
    events = await (await run(wire, r"printf 'a\377\000'", "?encoding=base64")).rest()
    assert base64.b64decode(events[1].fields["base64"]) == b"a\xff\0"
    assert base64.b64decode(events[-1].fields["stdout_base64"]) == b"a\xff\0"


async def test_text_is_cut_between_characters_only(wire: Wire) -> None:
    script = (
        r"import os,time; [(os.write(1, bytes([b])), time.sleep(0.01)) for b in "
        r"'aé€😀'.encode() + b'\xe2\x82']"
    )
    events = await (await run(wire, ["python3", "-c", script])).rest()
    output = [event.fields for event in events if event.kind == "stdout"]
    assert "".join(fields["text"] for fields in output) == "aé€😀\ufffd"
    assert all("\ufffd" not in fields["text"] for fields in output[:-1])
    assert [fields["offset"] for fields in output] == [
        sum(fields["size_bytes"] for fields in output[:n]) for n in range(len(output))
    ]


async def test_silence_has_heartbeats(serve: Serve) -> None:
    wire = await serve(stream_heartbeat_seconds=0.05)
    os.mkfifo(wire.base_dir / "gate")
    for accept, heartbeat in (
        ("text/event-stream", b": heartbeat\n"),
        ("application/x-ndjson", b"\n"),
    ):
        streaming = await run(wire, "cat gate", accept=accept)
        chunks: list[bytes] = []
        async for chunk in streaming.chunks():
            chunks.append(chunk)
            if chunks[-1] == heartbeat and chunks.count(heartbeat) == 3:
                await open_gate(wire, "x")
        assert streaming.is_whole
        assert b"exited" in chunks[-1]


async def test_soft_timeout_of_a_stream_is_refused(wire: Wire) -> None:
    streaming = await run(wire, "true", soft_timeout_seconds=1)
    assert streaming.http_status == 400


async def test_head_of_a_stream_says_its_type_and_reads_nothing(wire: Wire) -> None:
    execution_id = await detached(wire, SLEEP)
    answer = await wire.request("HEAD", f"{URL}/{execution_id}/events")
    assert (answer.http_status, answer.headers["Content-Type"]) == (200, SSE_TYPE)


# --- resuming


@pytest.mark.parametrize(
    ("query", "header"),
    [("?after=-1", None), ("?after=x", None), ("", "x"), ("", "-1"), ("", "9" * 30), ("", "²")],
)
async def test_place_that_is_no_number_is_refused(
    wire: Wire, query: str, header: str | None
) -> None:
    execution_id = (await ran(wire, "true"))["id"]
    answer = await get(
        wire, execution_id, f"/events{query}", {} if header is None else {"Last-Event-ID": header}
    )
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


# --- slow readers, and many readers


async def test_reader_that_never_reads_delays_nothing_and_is_cut(serve: Serve) -> None:
    wire = await serve(stream_stall_seconds=0.5, is_narrow=True)
    os.mkfifo(wire.base_dir / "gate")
    program = "cat gate; seq 100000; cat gate; echo > done"
    deaf = await run(wire, program, limits={"reply_bytes": 1024})
    (execution,) = wire.live()
    # The peer reads nothing.
    deaf.connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await open_gate(wire)
    await wait_until(lambda: execution.readers.count == 0, "the reader is cut")
    await open_gate(wire)
    body = await ended(wire, execution.id)
    assert (body["exit_reason"], exists(wire, "done")()) == ("exited", True)
    assert body["truncated"]["stdout"]["total_bytes"] == len(seq_output(100_000))


async def test_reader_that_reads_slowly_gets_everything(serve: Serve) -> None:
    wire = await serve(stream_stall_seconds=5, is_narrow=True)
    streaming = await run(wire, "seq 600000", read_ahead_bytes=1 << 16)
    parser, events = EventStreamParser(), []
    loop = asyncio.get_running_loop()
    pause_until = loop.time() + 6
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for chunk in streaming.chunks():
            events += parser.feed(chunk)
            if loop.time() < pause_until:
                assert events[-1].kind != "exited", "the reader was not slow"
                await asyncio.sleep(0.4)  # slow down the reader
    assert streaming.is_whole
    assert text_of(events) == seq_output(600_000)


async def test_events_that_were_merged_are_410_and_the_rest_adds_up(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.output.log.MAX_EVENTS", 50)
    execution_id = await detached(wire, "cat", stdin_open=True)
    execution = wire.engine.get(execution_id)
    # Many more events than the index keeps: each line comes back before the next line goes.
    for number in range(500):
        came_back = execution.output.next_change()
        await execution.write_stdin(b"%05d\n" % number)
        await asyncio.wait((came_back,), timeout=DEADLINE_SECONDS)
    await execution.end_stdin()
    await ended(wire, execution_id)
    events = await (await follow(wire, execution_id)).rest()
    assert text_of(events) == "".join(f"{number:05d}\n" for number in range(500))
    held = {int(event.id) for event in events}
    missing = next(number for number in range(2, int(events[-1].id)) if number not in held)
    answer = await get(wire, execution_id, f"/events?after={missing}")
    assert (answer.http_status, answer.json()["code"]) == (410, "GONE")
    assert await (await follow(wire, execution_id, f"?after={events[5].id}")).rest() == events[6:]
