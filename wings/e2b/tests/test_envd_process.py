"""``process.Process``: commands as envd runs them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from execd_e2b.connect import STREAM_TYPE
from tests.api.conftest import request_bytes, wait_until
from wings.e2b.tests.conftest import E2B, STREAM, Box, end_of, output_of, packed, shell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

CONNECT = "process.Process/Connect"
START = "process.Process/Start"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def is_listed(box: Box, pid: int) -> bool:
    _, listed = await box.process("List", {})
    return pid in [process["pid"] for process in listed.get("processes", [])]


async def test_missing_program_is_127_after_a_start(box: Box) -> None:
    first, *messages, _ = await box.start({"process": {"cmd": "no-such-program"}})
    assert "start" in first["event"]
    assert "no-such-program" in output_of(messages, "stderr")
    assert end_of(messages)["exitCode"] == 127


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"process": {"cmd": "true", "cwd": "/no/such/dir"}}, "invalid_argument"),
        ({"process": {"cmd": "true", "cwd": "/etc/passwd"}}, "invalid_argument"),
        ({"process": {"cmd": "true", "envs": {"A=B": "1"}}}, "invalid_argument"),
        ({"process": {}}, "invalid_argument"),
        (
            {"process": {"cmd": "true"}, "pty": {"size": {"cols": -1, "rows": 1}}},
            "invalid_argument",
        ),
        ({"process": {"cmd": 7}}, "invalid_argument"),
    ],
)
async def test_refusal_comes_before_the_start(box: Box, message: Any, code: str) -> None:
    [refusal] = await box.start(message)
    assert refusal["error"]["code"] == code


async def test_no_time_at_all_starts_nothing(box: Box) -> None:
    [refusal] = await box.start(shell("true"), Connect_Timeout_Ms="0")
    assert refusal["error"]["code"] == "deadline_exceeded"
    assert list(box.wire.engine._registry) == []


async def test_each_command_is_an_execution(box: Box) -> None:
    first, *_ = await box.start(shell("exit 3", tag="mine"))
    execution = box.wire.engine.get(first["event"]["start"]["executionId"])
    assert execution.result is not None
    assert execution.result.exit_code == 3
    assert execution.command.origin.dialect == "e2b"


async def test_disconnect_does_not_end_the_command(box: Box) -> None:
    go = box.wire.base_dir / "go"
    async with box.following(
        START, shell(f"echo early; until [ -e {go} ]; do sleep 0.02; done; echo late; exit 4")
    ) as stream:
        pid = (await stream.until("start"))["pid"]
        await stream.until("data")
    assert await is_listed(box, pid)
    async with box.following(CONNECT, {"process": {"pid": pid}}) as stream:
        assert (await stream.next())["event"]["start"]["pid"] == pid
        go.touch()
        assert base64.b64decode((await stream.until("data"))["stdout"]) == b"late\n"
        assert (await stream.until("end"))["exitCode"] == 4


async def test_late_client_gets_the_end_and_the_output_that_nobody_got(box: Box) -> None:
    go = box.wire.base_dir / "go"
    line = f"until [ -e {go} ]; do sleep 0.02; done; echo unseen; exit 5"
    async with box.following(START, shell(line)) as stream:
        pid = (await stream.until("start"))["pid"]
    go.touch()

    async def is_over() -> bool:
        return not await is_listed(box, pid)

    await wait_until(is_over, "the command is over")
    messages = await box.stream(CONNECT, {"process": {"pid": pid}})
    assert output_of(messages) == "unseen\n"
    assert end_of(messages)["exitCode"] == 5

    async def is_received() -> bool:
        again = await box.stream(CONNECT, {"process": {"pid": pid}})
        assert end_of(again)["exitCode"] == 5
        return output_of(again) == ""

    await wait_until(is_received, "the machine of the client has acknowledged the output")


def has_data(peer: socket.socket) -> bool:
    """Whether the socket, which does not block, has bytes that nobody has read."""
    try:
        return bool(peer.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


async def test_output_in_the_buffers_of_a_connection_is_not_lost_with_the_connection(
    box: Box,
) -> None:
    """The first client reads nothing. Its buffer is small, so its machine takes little."""
    go = box.wire.base_dir / "go"
    line = f"printf '%02000000d' 7; touch {go}; while [ -e {go} ]; do sleep 0.02; done"
    request = request_bytes("POST", f"/{START}", packed(shell(line, tag="unread")), STREAM)
    loop = asyncio.get_running_loop()
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        first.setblocking(False)
        await loop.sock_connect(first, ("127.0.0.1", box.wire.port))
        await loop.sock_sendall(first, request)
        await wait_until(go.exists, "the program has written")
        await wait_until(lambda: has_data(first), "the daemon has begun to write")
    go.unlink()
    received = output_of(await box.stream(CONNECT, {"process": {"tag": "unread"}}))
    assert len(received) > 1_900_000
    assert received == f"{7:02000000d}"[-len(received) :]


async def test_keepalive_comes_in_silence_as_often_as_asked(box: Box) -> None:
    async with box.following(START, shell("sleep 600"), {"Keepalive-Ping-Interval": "1"}) as stream:
        assert "start" in (await stream.next())["event"]
        assert (await stream.next())["event"] == {"keepalive": {}}


async def test_streamed_input_is_written_in_order(box: Box) -> None:
    async with box.following(START, shell("head -c 5") | {"stdin": True}) as stream:
        process = {"pid": str((await stream.until("start"))["pid"])}
        sent = [{"data": {"input": {"stdin": b64(text)}}} for text in ("ab", "cde")]
        messages = [{"start": {"process": process}}, {"keepalive": {}}, *sent]
        assert await box.stream("process.Process/StreamInput", *messages) == [{}, {}]
        seen = b""
        while seen != b"abcde":
            seen += base64.b64decode((await stream.until("data"))["stdout"])
        await stream.until("end")


async def test_streamed_input_before_its_start_is_refused(box: Box) -> None:
    [refusal] = await box.stream(
        "process.Process/StreamInput", {"data": {"input": {"stdin": b64("x")}}}
    )
    assert refusal["error"]["code"] == "invalid_argument"


async def test_program_without_stdin_reads_the_end_at_once(box: Box) -> None:
    assert output_of(await box.start(shell("cat; echo end"))) == "end\n"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"stdin": b64("x")}, "failed_precondition"),
        ({"pty": b64("x")}, "failed_precondition"),
        ({"stdin": "!"}, "invalid_argument"),
        ({}, "invalid_argument"),
    ],
)
async def test_input_that_the_program_cannot_take_is_refused(
    box: Box, given: Any, code: str
) -> None:
    async with box.following(START, shell("sleep 600", tag="one")) as stream:
        await stream.until("start")
        _, refusal = await box.process("SendInput", {"process": {"tag": "one"}, "input": given})
        assert refusal["code"] == code


async def test_kill_ends_the_whole_tree_before_the_answer(box: Box) -> None:
    async with box.following(START, shell("sleep 600 & sleep 600; true", tag="one")) as stream:
        pid = (await stream.until("start"))["pid"]
        message = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
        assert await box.process("SendSignal", message) == (200, {})
        assert not await is_listed(box, pid)
        assert (await stream.until("end"))["exitCode"] == -1
        http_status, refusal = await box.process("SendSignal", message)
        assert (http_status, refusal["code"]) == (404, "not_found")


async def test_term_may_be_caught(box: Box) -> None:
    line = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.02; done"
    async with box.following(START, shell(line, tag="one")) as stream:
        await stream.until("data")
        message = {"process": {"tag": "one"}, "signal": 15}
        assert await box.process("SendSignal", message) == (200, {})
        assert (await stream.until("end"))["exitCode"] == 9


async def test_list_has_what_runs_with_its_tag(box: Box) -> None:
    async with contextlib.AsyncExitStack() as streams:
        for tag in ("one", "two"):
            stream = await streams.enter_async_context(
                box.following(START, shell("sleep 600", tag=tag))
            )
            await stream.until("start")
        _, listed = await box.process("List", {})
        assert [process["tag"] for process in listed["processes"]] == ["one", "two"]
        assert listed["processes"][0]["config"] == {
            "cmd": "/bin/sh",
            "args": ["-c", "sleep 600"],
            "cwd": str(box.wire.base_dir),
        }
        # the first process with another tag does not end the search
        message = {"process": {"tag": "two"}, "signal": 9}
        assert await box.process("SendSignal", message) == (200, {})


async def test_closing_the_input_of_a_terminal_names_ctrl_d(box: Box) -> None:
    message = shell("sleep 600", tag="one") | {"pty": {"size": {"cols": 80, "rows": 24}}}
    async with box.following(START, message) as stream:
        await stream.until("start")
        _, refusal = await box.process("CloseStdin", {"process": {"tag": "one"}})
        assert "Ctrl-D" in refusal["message"]


@pytest.mark.parametrize(
    ("name", "http_status"),
    [("SendInput", 404), ("CloseStdin", 404), ("SendSignal", 404), ("Update", 404)],
)
async def test_unknown_process_is_not_found(box: Box, name: str, http_status: int) -> None:
    answer = await box.process(name, {"process": {"pid": 4_000_000}, "signal": 9})
    assert (answer[0], answer[1]["code"]) == (http_status, "not_found")
    [refusal] = await box.stream(CONNECT, {"process": {"tag": "nothing"}})
    assert refusal["error"]["code"] == "not_found"


async def test_protobuf_is_refused_with_the_remedy(box: Box) -> None:
    answer = await box.wire.request(
        "POST", "/process.Process/List", b"", {"Content-Type": "application/proto"}
    )
    assert answer.http_status == 501
    assert "JSON" in answer.json()["message"]


async def test_command_of_a_user_that_does_not_exist_is_refused(box: Box) -> None:
    """A template may name a user in the header that only its own image has."""
    headers = {"Authorization": f"Basic {b64('no-such-user:')}"}
    body = packed(shell("true"))
    answer = await box.wire.request("POST", f"/{START}", body, STREAM | headers)
    assert (answer.http_status, answer.json()["code"]) == (401, "unauthenticated")
    assert "no-such-user" in answer.json()["message"]


async def test_unknown_call_has_the_shape_of_connect(box: Box) -> None:
    http_status, refusal = await box.process("Nothing", {})
    assert (http_status, refusal["code"]) == (404, "unimplemented")


async def test_queue_that_is_full_is_resource_exhausted(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    box = Box(await serve(dialect=E2B, max_running=1, max_queued=0))
    async with box.following(START, shell("sleep 600")) as stream:
        await stream.until("start")
        [refusal] = await box.start(shell("true"))
        assert refusal["error"]["code"] == "resource_exhausted"


async def test_stream_is_flushed_frame_by_frame(box: Box) -> None:
    """The first frame arrives while the program runs, not with the end."""
    connection = await box.wire.connect()
    body = packed(shell("echo one; sleep 600"))
    head = (
        "POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/connect+json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await connection.send(head.encode() + body)
    async with asyncio.timeout(20):
        await connection.reader.readuntil(b"\r\n\r\n")
        seen = b""
        while b"stdout" not in seen:
            seen += await connection.reader.read(4096)
    assert b'"start"' in seen


async def test_unfinished_message_counts_as_bytes_in_flight(box: Box) -> None:
    size_bytes = 8 << 20
    connection = await box.wire.connect()
    head = request_bytes(
        "POST",
        "/process.Process/StreamInput",
        headers={"Content-Type": STREAM_TYPE, "Content-Length": str(size_bytes)},
    )
    await connection.send(head + struct.pack(">BI", 0, size_bytes) + b" " * (size_bytes // 2))
    in_flight = box.wire.engine.in_flight
    await wait_until(lambda: in_flight.held_bytes > size_bytes // 2, "the message is counted")
    await connection.reset()
    await wait_until(lambda: in_flight.held_bytes == 0, "the budget is given back")
