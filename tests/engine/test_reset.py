"""Resets of a real engine, in both shapes; tests/conformance/test_resets.py has the wire."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from execd.engine.entrypoint import Entrypoint
from execd.engine.episodes import EpisodeOver
from execd.engine.executions.command import code_program
from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.reset_outcome import ResetReply, ResetRequest, ResetStep
from execd.errors import IdempotencyMismatch, NotFound, Unavailable
from execd.files.checkpoints.shelf import Shelf
from execd.model import Command, ExitReason
from execd.proc import kernel_keys, kernel_traces
from tests.engine.conftest import finish, running, sh, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution

SHAPES = ["require", "off"]


@pytest.fixture(params=SHAPES)
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    """An engine with the checkpoint "start" of its base dir, which has a file. Without namespaces
    the traces of the machine would count, which has other users: see test_reset_faults.py."""
    if request.param == "off":
        monkeypatch.setattr(kernel_traces, "SHM", str(tmp_path / "shm"))
        monkeypatch.setattr(kernel_traces, "_system_v", lambda *_: ())
        monkeypatch.setattr(kernel_traces, "list_hidden_queues", frozenset)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "file").write_text("kept")
    async with running(tmp_path, namespaces=request.param) as engine:
        await engine.checkpoints.create("start", [str(tmp_path / "base")])
        yield engine


async def reset(
    engine: Engine, key: str | None = None, expected: str | None = None, **fields: Any
) -> ResetReply:
    answer = await engine.resets.reset(ResetRequest(**fields), key, expected)
    return msgspec.json.decode(answer, type=ResetReply)


def start(engine: Engine, script: str, **of_submission: Any) -> Execution:
    return engine.submit(Submission(shell_command(script), **of_submission)).execution


async def run_cell(engine: Engine, code: str, session_id: str = "s") -> Execution:
    command = Command(program=code_program(code))
    options = CellOptions(session_id=session_id, makes_session=True)
    return engine.submit(Submission(command, options)).execution


async def test_everything_that_ran_ends_and_the_files_are_as_before(
    sandbox: Engine, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    await sh(sandbox, "rm file; echo new > other; mkdir -p d/e; setsid sleep 1000 >&- 2>&- &")
    execution = start(sandbox, "sleep 1000")
    await execution.wait_started()
    done = await reset(sandbox)
    assert (done.clean, done.differences.items) == (True, [])
    assert execution.result is not None
    assert (execution.result.exit_reason, execution.result.any_exit_code) == ("reset", 137)
    assert [path.name for path in base.iterdir()] == ["file"]
    assert (base / "file").read_text() == "kept"
    assert done.ended.executions == 1
    assert done.ended.processes >= 2
    assert [step.name for step in done.steps] == list(ResetStep)
    assert done.scope.processes == ("namespace" if sandbox.warden.has_namespace else "sweep")
    assert done.scope.roots == [str(base)]
    assert (await sh(sandbox, "cat file")).text == "kept"


async def test_an_execution_that_waits_ends_as_reset_too(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1) as engine:
        await engine.checkpoints.create("start", [str(tmp_path / "base")])
        first, second = start(engine, "sleep 1000"), start(engine, "echo never")
        await first.wait_started()
        waiting = asyncio.ensure_future(finish(second))
        await asyncio.sleep(0)
        assert (await reset(engine)).clean
        outcome = await waiting
        assert (outcome.result.exit_reason, outcome.result.any_exit_code) == ("reset", 137)
        assert outcome.stdout == b""


async def test_sessions_and_their_generations_are_forgotten(sandbox: Engine) -> None:
    await (await run_cell(sandbox, "x = 1")).wait()
    cell = await run_cell(sandbox, "import time; time.sleep(1000)")
    await cell.wait_started()
    done = await reset(sandbox)
    assert (done.clean, done.ended.sessions) == (True, 1)
    assert cell.result is not None
    assert (cell.result.exit_reason, cell.result.any_exit_code) == ("reset", 137)
    assert len(sandbox.sessions) == 0
    again = await run_cell(sandbox, "x")
    assert (await again.wait()).exit_code == 1, "NameError"
    assert again.cell is not None
    assert (again.cell.generation, again.cell.state_lost) == (1, False)


async def test_bash_sessions_and_terminals_are_forgotten_with_their_state(sandbox: Engine) -> None:
    session = await sandbox.bash_sessions.create()
    await sandbox.bash_sessions.run(session, "x=1", shell_command("")).wait()
    terminal = sandbox.terminals.create()
    shell = sandbox.terminals.start(terminal, has_terminal=True, env={})
    await shell.wait_started()
    done = await reset(sandbox)
    assert (done.clean, done.ended.shells) == (True, 2)
    assert not os.path.exists(session.directory)
    assert sandbox.bash_sessions.list() == []
    with pytest.raises(NotFound):
        sandbox.terminals.get(terminal.id)


async def test_records_and_keys_are_forgotten(sandbox: Engine) -> None:
    first = start(sandbox, "echo once", key="k", payload=b"p")
    await finish(first)
    assert start(sandbox, "echo once", key="k", payload=b"p") is first
    assert (await reset(sandbox)).clean
    with pytest.raises(NotFound):
        sandbox.get(first.id)
    again = start(sandbox, "echo once", key="k", payload=b"p")
    assert again is not first
    assert (await finish(again)).text == "once"


async def test_kept_records_lose_their_keys(sandbox: Engine) -> None:
    first = start(sandbox, "echo once", key="k", payload=b"p")
    named = start(sandbox, "echo twice", execution_id="mine", payload=b"p")
    await finish(first)
    await finish(named)
    assert (await reset(sandbox, keep_records=True)).clean
    assert sandbox.get(first.id) is first
    assert (await first.view.excerpt("stdout", 100)).head == b"once\n"
    assert start(sandbox, "echo once", key="k", payload=b"p") is not first
    with pytest.raises(IdempotencyMismatch):
        start(sandbox, "echo twice", execution_id="mine", payload=b"p")


async def test_a_repeated_reset_gets_the_first_answer_and_another_request_is_refused(
    sandbox: Engine,
) -> None:
    first = await sandbox.resets.reset(ResetRequest(), "k", None)
    await sh(sandbox, "echo later > later")
    assert await sandbox.resets.reset(ResetRequest(), "k", "an episode that is over") == first
    assert (await sh(sandbox, "cat later")).text == "later"
    with pytest.raises(IdempotencyMismatch):
        await sandbox.resets.reset(ResetRequest(verify="content"), "k", None)


async def test_resets_that_come_together_run_one_after_another_or_as_one(sandbox: Engine) -> None:
    before = sandbox.episodes.record.number
    first, same, other = await asyncio.gather(
        reset(sandbox, "k"), reset(sandbox, "k"), reset(sandbox, "other")
    )
    assert first == same
    assert other.clean
    assert first.episode != other.episode
    assert sandbox.episodes.record.number == before + 2


async def test_a_reset_for_another_episode_does_nothing(sandbox: Engine) -> None:
    now = sandbox.episodes.current
    first, second = await asyncio.gather(
        reset(sandbox, "a", now), reset(sandbox, "b", now), return_exceptions=True
    )
    assert isinstance(first, ResetReply)
    assert isinstance(second, EpisodeOver)
    with pytest.raises(EpisodeOver):
        await reset(sandbox, "c", now)
    assert sandbox.episodes.current == first.episode


async def test_a_reset_without_its_checkpoint_says_how_to_make_one(engine: Engine) -> None:
    with pytest.raises(NotFound, match="--checkpoint-at-start"):
        await reset(engine)
    assert not engine.episodes.is_closed


async def test_nothing_is_started_while_a_reset_runs(sandbox: Engine) -> None:
    seen: list[str] = []

    async def try_to_run() -> None:
        assert sandbox.obstacle is not None
        seen.append(sandbox.obstacle.cause)
        with pytest.raises(Unavailable):
            start(sandbox, "echo never")

    sandbox.on_reset(try_to_run)
    assert (await reset(sandbox)).clean
    assert seen == ["reset"]
    assert sandbox.obstacle is None


async def test_a_step_that_fails_is_a_difference_and_the_sandbox_serves_on(
    sandbox: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(sandbox.checkpoints, "restore", fail)
    await sh(sandbox, "rm file")
    done = await reset(sandbox)
    assert not done.clean
    assert {item.kind for item in done.differences.items} == {"step", "file"}
    assert "no disk" in done.differences.items[0].message
    assert (await sh(sandbox, "echo served")).text == "served"


async def test_a_later_checkpoint_that_cannot_be_removed_is_a_difference(
    sandbox: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.checkpoints.create("later", ["."])

    def fail(*_: object) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(Shelf, "remove", fail)
        done = await reset(sandbox)
    [item] = done.differences.items
    assert (item.kind, "'later'" in item.message, "no disk" in item.message) == ("step", True, True)
    assert (await reset(sandbox)).clean
    assert [each.id for each in sandbox.checkpoints.list()] == ["start"]


async def test_a_warden_that_cannot_be_started_is_a_difference_and_comes_later(
    sandbox: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = sandbox.warden._launch

    def fail(_end: object) -> Any:
        monkeypatch.setattr(sandbox.warden, "_launch", begin)
        raise OSError("no processes")

    monkeypatch.setattr(sandbox.warden, "_launch", fail)
    done = await reset(sandbox)
    assert [item.kind for item in done.differences.items] == ["warden"]
    await wait_until_async(sandbox.warden.up.is_set)
    assert (await sh(sandbox, "echo served")).text == "served"


async def test_a_replaced_warden_is_no_loss(sandbox: Engine) -> None:
    for _ in range(3):
        assert (await reset(sandbox)).clean
    assert sandbox.warden.restarts == 0


async def test_a_warden_that_user_code_kills_meanwhile_changes_nothing(sandbox: Engine) -> None:
    started = sandbox.warden.started
    assert started is not None

    async def kill() -> None:
        os.kill(started.pid, 9)

    sandbox.on_reset(kill)
    assert (await reset(sandbox)).clean
    assert (await sh(sandbox, "echo served")).text == "served"


async def test_a_file_operation_of_the_former_episode_ends_first(sandbox: Engine) -> None:
    order: list[str] = []
    waits_for_it = threading.Event()

    def work() -> None:
        waits_for_it.wait(60)
        order.append("operation")

    async def settle(within_seconds: float) -> bool:
        waits_for_it.set()
        return await original_settle(within_seconds)

    original_settle = sandbox.files.settle
    sandbox.files.settle = settle  # type: ignore[method-assign]
    caller = asyncio.ensure_future(sandbox.files.run(work))
    await asyncio.sleep(0)
    caller.cancel()  # as the reset cancels the request

    async def restore(*arguments: Any) -> Any:
        order.append("restore")
        return await original(*arguments)

    original = sandbox.checkpoints.restore
    sandbox.checkpoints.restore = restore  # type: ignore[method-assign]
    assert (await reset(sandbox)).clean
    assert order == ["operation", "restore"]


async def test_the_image_s_program_starts_anew_and_its_end_is_not_the_daemon_s(
    sandbox: Engine, tmp_path: Path
) -> None:
    script = 'echo $$ >> "$1"; exec sleep 1000'
    entrypoint = Entrypoint(["sh", "-c", script, "sh", str(tmp_path / "starts")], 1024)
    await sandbox.start_entrypoint(entrypoint, {"PATH": os.environ["PATH"]})
    await wait_until_async((tmp_path / "starts").exists)
    assert (await reset(sandbox)).clean
    await wait_until_async(lambda: len((tmp_path / "starts").read_text().split()) == 2)
    assert not entrypoint.ended.done()
    entrypoint.forward(15)
    await wait_until_async(entrypoint.ended.done)
    assert entrypoint.ended.result() == 128 + 15


@pytest.mark.parametrize("named", ["path", "name"])
async def test_an_image_s_program_that_cannot_start_again_is_named_and_ends_nothing(
    sandbox: Engine, tmp_path: Path, named: str
) -> None:
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho $$ >> "$1"; exec sleep 1000')
    program.chmod(0o755)
    starts = tmp_path / "starts"
    word = str(program) if named == "path" else "program"
    entrypoint = Entrypoint([word, str(starts)], 1024)
    path = f"{program.parent}:{os.environ['PATH']}"
    await sandbox.start_entrypoint(entrypoint, {"PATH": path})
    await wait_until_async(starts.exists)
    await sh(sandbox, f"chmod 644 {program}")  # in no root of the checkpoint
    done = await reset(sandbox)
    assert [item.kind for item in done.differences.items] == ["entrypoint"]
    assert word in done.differences.items[0].message
    assert not entrypoint.ended.done()
    await entrypoint.wait(asyncio.get_running_loop().time() + 1000)  # for nothing
    assert entrypoint.exit_code(143) == 143
    assert (await sh(sandbox, "echo served")).text == "served"
    program.chmod(0o755)
    assert (await reset(sandbox)).clean
    await wait_until_async(lambda: len(starts.read_text().split()) == 2)
    entrypoint.forward(15)
    await wait_until_async(entrypoint.ended.done)


async def test_a_key_in_the_user_s_keyring_is_named(
    sandbox: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/proc/test_kernel_keys.py has real keys: the tests' user shares its keyrings."""
    before = kernel_keys.read_keys(os.geteuid())
    unreadable = f"the user keyring {kernel_keys.UNREADABLE}"
    for words in ("the key 0x1", unreadable):
        monkeypatch.setattr(kernel_keys, "read_keys", lambda _, words=words: before | {words})
        done = await reset(sandbox)
        [item] = done.differences.items
        assert (item.kind, words in item.message) == ("object", True)


async def test_the_answer_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        await engine.checkpoints.create("start", [str(tmp_path / "base")])
        first = await reset(engine, "k")
        episode = engine.episodes.current
    async with running(tmp_path) as engine:
        assert engine.episodes.current == episode == first.episode
        assert await reset(engine, "k") == first
        assert engine.episodes.current == episode


async def test_ends_by_a_reset_are_counted(sandbox: Engine) -> None:
    await start(sandbox, "sleep 1000").wait_started()
    await reset(sandbox)
    assert sandbox.counters.executions[None, ExitReason.RESET] == 1
    assert sandbox.counters.resets == {True: 1, False: 0}
