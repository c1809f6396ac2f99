"""Commands against a daemon."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from execd_client import (
    AsyncExecd,
    CommandFailed,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    Event,
    Execd,
    IdempotencyMismatch,
    InvalidArgument,
    NotFound,
    Unreachable,
    executions,
    transfers,
    watching,
)
from execd_client.calls import Patience
from execd_client.effects import NextChunk, NextEvent, Open, Opened
from tests.client.conftest import AT_ONCE
from tests.client.plays import Clock, play, reply
from tests.conformance.target import Target, wait_until
from tests.free_port import free_port

RESULT: dict[str, Any] = {
    **dict.fromkeys(
        ("limits", "pid", "started_at", "ended_at", "duration_seconds", "exit_code", "signal")
    ),
    **dict.fromkeys(("exit_reason", "message", "usage", "killed", "survivors", "truncated")),
    "id": "x",
    "cwd": "/",
    "created_at": "",
    "timed_out": False,
}


def test_a_run_has_what_the_command_did(sandbox: Execd) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert (result.exit_reason, result.ok, result.timed_out) == ("exited", False, False)
    with pytest.raises(CommandFailed, match="exit code 3\nerr") as caught:
        result.check()
    assert caught.value.result is result
    assert sandbox.run(["printf", r"\377"]).stdout_bytes == b"\xff"


def test_options_reach_the_command(sandbox: Execd, outside: str) -> None:
    result = sandbox.run(
        ["/bin/sh", "-c", "cat; pwd; echo $A; ulimit -n"],
        stdin=b"\xfe",
        cwd=outside,
        env={"A": "1"},
        open_files=100,
    )
    assert result.stdout_bytes == b"\xfe" + f"{outside}\n1\n100\n".encode()
    assert sandbox.run("cat", stdin="text").stdout == "text"
    assert sandbox.run("stty size", pty=(100, 30)).stdout == "30 100\r\n"
    assert sandbox.run("sleep 60", timeout_seconds=0.2).exit_reason == "timeout"


def test_a_mistake_is_an_error_that_names_the_field(sandbox: Execd) -> None:
    with pytest.raises(InvalidArgument, match="timeout_seconds"):
        sandbox.run("true", timeout_seconds=-1)


@AT_ONCE
def test_an_option_that_does_not_exist_is_named_with_those_that_do(sandbox: Execd) -> None:
    wrong: dict[str, Any] = {"timeout": 3}
    with sandbox.sessions.create() as session:
        for call in (
            lambda: sandbox.run("true", **wrong),
            lambda: sandbox.start("true", **wrong),
            lambda: session.run("1", **wrong),
            lambda: sandbox.sessions.create(**wrong),
        ):
            with pytest.raises(TypeError, match="no such option: timeout; the options are "):
                call()


@AT_ONCE
def test_events_come_while_the_command_runs(sandbox: Execd, target: Target) -> None:
    told: list[Event] = []

    def go_on(event: Event) -> None:
        told.append(event)
        if event.data == b"waiting\n":
            sandbox.files.write("go-on", b"")

    command = "rm -f go-on; echo waiting; while [ ! -e go-on ]; do sleep 0.05; done; echo done"
    assert sandbox.run(command, on_event=go_on).stdout == "waiting\ndone\n"
    assert [event.kind for event in told] == ["started", "stdout", "stdout", "exited"]


def test_a_stream_ends_with_the_result(sandbox: Execd) -> None:
    events = list(sandbox.stream("echo one; sleep 0.1; echo two; exit 4"))
    assert b"".join(event.data for event in events) == b"one\ntwo\n"
    assert events[-1].result is not None
    assert events[-1].result.exit_code == 4


def test_a_handle_gives_input_waits_and_reads_again(sandbox: Execd) -> None:
    handle = sandbox.start("cat; echo end", stdin_open=True)
    assert handle.stdin("typed\n") == 6
    handle.stdin(eof=True)
    assert handle.wait().stdout == "typed\nend\n"
    events = list(handle.events())
    kinds = [event.kind for event in events if event.kind != "stdout"]
    assert kinds == ["started", "exited"]  # a late daemon reads both lines in a single piece
    assert b"".join(event.data for event in events) == b"typed\nend\n"
    assert (handle.output(start=6), handle.output("stderr")) == (b"end\n", b"")
    again = sandbox.handle(handle.id)
    last_but_one = events[-2].sequence
    assert [event.kind for event in again.events(after=last_but_one)] == ["exited"]
    again.forget()
    with pytest.raises(NotFound):
        again.result()


def test_a_handle_signals_and_kills(sandbox: Execd) -> None:
    handle = sandbox.start("trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: handle.output() == b"ready\n", 30, "the trap is set")
    handle.signal("SIGUSR1")
    assert handle.wait().exit_code == 7
    handle = sandbox.start("sleep 600")
    assert handle.id in [item.id for item in sandbox.list()]
    assert handle.kill(0.1).exit_reason == "canceled"
    with pytest.raises(Conflict):
        handle.signal("SIGUSR1")


def test_a_size_that_comes_after_the_end_of_the_program_loses_no_output(sandbox: Execd) -> None:
    handle = sandbox.start("echo done; exit 3", pty=(80, 24))
    handle.wait()
    with handle.terminal() as terminal:
        for _ in range(3):
            terminal.resize(100, 30)
        assert b"".join(iter(terminal.read, b"")) == b"done\r\n"
        terminal.resize(100, 30)
        assert terminal.result is not None
        assert terminal.result.exit_code == 3


def test_a_terminal_takes_bytes_and_sizes(sandbox: Execd) -> None:
    handle = sandbox.start(["/bin/sh"], pty=(80, 24))
    with handle.terminal() as terminal:
        terminal.resize(100, 30)
        terminal.write("stty size; exit 5\n")
        shown = b""
        while data := terminal.read():
            shown += data
        assert b"30 100" in shown
        assert terminal.result is not None
        assert terminal.result.exit_code == 5
        assert terminal.offset == len(shown)
    with handle.terminal(offset=len(shown)) as terminal:
        assert terminal.read() == b""
    handle = sandbox.start(["/bin/sh"], pty=True)
    handle.resize(120, 40)
    with handle.terminal() as terminal:
        terminal.write("stty size; exit\n")
        shown = b"".join(iter(terminal.read, b""))
    assert b"40 120" in shown


CONFLICT = reply(409, {"code": "CONFLICT", "message": "the program has not started yet"})


@pytest.mark.parametrize(
    ("states", "is_refused"),
    [
        (["QUEUED", "QUEUED"], False),
        (["QUEUED", "RUNNING"], False),
        (["RUNNING"], False),
        (["RUNNING", "RUNNING"], True),
        (["EXITED"], True),
    ],
)
def test_a_program_that_has_not_started_is_waited_for(states: list[str], is_refused: bool) -> None:
    """``states``: what execd says after each refusal; then the request is granted."""
    clock = Clock()
    left = iter(states)
    refusals = len(states)

    def answer(effect: Any) -> Any:
        nonlocal refusals
        if effect.request.method == "GET":
            return reply(200, {**RESULT, "state": next(left)})
        refusals -= 1
        return CONFLICT if refusals >= 0 else reply(204)

    plan = executions.resize("x", 80, 24, Patience(clock=clock))
    if is_refused:
        with pytest.raises(Conflict):
            play(plan, clock, answer)
    else:
        assert play(plan, clock, answer)[0] is None


def test_the_same_id_runs_once_and_another_request_is_refused(sandbox: Execd) -> None:
    name = str(uuid.uuid4())
    for _ in range(2):
        assert sandbox.run(f"echo run >> {name}; cat {name}", id=name).stdout == "run\n"
    with pytest.raises(IdempotencyMismatch):
        sandbox.run("something else", id=name)


def test_a_deadline_ends_the_call(sandbox: Execd) -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.5"):
        sandbox.run("sleep 30", deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        list(sandbox.stream("sleep 30", deadline_seconds=0.5))


LIVELY = "for n in $(seq 200); do echo $n; sleep 0.1; done"
"""Twenty seconds of output."""


@AT_ONCE
def test_a_deadline_ends_a_stream_that_is_lively(sandbox: Execd) -> None:
    with pytest.raises(DeadlineExceeded, match="deadline_seconds=1"):
        list(sandbox.stream(LIVELY, deadline_seconds=1))
    with pytest.raises(DeadlineExceeded, match="deadline_seconds=1"):
        sandbox.run(LIVELY, deadline_seconds=1, on_event=lambda _: None)


@AT_ONCE
def test_a_deadline_ends_a_stream_that_has_only_heartbeats(sandbox: Execd, url: str) -> None:
    """A heartbeat comes every 5 s."""
    handle = sandbox.start("sleep 600")
    with Execd(url, deadline_seconds=6) as client, pytest.raises(DeadlineExceeded):
        list(client.handle(handle.id).events())
    assert handle.result().state == "RUNNING"
    handle.kill(0)


@AT_ONCE
async def test_a_deadline_ends_the_streams_of_the_async_client(sandbox: Execd, url: str) -> None:
    handle = sandbox.start("sleep 600")
    async with AsyncExecd(url, deadline_seconds=6) as client:
        with pytest.raises(DeadlineExceeded):
            [event async for event in client.handle(handle.id).events()]
        with pytest.raises(DeadlineExceeded):
            [event async for event in client.stream(LIVELY, deadline_seconds=1)]
    assert handle.result().state == "RUNNING"
    handle.kill(0)


@pytest.mark.parametrize("which", ["follow", "chunks", "changes"])
def test_a_deadline_ends_a_stream_between_two_pieces(which: str) -> None:
    clock = Clock()
    patience = Patience(deadline_seconds=60, clock=clock)
    plans = {
        "follow": lambda: executions.follow("/x", {"id": "x"}, patience),
        "chunks": lambda: transfers.chunks("x", patience),
        "changes": lambda: watching.follow_changes(".", False, None, patience),
    }

    def answer(effect: Any) -> Any:
        if isinstance(effect, Open):
            assert effect.request.body_seconds == 1060 - clock.seconds
            kind = "application/octet-stream" if which == "chunks" else "text/event-stream"
            return Opened(200, {"content-type": kind, "content-length": "1000000"}, 1)
        if not isinstance(effect, NextChunk | NextEvent):
            return None
        clock.seconds += 1
        return b"x" if isinstance(effect, NextChunk) else ("overflow", "", "{}")

    with pytest.raises(DeadlineExceeded, match="deadline_seconds=60"):
        play(plans[which](), clock, answer)
    assert clock.seconds == 1060


def test_a_soft_timeout_is_a_result_that_still_runs(sandbox: Execd) -> None:
    sandbox.run("mkfifo soft-gate")
    result = sandbox.run("echo a; read line < soft-gate; echo b", soft_timeout_seconds=2.0)
    assert (result.state, result.exit_code) == ("RUNNING", None)
    sandbox.run("echo > soft-gate")
    assert sandbox.handle(result.id).wait().stdout == "a\nb\n"


def test_a_soft_timeout_does_not_go_with_events(sandbox: Execd) -> None:
    soft: dict[str, Any] = {"soft_timeout_seconds": 1}
    for call in (
        lambda: sandbox.run("true", on_event=print, **soft),
        lambda: list(sandbox.stream("true", **soft)),
        lambda: sandbox.start("true", **soft),
    ):
        with pytest.raises(TypeError, match="no such option: soft_timeout_seconds"):
            call()


def test_nobody_there_is_unreachable() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        Execd(url, retry_seconds=0.2) as client,
        pytest.raises(Unreachable, match=r"0\.2 s"),
    ):
        client.run("true")
    with pytest.raises(ValueError, match="url"):
        Execd("localhost:8888")


@pytest.mark.parametrize("wrong", [" x", "x\n", "ä", "x\ty"])
def test_a_token_or_a_header_that_cannot_be_sent_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match="token: "):
        Execd(token=wrong)
    with pytest.raises(ValueError, match="headers: X-A: "):
        AsyncExecd(headers={"X-A": wrong})


def test_input_that_may_have_arrived_is_not_sent_again(target: Target) -> None:
    """A server that takes a request and closes the connection."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            taken.append(connection.recv(65536))
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            Execd(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(ConnectionLost, match="may have carried out"),
        ):
            client.handle("x").stdin("typed")
        thread.join()
        assert len(taken) == 1


async def test_the_async_client_runs_streams_and_types(target: Target) -> None:
    async with AsyncExecd(target.url) as sandbox:
        assert (await sandbox.run("echo hi")).check().stdout == "hi\n"
        kinds = [event.kind async for event in sandbox.stream("echo hi")]
        assert kinds == ["started", "stdout", "exited"]
        async for event in sandbox.stream("echo hi; sleep 600"):
            if event.kind == "stdout":
                break  # the iteration ends early
        handle = await sandbox.start(["/bin/sh"], pty=(80, 24))
        async with await handle.terminal() as terminal:
            await terminal.write("exit 6\n")
            while await terminal.read():
                pass
        assert (await handle.wait()).exit_code == 6
        assert (await sandbox.stats()).ready
        assert (await sandbox.capabilities()).sessions.ready
