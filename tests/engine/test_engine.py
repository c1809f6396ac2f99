"""The engine as a whole: kept results, forgotten results, and survived failures."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from execd.api.v1 import execution_reply
from execd.engine.executions.command import argv_program
from execd.engine.executions.stdio import ProgramIO
from execd.engine.executions.submission import Submission
from execd.engine.output.follow import Dropped, ExitedEvent, Output, ProgramStarted
from execd.engine.store import state_dir
from execd.engine.store.journal import JournalState, decode
from execd.engine.store.state_dir import StateDirError
from execd.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RangeNotSatisfiable,
    ResourceExhausted,
)
from execd.model import Command, ExitReason, State, TerminalSize
from tests.engine.conftest import Outcome, finish, running, sh, shell_command
from tests.gvisor import is_gvisor
from tests.patience import patience
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution
    from execd.engine.store.journal import JournaledExecution

MIB = 1 << 20


# Large output.


async def test_a_flood_is_counted_to_the_byte_and_costs_little_memory(tmp_path: Path) -> None:
    async with running(tmp_path, log_bytes=MIB) as engine:
        gc.collect()
        before = psutil.Process().memory_info().rss
        execution = engine.submit(
            Submission(shell_command("head -c 209715200 /dev/zero; echo end"))
        ).execution
        result = await execution.wait()
        grown = psutil.Process().memory_info().rss - before
        assert result.exit_code == 0
        excerpt = await execution.view.excerpt("stdout", 1000)
        assert excerpt.truncation is not None
        assert excerpt.truncation.total_bytes == 209715204
        assert (excerpt.head, excerpt.tail) == (b"\0" * 500, b"\0" * 496 + b"end\n")
        assert excerpt.truncation.omitted_bytes == 209715204 - 1000
        assert grown < 30 * MIB
        assert os.path.getsize(tmp_path / f"state/logs/{execution.id}.stdout") == MIB


@pytest.mark.parametrize("namespaces", ["auto", "off"])
async def test_with_the_state_dir_gone_commands_run_and_what_is_lost_is_said(
    tmp_path: Path, namespaces: str
) -> None:
    async with running(tmp_path, namespaces=namespaces) as engine:
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "state").write_text("a file in its place")
        execution = engine.submit(Submission(shell_command("seq 200000"))).execution
        assert (await execution.wait()).exit_code == 0
        excerpt = await execution.view.excerpt("stdout", 10 * MIB)
        whole = b"".join(b"%d\n" % number for number in range(1, 200_001))
        assert excerpt.truncation is not None
        assert excerpt.truncation.total_bytes == len(whole)
        assert whole.startswith(excerpt.head)
        assert whole.endswith(excerpt.tail)
        assert len(excerpt.head) + len(excerpt.tail) >= 256 * 1024
        (tmp_path / "state").unlink()
        # Commands would find a new state dir, so the daemon makes the new state dir only when the
        # next warden can cover the dir.
        if engine.capabilities()["namespaces"]:
            assert engine.warden.pid is not None
            os.kill(engine.warden.pid, signal.SIGKILL)
            await wait_until_async(lambda: engine.warden.restarts == 1)
        assert (await sh(engine, "seq 200000")).stdout == whole, "it recovers"


async def test_with_the_logs_share_of_the_disk_used_up_what_is_lost_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, state_bytes=MIB) as engine:
        executions = [
            engine.submit(Submission(shell_command("head -c 700000 /dev/zero"))).execution
            for _ in range(3)
        ]
        for execution in executions:
            await execution.wait()
        assert engine._parts.store.used_bytes <= MIB
        excerpts = [await execution.view.excerpt("stdout", 10 * MIB) for execution in executions]
        assert any(excerpt.truncation is not None for excerpt in excerpts)
        for excerpt in excerpts:
            omitted = excerpt.truncation.omitted_bytes if excerpt.truncation else 0
            assert len(excerpt.head) + omitted + len(excerpt.tail) == 700_000
        # Old logs make room before long.
        await wait_until_async(lambda: engine._parts.store.used_bytes <= MIB // 2, 10)


async def test_a_slow_disk_loses_nothing_of_what_was_written_before_the_end(engine: Engine) -> None:
    over = threading.Event()
    for _ in range(4):
        engine._parts.store.threads.submit(over.wait)
    # The output exceeds memory, so the pump waits for the disk. The rest fits into the pipe, so the
    # program ends meanwhile.
    execution = engine.submit(
        Submission(shell_command("head -c 320000 /dev/zero; echo end"))
    ).execution
    await wait_until_async(lambda: execution.output.streams["stdout"].spool is not None)
    slow = asyncio.get_running_loop().call_later(0.5, over.set)  # longer than the drain grace
    try:
        outcome = await finish(execution)
    finally:
        slow.cancel()
        over.set()
    assert outcome.stdout == b"\0" * 320_000 + b"end\n"


async def test_a_hung_disk_does_not_keep_a_timeout_from_being_answered(engine: Engine) -> None:
    over = threading.Event()
    try:
        for _ in range(4):
            engine._parts.store.threads.submit(over.wait)
        execution = engine.submit(Submission(shell_command("yes", timeout_seconds=0.3))).execution
        result = await asyncio.wait_for(execution.wait(), patience.seconds(5))
        assert result.exit_reason is ExitReason.TIMEOUT
    finally:
        over.set()


# Memory of ended runs.


async def test_what_is_forgotten_takes_its_files_along(tmp_path: Path) -> None:
    async with running(tmp_path, retention_count=2) as engine:
        for _ in range(5):
            await sh(engine, "seq 100000")
        await wait_until_async(lambda: len(os.listdir(tmp_path / "state/logs")) == 2, 10)
        assert len(list(engine._registry)) == 2


async def test_what_is_old_is_forgotten_without_anybody_asking(tmp_path: Path) -> None:
    async with running(tmp_path, retention_seconds=1.0) as engine:
        outcome = await sh(engine, "seq 100000")
        assert os.listdir(tmp_path / "state/logs") != []
        await wait_until_async(lambda: os.listdir(tmp_path / "state/logs") == [], 10)
        with pytest.raises(NotFound):
            engine.get(outcome.execution.id)


@pytest.mark.parametrize(
    "settings", [{"retention_count": 0}, {"retention_bytes": 0}, {"retention_seconds": 0.0}]
)
async def test_a_reply_is_whole_although_nothing_is_remembered(
    tmp_path: Path, settings: dict[str, float]
) -> None:
    async with running(tmp_path, **settings) as engine:
        outcomes = await asyncio.gather(*(sh(engine, "seq 100000") for _ in range(5)))
        assert {outcome.stdout for outcome in outcomes} == {
            b"".join(b"%d\n" % number for number in range(1, 100_001))
        }


async def test_a_command_that_cannot_be_encoded_is_the_callers_mistake(engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match="command"):
        shell_command("echo \ud800")


async def test_the_smaller_timeout_holds(tmp_path: Path) -> None:
    async with running(tmp_path, timeout=5.0) as engine:
        for fields, seconds in (
            ({"timeout_seconds": 2.0}, 2.0),
            ({"timeout_seconds": 9.0}, 5.0),
            ({}, 5.0),
        ):
            execution = engine.submit(Submission(shell_command("true", **fields))).execution
            assert execution.command.timeout_seconds == seconds
            await execution.wait()


# Names, and the journal's record of names.


def named(engine: Engine, script: str, name: str, **fields: Any) -> Execution:
    payload = script.encode()
    return engine.submit(
        Submission(shell_command(script, **fields), execution_id=name, payload=payload)
    ).execution


def journal_of(folder: Path) -> dict[str, JournaledExecution]:
    return JournalState(decode((folder / "state/journal").read_bytes())[0]).executions


async def test_a_retry_of_what_never_ran_stays_in_the_journal(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1, queue_wait_seconds=1.0) as engine:
        first = named(engine, "sleep 1000", "blocker", detached=True)
        failed = named(engine, "true", "x")
        with pytest.raises(ResourceExhausted):
            await failed.wait()
        await engine.forget(first)
        retry = named(engine, "true", "x")
        await retry.wait()
        assert journal_of(tmp_path)["x"].end is not None
        await sh(engine, "true")
        await wait_until_async(
            lambda: not engine.retention._expired and not engine.retention._noting, 10
        )
        assert "x" in journal_of(tmp_path)


async def test_a_name_that_is_taken_again_is_forgotten_for_nobody_but_the_first(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, keyed_retention_count=0) as engine:
        runs = []
        for script in "seq 100000", "seq 100001":
            runs.append(named(engine, script, "x", detached=True))
            await runs[-1].wait()
        assert runs[0] is not runs[1]
        excerpt = await runs[1].view.excerpt("stdout", MIB)
        # On a slow disk a log goes on in memory only, and lacks the middle.
        whole = excerpt.head + excerpt.tail
        assert whole.endswith(b"100001\n"), "the files of the first are not in the way"
        last = named(engine, "sleep 1000", "x", detached=True)
        await last.journaled()
        await wait_until_async(
            lambda: not engine.retention._expired and not engine.retention._noting, 10
        )
        assert journal_of(tmp_path)["x"].begin.created_at == last.created_at
        await engine.drain()


async def test_what_was_accepted_and_never_ran_stays_known_and_its_name_is_free(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_running=1, queue_wait_seconds=1.0) as engine:
        first = named(engine, "sleep 1000", "blocker", detached=True)
        failed = named(engine, "true", "x", detached=True)
        await failed.journaled()
        assert "x" in journal_of(tmp_path), (
            "it is in the journal before its caller hears that it is accepted"
        )
        with pytest.raises(ResourceExhausted):
            await failed.wait()
        assert engine.get("x") is failed
        assert "x" not in journal_of(tmp_path)
        await engine.forget(first)
        retry = named(engine, "true", "x", detached=True)
        assert (await retry.wait()).exit_code == 0
        assert engine.get("x") is retry
    async with running(tmp_path) as engine:
        assert (await engine.get("x").wait()).exit_reason is ExitReason.EXITED


async def test_what_was_accepted_and_waits_is_known_after_the_daemon_goes_down(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_running=1) as engine:
        named(engine, "sleep 1000", "blocker", detached=True)
        named(engine, "true", "x", detached=True)
        await asyncio.wait_for(engine.drain(), patience.seconds(10))
    async with running(tmp_path) as engine:
        assert (await engine.get("x").wait()).exit_reason is ExitReason.SHUTDOWN


async def test_a_repeated_command_is_answered_though_its_session_is_gone(engine: Engine) -> None:
    session = engine.sessions.declare(session_id="s")
    submission = Submission(shell_command("echo $EXECD_SESSION_ID", session_id="s"), key="k")
    first = engine.submit(submission)
    assert (await finish(first.execution)).text == "s"
    await engine.sessions.end(session)
    assert engine.submit(submission) == (first.execution, False)


async def test_what_is_detached_in_its_course_is_kept_and_in_the_journal(tmp_path: Path) -> None:
    async with running(tmp_path, retention_seconds=0.0) as engine:
        run = engine.submit(
            Submission(shell_command("echo begun; read line; echo done", stdin_open=True))
        ).execution
        await run.wait_started()
        assert journal_of(tmp_path) == {}
        run.detach()
        await run.journaled()
        assert journal_of(tmp_path)[run.id].end is None
        await run.end_stdin()
        await run.wait()
        assert engine.get(run.id) is run
    async with running(tmp_path) as engine:
        assert (await engine.get(run.id).view.excerpt("stdout", MIB)).head == b"begun\ndone\n"


async def test_what_may_be_detached_is_kept_from_its_start(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        run = engine.submit(
            Submission(shell_command("sleep 1000", on_disconnect="detach"))
        ).execution
        await run.wait_started()
        assert run.id in journal_of(tmp_path)
        await engine.drain()


async def test_a_kept_result_outlives_the_need_of_its_disk(tmp_path: Path) -> None:
    async with running(tmp_path, state_bytes=MIB) as engine:
        short, long = (
            named(engine, "echo done; exit 3", "short"),
            named(engine, "head -c 300000 /dev/zero", "long"),
        )
        await short.wait()
        await long.wait()
        flood = engine.submit(
            Submission(shell_command("head -c 700000 /dev/zero; sleep 1000"))
        ).execution
        await wait_until_async(lambda: long.output.disk_bytes == 0, 10)
        assert named(engine, "echo done; exit 3", "short") is short
        assert (await short.view.excerpt("stdout", MIB)).head == b"done\n"
        assert named(engine, "head -c 300000 /dev/zero", "long") is long
        cut = (await long.view.excerpt("stdout", MIB)).truncation
        assert cut is not None
        assert (cut.total_bytes, cut.omitted_bytes) == (300_000, 300_000)
        with pytest.raises(RangeNotSatisfiable):
            await long.view.read("stdout", 0, 10)
        assert {
            type(event) for event in [event async for event in long.view.follow(0, text=True)]
        } == {
            ProgramStarted,
            Dropped,
            ExitedEvent,
        }
        flood.end(ExitReason.CANCELED, 0.0)
        await flood.wait()
    async with running(tmp_path) as engine:
        assert (await engine.get("short").wait()).exit_code == 3
        assert (await engine.get("long").wait()).exit_code == 0


async def test_what_a_restart_cut_off_has_what_was_on_disk_and_nothing_invented(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        argv = ["sh", "-c", "head -c 300000 /dev/zero; sleep 1000"]
        run = engine.submit(
            Submission(Command(program=argv_program(argv)), execution_id="x")
        ).execution
        await wait_until_async(lambda: run.output.disk_bytes == 300_000, 10)
        for name in "journal", "logs/x.stdout":  # as a kill of the daemon leaves them
            (tmp_path / "left" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tmp_path / "state" / name, tmp_path / "left" / name)
        await engine.drain()
    async with running(tmp_path, state_dir=str(tmp_path / "left")) as engine:
        run = engine.get("x")
        shown = msgspec.to_builtins(await execution_reply.full_reply(run, engine.config, "text"))
        assert (shown["state"], shown["exit_reason"], shown["argv"]) == (
            "EXITED",
            "daemon_restarted",
            argv,
        )
        assert shown["exit_code"] == 125
        for field in (
            "signal",
            "duration_seconds",
            "started_at",
            "ended_at",
            "usage",
            "killed",
        ):
            assert shown[field] is None, field
        assert len(shown["stdout"]) == 300_000
        assert shown["truncated"]["stdout"] == {
            "total_bytes": None,
            "head_bytes": 300_000,
            "omitted_bytes": None,
            "url": "/v1/executions/x/stdout",
        }
        assert await run.view.read("stdout", 299_990, 300_000) == b"\0" * 10


async def test_what_has_ended_costs_no_more_than_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, retention_bytes=2 * MIB) as engine:
        command = shell_command("true #" + "x" * MIB, stdin=b"y" * MIB, env={"Z": "z" * 100_000})
        runs = []
        gc.collect()
        for number in range(3):
            runs.append(engine.submit(Submission(command, execution_id=f"x{number}")).execution)
            await runs[-1].wait()
            assert (
                runs[-1].command.stdin,
                runs[-1].command.env,
                runs[-1].command.program.script,
            ) == (
                b"",
                {},
                None,
            )
            assert MIB < runs[-1].memory_bytes < 1.1 * MIB
        assert not [found for found in gc.get_objects() if isinstance(found, ProgramIO)], (
            "without the collector's help"
        )
        assert len(list(engine._registry)) == 1
        display = journal_of(tmp_path)["x2"].begin.display
        assert len(display.encode()) == 4096
        assert display.startswith("true #xxx")
        assert display.endswith("…")
        # One line has the sockets and mounts of the machine, however many.
        lines = (tmp_path / "state/journal").read_bytes().splitlines()
        assert sum(len(line) for line in lines if b'"type":"traces"' not in line) < 20_000


# Wear.


async def test_the_loop_is_never_held_up_for_long(engine: Engine) -> None:
    """By work, in CPU time of the loop's thread: a busy machine holds the loop up too. By a wait,
    in seconds that no busy machine takes."""
    longest = longest_wait = 0.0

    async def watch() -> None:
        nonlocal longest, longest_wait
        while True:
            begun, begun_cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - begun_cpu)
            longest_wait = max(longest_wait, time.monotonic() - begun)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(sh(engine, "seq 200000") for _ in range(8)))
    watcher.cancel()
    # gVisor counts the waits of a thread that could run, too.
    assert 0 < longest < (5.0 if is_gvisor() else 0.1)
    assert longest_wait < patience(5.0)


# Life.


async def test_capabilities_say_what_holds(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        facts = engine.capabilities()
        assert facts["namespaces"] is True
        assert all(facts["protections"].values())
    async with running(tmp_path, namespaces="off") as engine:
        facts = engine.capabilities()
        assert (facts["namespaces"], facts["namespaces_refused"]) == (False, "switched off")
        assert not any(facts["protections"].values())


async def test_all_executions_have_ended_at_the_end_of_the_engine(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1) as engine:
        runs = engine.submit(Submission(shell_command("exec sleep 1000"))).execution
        await runs.wait_started()
        runs.detach()
        waits = engine.submit(Submission(shell_command("true"))).execution
    assert (await runs.wait()).exit_reason is ExitReason.INIT_KILLED
    assert waits.state is State.EXITED
    assert not waits.may_have_run


async def test_an_engine_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError):
        async with running(tmp_path, state_dir=str(tmp_path / "file")):
            pass
    async with running(tmp_path):
        with pytest.raises(StateDirError, match="in use"):
            async with running(tmp_path):
                pass


async def test_ready_says_whether_a_command_would_run(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        assert engine.is_ready
        await engine.drain()
        assert not engine.is_ready
    assert not engine.is_ready


@pytest.mark.root
async def test_a_root_daemon_runs_commands_as_another_user(tmp_path: Path) -> None:
    import tempfile

    # pytest's own folders are closed to a second user
    with tempfile.TemporaryDirectory(dir="/tmp") as open_folder:
        os.chmod(open_folder, 0o755)
        base = os.path.join(open_folder, "base")
        os.mkdir(base)
        os.chown(base, 1234, 1234)
        async with running(
            tmp_path,
            base_dir=base,
            state_dir=os.path.join(open_folder, "state"),
            run_as="1234:5678",
            python="/usr/bin/python3",
        ) as engine:
            assert (await sh(engine, "id -u; id -g; id -G; echo $USER")).text.split() == [
                "1234",
                "5678",
                "5678",
                "1234",
            ]
            assert (await sh(engine, "touch file && python -c 'print(1)'")).text == "1"
            by_name = "echo out >/dev/stdout; echo err >/dev/stderr"
            outcome = await sh(engine, by_name)
            assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")
            assert (await sh(engine, "cat /dev/stdin", stdin=b"in")).text == "in"
            screen = await sh(engine, f"{by_name}; echo $TERM >$(tty)", terminal=TerminalSize())
            assert screen.text.split() == ["out", "err", "xterm-256color"]
            assert (await sh(engine, "echo $0; id -u #" + "x" * 200_000)).text.split() == [
                "/bin/sh",
                "1234",
            ]


@pytest.mark.parametrize("namespaces", ["auto", "off"])
async def test_protections_and_the_warning_are_those_of_the_wardens_shape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, namespaces: str
) -> None:
    async with running(tmp_path, namespaces=namespaces) as engine:
        facts = engine.capabilities()
    assert not (facts["namespaces"] and namespaces == "off")
    assert set(facts["protections"].values()) == {facts["namespaces"]}
    warnings = [r for r in caplog.records if r.message == "user code runs without namespaces"]
    assert len(warnings) == (not facts["namespaces"])


@pytest.mark.parametrize(("settings", "n_syncs"), [({}, 0), ({"fsync": "uploads"}, 2)])
async def test_uploads_are_synced_where_the_setting_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], n_syncs: int
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with running(tmp_path, **settings) as engine:
        for n, files in enumerate((engine.files, engine.sandboxd_files, engine.tree_files), 1):
            async with await files.create("x") as upload:
                await upload.commit()
            async with await files.extend("x") as upload:
                await upload.commit()
            assert len(synced) == n_syncs * n


# The state dir in hostile hands, and on bad disks.


async def submitted(engine: Engine, script: str, key: str) -> tuple[Outcome, bool]:
    made = engine.submit(Submission(shell_command(script), key=key))
    return await finish(made.execution), made.is_new


async def test_capabilities_tell_what_root_commands_can_do_and_what_they_can_undo(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        facts = engine.capabilities()
        assert bool(facts["root_capabilities"]) == (os.geteuid() == 0)
        # a runtime without any capability to drop
        engine.warden.root_capabilities = ["CHOWN", "SYS_ADMIN"]
        assert engine.capabilities()["root_capabilities"] == ["CHOWN", "SYS_ADMIN"]
        assert not engine.capabilities()["protections"]["state_dir_unreadable"]


@pytest.mark.root
async def test_a_user_that_is_the_daemons_own_protects_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, run_as="0", namespaces="off") as engine:
        assert not any(engine.capabilities()["protections"].values())


async def test_renaming_a_directory_above_the_state_dir_uncovers_nothing(tmp_path: Path) -> None:
    path, moved = tmp_path / "above/state", tmp_path / "elsewhere/state"
    async with running(tmp_path, state_dir=str(path), stream_memory_bytes=1000) as engine:
        if not engine.capabilities()["namespaces"]:
            pytest.skip("nothing is covered without namespaces")
        await sh(engine, f"mv {tmp_path}/above {tmp_path}/elsewhere && mkdir {tmp_path}/above")
        await submitted(engine, "seq 10000", "k")
        await engine._parts.store.repair()
        look = (
            f"cd {tmp_path}; ls above/state elsewhere/state; python -c 'print(1)'; "
            "echo forged > elsewhere/state/journal"
        )
        for _ in range(2):
            found = await sh(engine, look)
            assert found.stdout == b"above/state:\nbin\nlock\n\nelsewhere/state:\nbin\n1\n"
            with pytest.raises(PermissionDenied):
                await engine.tree_files.exists(str(moved / "journal"))
            assert engine.warden.pid is not None
            restarts = engine.warden.restarts
            os.kill(engine.warden.pid, signal.SIGKILL)  # the next warden covers the new path
            await wait_until_async(lambda: engine.warden.restarts > restarts)  # noqa: B023
        assert (moved / "journal").stat().st_size > 0
        assert engine.capabilities()["protections"]["state_dir_unreadable"]


async def test_a_state_dir_removed_without_namespaces_is_made_again_and_nothing_runs_twice(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, namespaces="off") as engine:
        await submitted(engine, "echo ran >> before", "before")
        shutil.rmtree(tmp_path / "state")
        outcome, _ = await submitted(engine, "echo ran >> after", "after")
        assert outcome.execution.not_journaled is None
    async with running(tmp_path, namespaces="off") as engine:
        for name in "before", "after":
            outcome, is_new = await submitted(engine, f"echo ran >> {name}", name)
            assert (outcome.result.exit_code, is_new) == (0, False)
            assert (tmp_path / "base" / name).read_text() == "ran\n"


async def test_disk_that_hangs_holds_up_no_execution_for_good_and_the_reply_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dir, "DISK_SECONDS", 0.1)
    stuck, release = os.pipe()
    async with running(tmp_path, max_running=1) as engine:
        engine._parts.store._journal_thread.submit(os.read, stuck, 1)  # the disk does not answer
        for number in range(3):
            outcome, _ = await submitted(engine, "echo ran", f"hung-{number}")
            assert outcome.text == "ran"
            assert outcome.execution.not_journaled == "the disk did not answer for 0.1 s"
        monkeypatch.setattr(state_dir, "DISK_SECONDS", 10.0)
        os.close(release)
        await wait_until_async(lambda: not engine._parts.store.is_hung)
        outcome, _ = await submitted(engine, "echo ran", "well")
        assert outcome.execution.not_journaled is None
    os.close(stuck)
    async with running(tmp_path) as engine:
        for key in "hung-0", "hung-1", "hung-2", "well":  # written late, and in order
            again = engine.submit(Submission(shell_command("echo ran"), key=key))
            assert (again.is_new, (await again.execution.wait()).exit_code) == (False, 0)


async def test_command_is_found_by_its_pid_and_by_its_tag(engine: Engine) -> None:
    first, second = (
        engine.submit(
            Submission(shell_command("sleep 600", tag="same", on_disconnect="detach"))
        ).execution
        for _ in range(2)
    )
    other = engine.submit(Submission(shell_command("sleep 600", on_disconnect="detach"))).execution
    for execution in (first, second, other):
        await execution.wait_started()
    assert list(engine.running_commands()) == [first, second, other]
    assert engine.find_command(pid=first.pid) is first
    assert engine.find_command(tag="same") is second, "the newest"
    second.end(ExitReason.CANCELED, 0.0)
    await second.ended()
    assert engine.find_command(tag="same") is first, "one that runs comes before"
    for execution in (first, other):
        execution.end(ExitReason.CANCELED, 0.0)
        await execution.ended()
    assert list(engine.running_commands()) == []
    with pytest.raises(NotFound, match="the tag 'same'"):
        engine.find_command(tag="same")
    assert engine.find_command(tag="same", ended_within_seconds=60.0) is second
    assert engine.find_command(pid=other.pid, ended_within_seconds=60.0) is other
    with pytest.raises(NotFound, match="the pid 4000000"):
        engine.find_command(pid=4_000_000, ended_within_seconds=60.0)


async def test_reader_gets_the_bytes_that_it_does_not_have(engine: Engine) -> None:
    outcome = await sh(engine, "printf 0123456789; printf abc >&2")
    assert outcome.result.exit_code == 0
    events = [
        event
        async for event in outcome.execution.view.follow(
            0, text=False, heartbeat_seconds=1.0, known={"stdout": 4, "stderr": 99}
        )
    ]
    outputs = [event for event in events if isinstance(event, Output)]
    assert b"".join(event.data for event in outputs) == b"456789"
    assert outputs[0].offset == 4
    assert isinstance(events[-1], ExitedEvent)
