"""Bash sessions over the wire. The state itself: tests/engine/test_bash_sessions.py."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from execd.model import State
from tests.api.conftest import wait_until
from wings.opensandbox.tests.conftest import decode_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from wings.opensandbox.tests.conftest import OpenSandbox, Ran, Serve


async def make(opensandbox: OpenSandbox, **fields: Any) -> str:
    return str((await opensandbox.post("/session", fields))["session_id"])


async def run_in(opensandbox: OpenSandbox, session: str, command: str, **fields: Any) -> Ran:
    return await opensandbox.stream(f"/session/{session}/run", {"command": command, **fields})


async def test_session_keeps_directory_variables_and_functions(opensandbox: OpenSandbox) -> None:
    session = await make(opensandbox)
    await run_in(opensandbox, session, "cd /tmp; export A=1; B=2; f() { echo F$B; }")
    ran = await run_in(opensandbox, session, "pwd; sh -c 'echo $A$B'; f; exit 4")
    assert (ran.stdout, ran.exit_code) == ("/tmp\n1\nF2\n", 4)
    assert ran.id == session


async def test_standard_error_is_in_the_output_in_order(opensandbox: OpenSandbox) -> None:
    session = await make(opensandbox)
    ran = await run_in(opensandbox, session, "echo a; echo b >&2; echo c")
    assert (ran.stdout, ran.stderr) == ("a\nb\nc\n", "")


async def test_session_begins_in_a_directory_that_is_made(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    session = await make(opensandbox, cwd=f"{tmp_path}/new/one")
    assert (await run_in(opensandbox, session, "pwd")).stdout == f"{tmp_path}/new/one\n"
    assert (await run_in(opensandbox, session, "pwd", cwd="/")).stdout == "/\n"
    assert (await run_in(opensandbox, session, "pwd")).stdout == "/\n"


async def test_deleted_session_is_gone_with_its_run(opensandbox: OpenSandbox) -> None:
    session = await make(opensandbox)
    running = opensandbox.client.post(
        f"/session/{session}/run", json={"command": "echo x; sleep 1000"}
    )
    async with running as response:
        await response.content.readuntil(b'"x')
        [execution] = opensandbox.live()
        assert (await opensandbox.request("DELETE", f"/session/{session}")).http_status == 200
        assert execution.state is State.EXITED
        assert b'"CommandCanceled"' in await response.read()
    for method, path in (("DELETE", f"/session/{session}"), ("POST", f"/session/{session}/run")):
        body = {"command": "true"} if method == "POST" else None
        assert (await opensandbox.refused(method, path, body))[:2] == (404, "CONTEXT_NOT_FOUND")


async def test_interrupt_of_a_session_ends_its_run_only(opensandbox: OpenSandbox) -> None:
    session = await make(opensandbox)
    path = f"/command?id={session}"
    assert (await opensandbox.refused("DELETE", path))[0] == 409
    running = opensandbox.client.post(
        f"/session/{session}/run", json={"command": "echo x; sleep 1000"}
    )
    async with running as response:
        await response.content.readuntil(b'"x')
        assert (await opensandbox.request("DELETE", path)).http_status == 200
        await response.read()
    assert (await run_in(opensandbox, session, "echo on")).stdout == "on\n"


async def test_runs_of_a_session_follow_each_other(opensandbox: OpenSandbox) -> None:
    session = await make(opensandbox)
    running = opensandbox.client.post(
        f"/session/{session}/run",
        json={"command": "mkfifo gate; echo x; read line < gate; A=$line"},
    )
    async with running as response:
        await response.content.readuntil(b'"x')
        second = opensandbox.client.post(f"/session/{session}/run", json={"command": "echo [$A]"})
        await opensandbox.run("echo first > gate")
        async with second as answer:
            assert b"[first]" in await answer.read()
        await response.read()
    await wait_until(lambda: not opensandbox.live(), "both runs have ended")


BLOCKED = "mkfifo gate; echo x; read line < gate"
IN_THE_WAY = "another run of the same session has the session's turn"


@contextlib.asynccontextmanager
async def busy_session(opensandbox: OpenSandbox) -> AsyncIterator[str]:
    """A session whose run ends when something is written to the file ``gate``."""
    session = await make(opensandbox)
    path = f"/session/{session}/run"
    async with opensandbox.client.post(path, json={"command": BLOCKED}) as response:
        await response.content.readuntil(b'"x')
        yield session
        await opensandbox.client.delete(f"/session/{session}")
        await response.read()


async def test_run_that_waits_for_its_turn_sends_pings(
    opensandbox: OpenSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd_opensandbox.event_reply.PING_SECONDS", 0.05)
    async with (
        busy_session(opensandbox) as session,
        opensandbox.client.post(f"/session/{session}/run", json={"command": "echo on"}) as second,
    ):
        began = b"".join([await second.content.readuntil(b"\n\n") for _ in range(4)])
        kinds = [event["type"] for event in decode_frames(began)]
        assert kinds == ["init", "ping", "ping", "ping"]
        await opensandbox.run("echo > gate")
        events = decode_frames(await second.read())
    assert [event["type"] for event in events if event["type"] != "ping"] == [
        "stdout", "execution_complete",
    ]  # fmt: skip


async def test_run_whose_turn_does_not_come_in_time_names_the_cause(
    serve_opensandbox: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd_opensandbox.event_reply.PING_SECONDS", 0.05)
    opensandbox = await serve_opensandbox(queue_wait_seconds=0.3)
    async with busy_session(opensandbox) as session:
        ran = await run_in(opensandbox, session, "echo never")
    assert (ran.exit_code, ran.stdout) == (125, "")
    [message] = ran.one("error")["error"]["traceback"]
    assert IN_THE_WAY in message


async def test_timeout_of_a_run_counts_the_wait_for_its_turn(opensandbox: OpenSandbox) -> None:
    async with busy_session(opensandbox) as session:
        body = {"command": "echo never", "timeout": 100}
        refusal = await opensandbox.refused("POST", f"/session/{session}/run", body)
    assert refusal[0] == 429
    assert IN_THE_WAY in refusal[2]


async def test_too_many_waiting_runs_are_refused(serve_opensandbox: Serve) -> None:
    opensandbox = await serve_opensandbox(max_queued=0)
    async with busy_session(opensandbox) as session:
        body = {"command": "echo never"}
        refusal = await opensandbox.refused("POST", f"/session/{session}/run", body)
    assert refusal[0] == 429
    assert "wait for the turns of their bash sessions" in refusal[2]


async def test_caller_that_leaves_while_waiting_leaves_no_run_behind(
    opensandbox: OpenSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd_opensandbox.event_reply.PING_SECONDS", 0.05)
    async with busy_session(opensandbox) as session:
        path = f"/session/{session}/run"
        async with opensandbox.client.post(path, json={"command": "touch made"}) as second:
            await second.content.readuntil(b"ping")
            [execution] = [one for one in opensandbox.live() if one.state is State.QUEUED]
        await execution.ended()
        await opensandbox.run("echo > gate")
    assert (await opensandbox.run("ls made")).exit_code != 0
