from __future__ import annotations

import asyncio
import base64
import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from execd.api.wire import early_headers
from tests.api.conftest import JSON, Answer, Wire, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]

SLEEP = "exec sleep 1000"
# More than stays in memory, so that a small log on disk leaves a hole.
BEYOND_THE_LOG = "seq 60000"
URL = "/v1/executions"


def seq_output(last: int) -> str:
    """The output of seq."""
    return "".join(f"{number}\n" for number in range(1, last + 1))


async def post(
    wire: Wire, headers: dict[str, str] | None = None, target: str = URL, **fields: Any
) -> Answer:
    return await wire.request("POST", target, json.dumps(fields).encode(), JSON | (headers or {}))


async def ran(wire: Wire, command: str, target: str = URL, **fields: Any) -> dict[str, Any]:
    answer = await post(wire, target=target, command=command, **fields)
    assert answer.http_status == 200, answer.body
    return answer.json()


async def detached(wire: Wire, command: str, **fields: Any) -> str:
    """Start a command. Return the id of the running command."""
    answer = await post(wire, command=command, detach=True, **fields)
    assert answer.http_status == 202, answer.body
    execution_id = answer.json()["id"]
    await wire.engine.get(execution_id).wait_started()
    return execution_id


async def get(
    wire: Wire, execution_id: str, rest: str = "", headers: dict[str, str] | None = None
) -> Answer:
    return await wire.request("GET", f"{URL}/{execution_id}{rest}", headers=headers)


async def act(wire: Wire, execution_id: str, action: str, **fields: Any) -> Answer:
    return await wire.request(
        "POST", f"{URL}/{execution_id}/{action}", json.dumps(fields).encode(), JSON
    )


async def ended(wire: Wire, execution_id: str) -> dict[str, Any]:
    answer = await get(wire, execution_id, "?wait_seconds=20")
    assert answer.http_status == 200, answer.body
    assert answer.json()["state"] == "EXITED"
    return answer.json()


def exists(wire: Wire, name: str) -> Callable[[], bool]:
    return (wire.base_dir / name).exists


async def open_gate(wire: Wire, text: str = "") -> None:
    """Let a program go on: the program reads the FIFO ``gate``. A blocking open of a FIFO waits for
    the peer, and the loop would wait too."""
    ends: list[int] = []

    def is_read() -> bool:
        try:
            ends.append(os.open(wire.base_dir / "gate", os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        return bool(ends)

    await wait_until(is_read, "the program stands at the gate")
    os.write(ends[0], text.encode())
    os.close(ends[0])


# --- replies


async def test_reply_has_every_field(wire: Wire) -> None:
    body = await ran(wire, "echo out; echo err >&2; exit 3")
    for name in ("id", "pid", "created_at", "started_at", "ended_at", "duration_seconds", "limits"):
        assert body.pop(name)
    assert body.pop("usage").keys() >= {
        "user_seconds",
        "system_seconds",
        "max_rss_bytes",
        "peak_tree_bytes",
    }
    assert body == {
        "state": "EXITED",
        "command": "echo out; echo err >&2; exit 3",
        "started_by": "shell",
        "cwd": str(wire.base_dir),
        "exit_code": 3,
        "signal": None,
        "exit_reason": "exited",
        "message": None,
        "timed_out": False,
        "stdout": "out\n",
        "stderr": "err\n",
        "truncated": None,
        "killed": 0,
        "survivors": [],
    }


async def test_input_that_the_program_does_not_read_is_no_error(wire: Wire) -> None:
    assert (await ran(wire, "true", stdin="x" * 1_000_000))["exit_code"] == 0


@pytest.mark.parametrize("encoding", ["text", "base64"])
async def test_output_over_the_limit_of_a_reply_is_counted_and_can_be_had(
    wire: Wire, encoding: str
) -> None:
    body = await ran(
        wire, "seq 1000", target=f"{URL}?encoding={encoding}", limits={"reply_bytes": 1000}
    )
    whole = seq_output(1000)
    cut = body["truncated"].pop("stdout")
    assert not body["truncated"]
    assert (cut["total_bytes"], cut["head_bytes"]) == (len(whole), 500)
    if encoding == "base64":
        assert (
            base64.b64decode(body["stdout_base64"]).decode()
            == whole[:500] + whole[500 + cut["omitted_bytes"] :]
        )
    else:
        assert f"[execd: {cut['omitted_bytes']} bytes omitted]\n" in body["stdout"]
    assert (await wire.request("GET", cut["url"])).body == whole.encode()


async def test_full_state_disk_costs_the_middle_of_an_output_and_the_reply_says_why(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(state_bytes=40_000, stream_memory_bytes=4096)
    program = "head -c 150000 /dev/zero | tr '\\0' x; echo end"
    for _ in range(2):  # the first run uses up the disk, the second begins without
        body = await ran(wire, program)
        cut = body["truncated"]["stdout"]
        assert cut["disk_failure"] == "the logs' share of the disk is used up"
        assert cut["omitted_bytes"] > 50_000
        assert (body["exit_code"], body["exit_reason"]) == (0, "exited")
        assert body["stdout"].startswith("xxx")
        assert body["stdout"].endswith("end\n")
    assert (await ran(wire, "echo small"))["truncated"] is None


async def test_execution_that_could_not_be_journaled_says_so(own_wire: Wire) -> None:
    wire = own_wire
    assert "not_journaled" not in await ran(wire, "true", id="before")
    state_dir = Path(wire.engine.config.state_dir)
    shutil.rmtree(state_dir)
    state_dir.write_text("a file in its place")
    for more in ({"id": "named"}, {"detach": True, "id": "detached"}):
        await post(wire, command="true", **more)
        assert (await ended(wire, more["id"]))["not_journaled"]
    assert "not_journaled" not in await ran(wire, "true"), "it need not be"


@pytest.mark.parametrize(
    "query", ["?encoding=utf-16", "?encode=base64", "?encoding=text&encoding=text"]
)
async def test_bad_query_is_refused(wire: Wire, query: str) -> None:
    answer = await post(wire, target=URL + query, command="true")
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


# --- without waiting


async def test_soft_timeout_answers_and_the_command_runs_on_whoever_leaves(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    answer = await post(wire, command="echo early; cat gate", soft_timeout_seconds=3.0)
    body = answer.json()
    assert (answer.http_status, body["state"], body["stdout"], body["exit_code"]) == (
        202,
        "RUNNING",
        "early\n",
        None,
    )
    reader = await wire.connect()
    await reader.send(request_bytes("GET", f"{URL}/{body['id']}/events"))
    await reader.reader.readuntil(b"early")
    await reader.reset()
    await wait_until(lambda: wire.engine.get(body["id"]).readers.count == 0, "the reader has left")
    await open_gate(wire, "late")
    assert (await ended(wire, body["id"]))["stdout"] == "early\nlate"


async def test_command_that_is_quicker_than_the_soft_timeout_is_waited_for(wire: Wire) -> None:
    assert (await ran(wire, "echo hi", soft_timeout_seconds=20))["stdout"] == "hi\n"


async def test_long_poll_waits_for_the_end_and_not_longer_than_asked(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, "cat gate")
    answer = await get(wire, execution_id, "?wait_seconds=0.1")
    assert (answer.http_status, answer.json()["state"]) == (200, "RUNNING")
    connection = await wire.connect()
    await connection.send(request_bytes("GET", f"{URL}/{execution_id}?wait_seconds=20"))
    await open_gate(wire)
    assert (await connection.receive()).json()["state"] == "EXITED"


async def test_long_poll_that_hangs_up_ends_nothing(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    first = await wire.connect()
    await first.send(request_bytes("POST", URL, b'{"command":"cat gate"}', JSON))
    await wait_until(wire.live, "it runs")
    (execution,) = wire.live()
    poll = await wire.connect()
    await poll.send(request_bytes("GET", f"{URL}/{execution.id}?wait_seconds=20"))
    await poll.close()
    await open_gate(wire, "through")
    assert (await first.receive()).json()["stdout"] == "through"


# --- lost readers


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_caller_that_hangs_up_ends_its_command(wire: Wire, accept: str) -> None:
    connection = await wire.connect()
    body = json.dumps({"command": f"echo $$ > pid; {SLEEP}"}).encode()
    await connection.send(request_bytes("POST", URL, body, JSON | {"Accept": accept}))
    await wait_until(exists(wire, "pid"), "it runs")
    (execution,) = wire.live()
    await connection.close()
    assert (await ended(wire, execution.id))["exit_reason"] == "client_disconnected"


async def test_caller_that_hangs_up_leaves_what_it_said_may_go_on(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    connection = await wire.connect()
    body = json.dumps({"command": "echo > begun; cat gate", "on_disconnect": "detach"}).encode()
    await connection.send(request_bytes("POST", URL, body, JSON))
    await wait_until(exists(wire, "begun"), "it runs")
    (execution,) = wire.live()
    await connection.close()
    await wait_until(lambda: execution.readers.count == 0, "the caller has left")
    await open_gate(wire, "through")
    assert (await ended(wire, execution.id))["stdout"] == "through"


NAMED = [({"Idempotency-Key": "k"}, {}), ({}, {"id": "k"})]
"""The two ways to name a request: headers, and fields of the body."""
named = pytest.mark.parametrize(("headers", "fields"), NAMED, ids=("key", "id"))


@named
async def test_command_with_a_key_or_an_id_waits_for_its_caller_to_come_back(
    wire: Wire, headers: dict[str, str], fields: dict[str, str]
) -> None:
    os.mkfifo(wire.base_dir / "gate")
    body = json.dumps({"command": "echo > begun; cat gate", **fields}).encode()
    request = request_bytes("POST", URL, body, JSON | headers)
    first = await wire.connect()
    await first.send(request)
    await wait_until(exists(wire, "begun"), "it runs")
    (execution,) = wire.live()
    await first.close()
    await wait_until(lambda: execution.readers.count == 0, "the caller has left")
    second = await wire.connect()
    await second.send(request)
    await wait_until(lambda: execution.readers.count == 1, "the caller is back")
    await open_gate(wire, "through")
    answer = await second.receive()
    assert (answer.json()["stdout"], answer.headers["Idempotent-Replayed"]) == ("through", "true")


@named
async def test_command_with_a_key_or_an_id_ends_when_nobody_comes_back(
    serve: Serve, headers: dict[str, str], fields: dict[str, str]
) -> None:
    wire = await serve(reattach_seconds=0.1)
    connection = await wire.connect()
    body = json.dumps({"command": f"echo > begun; {SLEEP}", **fields}).encode()
    await connection.send(request_bytes("POST", URL, body, JSON | headers))
    await wait_until(exists(wire, "begun"), "it runs")
    (execution,) = wire.live()
    await connection.close()
    assert (await ended(wire, execution.id))["exit_reason"] == "client_disconnected"


# --- exactly once


async def test_detached_command_that_is_sent_again_is_shown_as_it_is(wire: Wire) -> None:
    execution_id = await detached(wire, "echo hi", id="mine")
    await ended(wire, execution_id)
    answer = await post(wire, command="echo hi", id="mine", detach=True)
    assert (answer.http_status, answer.json()["stdout"]) == (200, "hi\n")


# --- places


async def test_wait_for_a_place_that_is_too_long_is_429(serve: Serve) -> None:
    wire = await serve(max_running=1, queue_wait_seconds=0.2)
    await detached(wire, SLEEP)
    for accept in ("application/json", "text/event-stream"):
        answer = await post(wire, {"Accept": accept}, command="true")
        assert (answer.http_status, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
        assert answer.headers["Retry-After"] == "1"


async def test_full_queue_is_429(serve: Serve) -> None:
    wire = await serve(max_running=1, max_queued=0)
    await detached(wire, SLEEP)
    answer = await post(wire, command="true", detach=True)
    assert (answer.http_status, answer.json()["code"], answer.headers["Retry-After"]) == (
        429,
        "RESOURCE_EXHAUSTED",
        "1",
    )


async def test_draining_daemon_takes_nothing(own_wire: Wire) -> None:
    await own_wire.engine.drain()
    answer = await post(own_wire, command="true")
    assert (answer.http_status, answer.json()["code"]) == (503, "UNAVAILABLE")


# --- listing


async def test_list_can_be_of_one_state(wire: Wire) -> None:
    await ran(wire, "true")
    running = await detached(wire, SLEEP)
    items = (await wire.request("GET", f"{URL}?state=RUNNING")).json()["items"]
    assert [(item["id"], item["state"], item["exit_code"], item["ended_at"]) for item in items] == [
        (running, "RUNNING", None, None)
    ]
    assert (await wire.request("GET", f"{URL}?state=QUEUED")).json() == {
        "items": [],
        "next_cursor": None,
    }


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/events"),
        ("GET", "/stdout"),
        ("POST", "/kill"),
        ("POST", "/stdin"),
        ("GET", "/attach"),
    ],
)
async def test_unknown_id_is_404(wire: Wire, method: str, rest: str) -> None:
    answer = await wire.request(method, f"{URL}/nobody{rest}")
    assert (answer.http_status, answer.json()["code"]) == (404, "NOT_FOUND")


# --- bytes


@pytest.mark.parametrize(
    ("asked", "expected"), [("bytes=0-3", "0123"), ("bytes=8-", "89"), ("bytes=-1", "9")]
)
async def test_range_of_a_stream_can_be_had(wire: Wire, asked: str, expected: str) -> None:
    execution_id = (await ran(wire, "printf 0123456789"))["id"]
    answer = await get(wire, execution_id, "/stdout", {"Range": asked})
    assert (answer.http_status, answer.body.decode()) == (206, expected)
    first = int(expected[0])
    assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(expected) - 1}/10"


async def test_range_after_the_end_is_416_with_the_size(wire: Wire) -> None:
    execution_id = (await ran(wire, "printf 0123456789"))["id"]
    answer = await get(wire, execution_id, "/stdout", {"Range": "bytes=10-"})
    assert (answer.http_status, answer.headers["Content-Range"]) == (416, "bytes */10")


@pytest.mark.parametrize("what", ["removed", "cut short"])
async def test_bytes_that_the_disk_has_lost_are_416_and_a_hole_in_streams(
    wire: Wire, what: str
) -> None:
    body = await ran(wire, BEYOND_THE_LOG)
    (file,) = (Path(wire.engine.config.state_dir) / "logs").iterdir()
    kept = 0 if what == "removed" else 70_000
    file.unlink() if what == "removed" else os.truncate(file, kept)
    answer = await get(wire, body["id"], "/stdout")
    assert (answer.http_status, answer.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    hole = answer.json()["details"]["hole"]
    assert hole["offset"] == max(kept, wire.engine.config.stream_memory_bytes // 2)
    assert (
        await get(
            wire, body["id"], "/stdout", {"Range": f"bytes={hole['offset'] + hole['size_bytes']}-"}
        )
    ).http_status == 206
    events = (
        (await get(wire, body["id"], "/events", {"Accept": "application/x-ndjson"}))
        .body.decode()
        .splitlines()
    )
    dropped = [event for event in map(json.loads, events) if event["event"] == "dropped"]
    assert (dropped[0]["offset"], sum(event["size_bytes"] for event in dropped)) == (
        hole["offset"],
        hole["size_bytes"],
    )


# --- input


async def test_input_goes_no_faster_than_the_program_reads(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    execution_id = await detached(wire, "cat gate; wc -c", stdin_open=True)
    size = 8_000_000
    connection = await wire.connect()
    await connection.send(
        request_bytes(
            "POST", f"{URL}/{execution_id}/stdin?eof=true", b"", {"Content-Length": str(size)}
        )
    )
    sending = asyncio.ensure_future(connection.send(b"x" * size))
    await open_gate(wire)
    await sending
    assert (await connection.receive()).json() == {"written_bytes": size}
    assert (await ended(wire, execution_id))["stdout"].strip() == str(size)


@pytest.mark.parametrize("fields", [{}, {"stdin": "all of it"}])
async def test_input_for_a_program_that_has_none_open_is_a_conflict(
    wire: Wire, fields: dict[str, str]
) -> None:
    execution_id = await detached(wire, SLEEP, **fields)
    answer = await wire.request("POST", f"{URL}/{execution_id}/stdin", b"more")
    assert (answer.http_status, answer.json()["code"]) == (409, "CONFLICT")


async def test_input_for_a_program_that_ends_meanwhile_is_a_conflict_that_counts(
    wire: Wire,
) -> None:
    execution_id = await detached(
        wire, "head -c 1; exec <&-; echo closed; sleep 1000", stdin_open=True
    )
    answer = await wire.request("POST", f"{URL}/{execution_id}/stdin", b"x" * 4_000_000)
    assert (answer.http_status, answer.json()["code"]) == (409, "CONFLICT")
    assert 0 <= answer.json()["details"]["written_bytes"] < 4_000_000


# --- ending


async def test_signal_for_a_program_that_has_ended_is_a_conflict(wire: Wire) -> None:
    execution_id = (await ran(wire, "true"))["id"]
    answer = await act(wire, execution_id, "signal", signal="SIGINT")
    assert (answer.http_status, answer.json()["code"]) == (409, "CONFLICT")


@pytest.mark.parametrize(
    "fields", [{}, {"signal": "NOPE"}, {"signal": 0}, {"signal": "INT", "pid": 1}]
)
async def test_signal_that_does_not_exist_is_refused(wire: Wire, fields: dict[str, Any]) -> None:
    execution_id = await detached(wire, SLEEP)
    answer = await act(wire, execution_id, "signal", **fields)
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_kill_of_what_has_ended_is_its_record(wire: Wire) -> None:
    body = await ran(wire, "echo hi")
    answer = await wire.request("POST", f"{URL}/{body['id']}/kill")
    assert (answer.http_status, answer.json()) == (200, body)


# --- terminals


async def test_terminal_has_the_size_asked_for_and_can_be_resized(wire: Wire) -> None:
    command = "trap 'stty size; exit' WINCH; stty size; echo > ready; while :; do sleep 0.01; done"
    execution_id = await detached(wire, command, pty={"cols": 100, "rows": 30})
    await wait_until(exists(wire, "ready"), "the trap is set")
    assert (await act(wire, execution_id, "resize", cols=120, rows=40)).http_status == 204
    lines = (await ended(wire, execution_id))["stdout"].split("\r\n")
    # execd reports the resize. Some kernels report the resize too, so the program may print twice.
    assert (lines[0], {*lines[1:]}) == ("30 100", {"40 120", ""})


@pytest.mark.parametrize(
    "fields", [{"cols": 80}, {"cols": -1, "rows": 24}, {"cols": 80, "rows": 70_000}]
)
async def test_size_without_sense_is_refused(wire: Wire, fields: dict[str, int]) -> None:
    execution_id = await detached(wire, SLEEP, pty={})
    answer = await act(wire, execution_id, "resize", **fields)
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_resize_without_a_terminal_is_a_conflict(wire: Wire) -> None:
    execution_id = await detached(wire, SLEEP)
    answer = await act(wire, execution_id, "resize", cols=80, rows=24)
    assert (answer.http_status, answer.json()["code"]) == (409, "CONFLICT")


async def test_accepted_command_whose_wait_was_too_long_is_429_until_it_is_repeated(
    serve: Serve,
) -> None:
    wire = await serve(max_running=1, queue_wait_seconds=1.0)
    blocker = await detached(wire, SLEEP)
    waiting = await post(wire, command="echo ran", detach=True, id="waits")
    assert (waiting.http_status, waiting.json()["state"]) == (202, "QUEUED")
    for rest in "?wait_seconds=20", "", "/events":
        answer = await get(wire, "waits", rest)
        assert (answer.http_status, answer.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
    assert (await wire.request("DELETE", f"{URL}/{blocker}")).http_status == 204
    assert (await post(wire, command="echo ran", detach=True, id="waits")).http_status == 202
    assert (await ended(wire, "waits"))["stdout"] == "ran\n"


async def test_refusal_by_a_full_queue_is_logged_by_its_own_name(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "execd.executions")
    wire = await serve(max_running=1, queue_wait_seconds=0.1)
    await detached(wire, SLEEP)
    await post(wire, command="true", detach=True, id="waits")
    assert (await get(wire, "waits", "?wait_seconds=20")).http_status == 429

    def lines() -> list[dict[str, Any]]:
        return [vars(line) for line in caplog.records if line.name == "execd.executions"]

    await wait_until(lines, "the end is in the log")
    (line,) = lines()
    assert (line["execution_id"], line["exit_reason"], line["error_code"], line["exit_code"]) == (
        "waits",
        None,
        "RESOURCE_EXHAUSTED",
        125,
    )


@pytest.mark.parametrize("how", ["kill", "DELETE"])
async def test_what_an_ended_command_left_running_ends_with_kill_and_delete(
    serve: Serve, how: str
) -> None:
    wire = await serve(cancel_grace_seconds=0.1)
    script = (
        "(trap '' TERM; exec setsid sh -c 'echo $$ > left; exec sleep 1000') > /dev/null 2>&1 & "
        "while ! test -s left; do :; done"
    )
    body = await ran(wire, script, id="left")
    token = f"left-{how}"
    assert (await ran(wire, "kill -0 $(cat left)", id=token))["exit_code"] == 0
    if how == "kill":
        answers = await asyncio.gather(
            *(act(wire, "left", "kill", grace_seconds=0.1) for _ in range(2))
        )
        assert [answer.http_status for answer in answers] == [200, 200]
        assert (answers[0].json()["exit_reason"], answers[0].json()["ended_at"]) == (
            "exited",
            body["ended_at"],
        )
    else:
        assert (await wire.request("DELETE", f"{URL}/left")).http_status == 204
    assert (await ran(wire, "kill -0 $(cat left)"))["exit_code"] == 1
    assert wire.engine.warden._children == {}


async def test_nothing_is_invented_of_a_command_that_never_ran(serve: Serve) -> None:
    wire = await serve(max_running=1, reattach_seconds=0.1)
    await detached(wire, SLEEP)
    for how in "kill", "leave":
        connection = await wire.connect()
        fields = {"command": "echo never", "id": how, "detach": how == "kill"}
        await connection.send(request_bytes("POST", URL, json.dumps(fields).encode(), JSON))
        await wait_until(lambda name=how: wire.engine._registry.get(name), "it waits")  # type: ignore[misc]  # bound now
        if how == "kill":
            assert (await act(wire, how, "kill")).http_status == 200
        await connection.close()
        body = await ended(wire, how)
        assert (body["exit_code"], body["signal"], body["started_at"]) == (125, None, None)
        assert body["usage"]["processes"] is None
        assert body["exit_reason"] in ("canceled", "client_disconnected")


async def test_command_that_could_not_be_started_has_no_started_event(wire: Wire) -> None:
    assert (await post(wire, argv=["/nowhere"], id="none")).json()["exit_reason"] == "spawn_failed"
    answer = await get(wire, "none", "/events", {"Accept": "application/x-ndjson"})
    assert [json.loads(line)["event"] for line in answer.body.splitlines()] == ["exited"]


async def test_list_has_of_long_commands_what_they_are_known_by(wire: Wire) -> None:
    long = "echo é" + "é" * 5000
    await ran(wire, f": {long}", id="long")
    await post(wire, argv=["true", "short", long, "more"], id="argv")
    await post(wire, argv=["true", *"x" * 5000], id="many")
    await ran(wire, ": short", id="short")
    items = {item["id"]: item for item in (await wire.request("GET", URL)).json()["items"]}
    assert items["short"]["command"] == ": short"
    assert "command_truncated" not in items["short"]
    for name in "long", "argv", "many":
        assert items[name]["command_truncated"] is True
    assert items["long"]["command"].startswith(": echo éé")
    assert items["long"]["command"].endswith("é…")
    assert items["argv"]["argv"][:2] == ["true", "short"]
    assert items["argv"]["argv"][2].endswith("é…")
    assert items["many"]["argv"][-1] == "…"
    assert all(
        len(json.dumps(item, ensure_ascii=False).encode()) < 15_000 for item in items.values()
    )
    assert (await get(wire, "long")).json()["command"] == f": {long}"


# --- early headers


async def test_long_reply_has_early_headers_and_spaces_before_the_execution(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.05)
    os.mkfifo(wire.base_dir / "gate")
    connection = await wire.connect()
    body = json.dumps({"command": "cat gate", "id": "patient"}).encode()
    await connection.send(request_bytes("POST", URL, body, JSON))
    async with asyncio.timeout(10):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.reader.readuntil(b" \r\n") == b"1\r\n \r\n"
        await open_gate(wire, "through")
        rest = await connection.reader.readuntil(b"0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Location: /v1/executions/patient\r\n" in head
    assert b'"stdout":"through"' in rest


async def test_soft_timeout_after_early_headers_tells_the_state_in_the_body(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.05)
    answer = await post(wire, command=SLEEP, soft_timeout_seconds=0.2)
    assert answer.http_status == 200
    assert answer.json()["state"] in ("QUEUED", "RUNNING")


async def test_kill_with_a_long_grace_has_early_headers(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.05)
    execution_id = await detached(wire, "trap '' TERM; echo; sleep 1000; sleep 1000")
    execution = wire.engine.get(execution_id)
    await wait_until(lambda: execution.view.total_bytes("stdout") > 0, "the trap is set")
    answer = await act(wire, execution_id, "kill", grace_seconds=1.5)
    assert (answer.http_status, answer.json()["exit_reason"]) == (200, "canceled")
    assert answer.body.startswith(b" ")


async def test_timer_that_fires_a_moment_early_sends_no_early_headers(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fire_early(delay: float | None) -> asyncio.Timeout:
        now = asyncio.get_running_loop().time()
        return asyncio.Timeout(None if delay is None else now + delay - 0.05)

    monkeypatch.setattr(early_headers.asyncio, "timeout", fire_early)
    answer = await post(wire, command=SLEEP, soft_timeout_seconds=0.1)
    assert answer.http_status == 202
    assert answer.json()["state"] in ("QUEUED", "RUNNING")
    assert "Content-Length" in answer.headers
