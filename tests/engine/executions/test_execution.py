"""Executions in a real engine: how executions end, and the facts known after the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from execd.engine.executions import command_run
from execd.engine.executions.deadlines import first_of
from execd.engine.executions.submission import Submission
from execd.errors import Internal, ResourceExhausted, Unavailable
from execd.model import ExitReason, State
from execd.proc.warden_process import WardenProcess
from tests.engine.conftest import finish, running, sh, shell_command
from tests.patience import patience
from tests.proc.conftest import living, new_token
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution


def begin(engine: Engine, script: str, **options: Any) -> Execution:
    return engine.submit(Submission(shell_command(script, **options))).execution


async def says(execution: Execution, text: bytes) -> None:
    await execution.wait_started()
    log = execution.output.streams["stdout"]
    await wait_until_async(lambda: text in (log.memory.read(0, log.total_bytes) or b""), 20)


async def test_the_duration_of_a_command_ends_with_the_program_though_the_daemon_learns_late(
    engine: Engine,
) -> None:
    began = time.monotonic()
    execution = begin(engine, "sleep 0.3")
    await execution.wait_started()
    warden = psutil.Process(engine.warden.pid)
    # From here on the daemon's loop is held up.
    wait_until(lambda: not warden.children(), 20)
    gone = time.monotonic()
    elapsed_seconds = gone - began
    wait_until(lambda: time.monotonic() > gone + 0.1)
    assert 0 < (await execution.wait()).duration_seconds <= elapsed_seconds


async def test_a_program_that_ended_in_time_did_not_time_out_though_its_output_is_still_held(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, drain_grace_seconds=2.0) as engine:
        token = new_token()
        execution = begin(engine, f"setsid sleep {token} & echo done; exit 3", timeout_seconds=1.5)
        result = await execution.wait()
        assert (result.exit_code, result.exit_reason) == (3, ExitReason.EXITED)
        await wait_until_async(lambda: living(f"sleep {token}") != [])


async def test_a_flooding_descendant_does_not_delay_the_answer_either(engine: Engine) -> None:
    begun = time.monotonic()
    result = await begin(engine, "yes & echo done").wait()
    assert result.exit_code == 0
    assert time.monotonic() - begun < patience(2)


@pytest.mark.parametrize(
    "cause", [ExitReason.CANCELED, ExitReason.SHUTDOWN, ExitReason.CLIENT_DISCONNECTED]
)
async def test_the_first_cause_is_the_reason_and_later_ones_only_hasten(
    engine: Engine, cause: ExitReason
) -> None:
    execution = begin(
        engine, "trap '' TERM; echo ready; while :; do sleep 0.01; done", timeout_seconds=5.0
    )
    await says(execution, b"ready")
    execution.end(cause, 60.0)
    execution.end(ExitReason.TIMEOUT, 0.0)
    assert (await asyncio.wait_for(execution.wait(), patience.seconds(10))).exit_reason is cause
    execution.end(ExitReason.TIMEOUT, 0.0)
    assert (await execution.wait()).exit_reason is cause


async def test_an_end_before_the_first_step_leaves_nobody_waiting_and_gives_the_place_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_running=1) as engine:
        execution = begin(engine, "echo never")
        execution.end(ExitReason.CANCELED, 0.0)
        execution.end(ExitReason.TIMEOUT, 0.0)
        result = await asyncio.wait_for(execution.wait(), patience.seconds(5))
        assert (result.exit_reason, result.term_signal) == (ExitReason.CANCELED, None)
        assert (await sh(engine, "echo next")).text == "next"


async def test_an_end_at_any_moment_of_the_start_leaves_nothing(engine: Engine) -> None:
    token = new_token()
    for turns in range(60):
        execution = begin(engine, f"exec sleep {token}")
        for _ in range(turns % 30):
            await asyncio.sleep(0)
        execution.end(ExitReason.CANCELED, 0.0)
        execution.end(ExitReason.CANCELED, 0.0)
        assert (
            await asyncio.wait_for(execution.wait(), patience.seconds(10))
        ).exit_reason is ExitReason.CANCELED
    assert (await sh(engine, "echo next")).text == "next"
    await wait_until_async(lambda: living(f"sleep {token}") == [])


# Readers.


@contextlib.contextmanager
def stopped_warden(engine: Engine) -> Iterator[None]:
    pid = engine.warden.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_an_end_while_the_spawn_is_under_way_is_answered_when_the_tree_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The daemon continues a stopped warden as soon as the daemon learns of the stop.
    monkeypatch.setattr(WardenProcess, "_continue", lambda _warden: None)
    token = new_token()
    async with running(tmp_path, warden_ping_seconds=30.0, warden_dead_seconds=60.0) as engine:
        with stopped_warden(engine):
            execution = engine.submit(
                Submission(shell_command(f"trap '' TERM; sleep {token} & sleep {token}"))
            ).execution
            await wait_until_async(lambda: execution.may_have_run)
            execution.end(ExitReason.CANCELED, 0.0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert execution.state is State.QUEUED
        result = await execution.wait()
        assert result.exit_reason is ExitReason.CANCELED
        assert living(f"sleep {token}") == []


@pytest.mark.parametrize("graces_seconds", [(1000.0, 0.0), (0.0, 1000.0), (1000.0, 0.0, 1000.0)])
async def test_of_several_ends_while_the_spawn_is_under_way_the_smallest_grace_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graces_seconds: tuple[float, ...]
) -> None:
    monkeypatch.setattr(WardenProcess, "_continue", lambda _warden: None)
    async with running(tmp_path, warden_ping_seconds=30.0, warden_dead_seconds=60.0) as engine:
        with stopped_warden(engine):
            execution = begin(engine, "exec sleep 1000")
            await wait_until_async(lambda: execution.may_have_run)
            execution.end(ExitReason.CANCELED, graces_seconds[0])
            for grace_seconds in graces_seconds[1:]:
                execution.end(ExitReason.SHUTDOWN, grace_seconds)
            assert execution.state is State.QUEUED
        result = await execution.wait()
        # With a grace the program gets SIGTERM first, and ends of that.
        assert (result.exit_reason, result.term_signal) == (ExitReason.CANCELED, signal.SIGKILL)


# The warden's clock.


def hold_loop(until: Callable[[], object], seconds: float = 0.0) -> None:
    """Keep the daemon from hearing anything until ``until`` holds and ``seconds`` have passed, as
    when the daemon is stopped or starved."""
    began = time.monotonic()
    wait_until(lambda: until() and time.monotonic() - began > seconds, 20)


def command_lines() -> list[list[str]]:
    """Of all processes."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found.append(process.cmdline())
    return found


@pytest.mark.parametrize(
    "cause", [ExitReason.TIMEOUT, ExitReason.CANCELED, ExitReason.CLIENT_DISCONNECTED]
)
async def test_end_that_is_asked_for_after_a_program_has_ended_is_not_its_reason(
    engine: Engine, tmp_path: Path, cause: ExitReason
) -> None:
    token = new_token()
    execution = begin(
        engine,
        f"echo said; : {token}; while [ ! -e {tmp_path}/end ]; do sleep 0.02; done; exit 3",
        timeout_seconds=1000,
    )
    await execution.wait_started()
    # Right after the exec a process has no command line yet. For a moment a fork of the shell has
    # the token too.
    shells: list[int] = []
    hold_loop(lambda: shells or shells.extend(living(token)))
    (tmp_path / "end").touch()
    hold_loop(lambda: not any(psutil.pid_exists(shell) for shell in shells))
    execution.end(cause, 0.0)
    result = await execution.wait()
    assert (result.exit_code, result.term_signal, result.exit_reason) == (
        3,
        None,
        ExitReason.EXITED,
    )
    assert (await execution.view.excerpt("stdout", 100)).head == b"said\n"


async def test_caller_that_leaves_after_a_program_has_ended_ends_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, drain_grace_seconds=2.0) as engine:
        token, left = new_token(), new_token()
        execution = begin(engine, f"setsid sleep {left} & : {token}; exit 3")
        with execution.attach():
            await execution.wait_started()
            await wait_until_async(lambda: living(f"sleep {left}") != [] and living(token) == [])
            assert execution.state is State.RUNNING, "its pipes are still read"
        result = await execution.wait()
        assert (result.exit_code, result.exit_reason) == (3, ExitReason.EXITED)
        assert living(f"sleep {left}") != []


async def test_command_that_ended_in_time_keeps_its_reason_however_late_the_daemon_hears_of_it(
    engine: Engine,
) -> None:
    token, left = new_token(), new_token()
    execution = begin(
        engine,
        f"setsid sleep {left} > /dev/null 2>&1 & : {token}; sleep 0.1; exit 3",
        timeout_seconds=3.0,
    )
    await execution.wait_started()
    hold_loop(lambda: living(token) == [], 3.2)
    result = await execution.wait()
    assert (result.exit_code, result.exit_reason) == (3, ExitReason.EXITED)
    assert living(f"sleep {left}") != [], "what it left running lives on"


async def test_command_that_ended_after_its_limit_timed_out_though_nobody_was_there_to_end_it(
    engine: Engine, tmp_path: Path
) -> None:
    token, left = new_token(), new_token()
    limit_seconds = 4.0  # longer than a busy machine needs to come back from wait_started
    execution = begin(
        engine,
        f"setsid sleep {left} > /dev/null 2>&1 & : {token}; "
        f"while [ ! -e {tmp_path}/end ]; do sleep 0.02; done; exit 3",
        timeout_seconds=limit_seconds,
    )
    await execution.wait_started()
    # From here on the loop does not turn before the warden has reaped the shell, so that the exit
    # code is known when the loop turns.
    hold_loop(lambda: ["sleep", left] in command_lines(), limit_seconds)
    shells = living(token)  # for a moment also a fork of the shell
    (tmp_path / "end").touch()
    hold_loop(lambda: not any(psutil.pid_exists(shell) for shell in shells))
    result = await execution.wait()
    assert (result.exit_code, result.exit_reason) == (3, ExitReason.TIMEOUT)
    assert result.duration_seconds >= limit_seconds
    await wait_until_async(lambda: living(f"sleep {left}") == [], 20)


async def test_output_that_the_daemon_was_late_to_read_is_no_silence(
    engine: Engine, tmp_path: Path
) -> None:
    go, said, end = (tmp_path / name for name in ("go", "said", "end"))
    script = "until [ -e {} ]; do sleep 0.01; done; echo {}"
    command = shell_command(
        f"{script.format(go, 'a')}; : > {said}; {script.format(end, 'b')}",
        no_output_timeout_seconds=2.0,
    )
    execution = engine.submit(Submission(command)).execution
    await execution.wait_started()
    go.touch()
    hold_loop(said.exists, 2.1)
    end.touch()
    assert (await execution.wait()).exit_reason is ExitReason.EXITED


# The queue.


async def test_whoever_waits_too_long_is_sent_away_and_its_place_in_the_queue_is_free(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_running=1, max_queued=1, queue_wait_seconds=1.5) as engine:
        first, second = begin(engine, "sleep 1000"), begin(engine, "echo never")
        with pytest.raises(ResourceExhausted, match=r"within 1\.5 s"):
            await second.wait()
        with pytest.raises(ResourceExhausted):
            await second.wait_started()
        third = begin(engine, "echo third")
        first.end(ExitReason.CANCELED, 0.0)
        assert (await third.wait()).exit_code == 0


async def test_a_wait_in_the_queue_is_longer_by_the_time_that_the_sandbox_was_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock went on, and the program before had no time to end."""
    async with running(tmp_path, max_running=1, queue_wait_seconds=0.5) as engine:
        begin(engine, "sleep 1000")
        waiting = begin(engine, "echo never")
        frozen_seconds = [1.0]

        def look_for_restore() -> bool:
            if frozen_seconds:
                waiting.postpone(frozen_seconds.pop())
            return False

        monkeypatch.setattr(waiting._context, "look_for_restore", look_for_restore)
        begun = time.monotonic()
        with pytest.raises(ResourceExhausted):
            await waiting.wait()
        assert time.monotonic() - begun > 1.4


async def test_a_total_limit_covers_waiting_and_running_together(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1) as engine:
        first = begin(engine, "sleep 1000")
        begun = time.monotonic()
        second = begin(engine, "exec sleep 1000", total_seconds=4.0, timeout_seconds=60.0)
        asked = time.monotonic()
        await asyncio.sleep(1.5)
        assert second.state is State.QUEUED
        first.end(ExitReason.CANCELED, 0.0)
        await second.wait_started()
        # The wait of 1.5 s counts.
        assert begun + 4.0 <= second.deadlines.deadline < asked + 1.5 + 4.0
        assert (await second.wait()).exit_reason is ExitReason.TIMEOUT
        assert time.monotonic() - begun >= 4.0
        await first.wait()


async def test_never_do_more_run_than_may(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=3) as engine:
        script = "echo $$ >> running; n=$(ls /proc | grep -c '^[0-9]'); sleep 0.02"
        executions = [begin(engine, script) for _ in range(20)]
        while not all(execution.state is State.EXITED for execution in executions):
            assert sum(execution.state is State.RUNNING for execution in executions) <= 3
            await asyncio.sleep(0.001)
        assert len((tmp_path / "base/running").read_text().split()) == 20


# Programs impossible to run.


async def test_without_descriptors_for_its_pipes_it_is_sent_away_and_later_ones_run(
    engine: Engine,
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    for room in range(5):
        execution = begin(engine, "true " + "x" * 100_000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
        try:
            for _ in range(20):
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            result = await asyncio.wait_for(execution.wait(), patience.seconds(5))
        except ResourceExhausted:
            continue
        assert room == 4
        assert "Too many open files" in result.message
    assert (await sh(engine, "echo next")).text == "next"


@pytest.mark.parametrize("size_bytes", [131_000, 131_071, 131_072, 200_000, 3_000_000])
async def test_a_command_of_any_length_runs_and_its_code_is_right(
    engine: Engine, size_bytes: int
) -> None:
    start, end = "echo $0 $#; : ", "\nexit 7"
    outcome = await sh(engine, start + "x" * (size_bytes - len(start) - len(end)) + end)
    assert (outcome.stdout, outcome.result.exit_code) == (b"/bin/sh 0\n", 7), outcome.stderr


async def test_a_long_command_can_read_its_own_standard_input_and_signals_end_it(
    engine: Engine,
) -> None:
    outcome = await sh(engine, "cat; kill -TERM $$ #" + "x" * 200_000)
    assert outcome.result.term_signal == signal.SIGTERM


# Limits.


@pytest.mark.parametrize(
    ("settings", "script", "reason"),
    [
        ({"cpu_seconds": 1}, "while :; do :; done", ExitReason.CPU_LIMIT),
        ({"cpu_seconds": 1}, "sh -c 'while :; do :; done'; exit $?", ExitReason.CPU_LIMIT),
        ({"cpu_seconds": 1}, "trap '' XCPU; while :; do :; done", ExitReason.CPU_LIMIT),
        (
            {"file_size_bytes": 100_000},
            "head -c 200000 /dev/zero > file; exit $?",
            ExitReason.FILE_SIZE_LIMIT,
        ),
        ({"cpu_seconds": 100}, "exit 152", ExitReason.EXITED),
        ({"file_size_bytes": 100_000}, "exit 153", ExitReason.EXITED),
        (
            {"file_size_bytes": 100_000},
            "exec head -c 200000 /dev/zero > file",
            ExitReason.FILE_SIZE_LIMIT,
        ),
        (
            {"processes": 5},
            "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait",
            ExitReason.PROCESS_LIMIT,
        ),
    ],
)
async def test_a_limit_that_ends_the_program_is_the_reason_and_a_code_like_it_is_not(
    tmp_path: Path, settings: dict[str, int], script: str, reason: ExitReason
) -> None:
    async with running(tmp_path, **settings) as engine:
        assert (await begin(engine, script).wait()).exit_reason is reason


@pytest.mark.parametrize(
    ("settings", "script"),
    [
        (
            {"address_space_bytes": 200 << 20},
            "/usr/bin/python3 -S -c 'b\"x\" * (300 << 20)'; exit $?",
        ),
        ({"open_files": 20}, "/usr/bin/python3 -S -c 'import os\nwhile True: os.dup(0)'; exit $?"),
    ],
)
async def test_a_limit_that_the_program_is_told_of_ends_as_the_program_does(
    tmp_path: Path, settings: dict[str, int], script: str
) -> None:
    async with running(tmp_path, **settings) as engine:
        outcome = await sh(engine, script)
        assert (outcome.result.exit_code, outcome.result.exit_reason) == (1, ExitReason.EXITED)
        assert b"MemoryError" in outcome.stderr or b"Too many open files" in outcome.stderr


# Losing the warden, and the way down.


@pytest.mark.parametrize("namespaces", ["auto", "off"])
async def test_when_the_warden_dies_executions_end_as_that_and_the_engine_serves_on(
    tmp_path: Path, namespaces: str
) -> None:
    async with running(tmp_path, namespaces=namespaces) as engine:
        token = new_token()
        executions = [
            begin(engine, f"echo before; setsid sleep {token} & sleep {token}") for _ in range(3)
        ]
        for execution in executions:
            await says(execution, b"before")
        assert engine.warden.pid is not None
        os.kill(engine.warden.pid, signal.SIGKILL)
        outcomes = [await finish(execution) for execution in executions]
        assert {outcome.result.exit_reason for outcome in outcomes} == {ExitReason.INIT_KILLED}
        assert {outcome.stdout for outcome in outcomes} == {b"before\n"}
        # gVisor tells the end of an init while the processes of its namespace still end.
        await wait_until_async(lambda: living(f"sleep {token}") == [])
        await wait_until_async(lambda: engine.warden.restarts == 1)
        assert (await sh(engine, "echo after")).text == "after"


async def test_a_command_that_comes_while_there_is_no_warden_waits_for_the_next_one(
    engine: Engine,
) -> None:
    assert engine.warden.pid is not None
    os.kill(engine.warden.pid, signal.SIGKILL)
    await wait_until_async(lambda: not engine.warden.up.is_set())
    assert not engine.is_ready
    assert (await sh(engine, "echo after")).text == "after"
    assert engine.is_ready


async def test_drain_ends_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    async with running(tmp_path, cancel_grace_seconds=1.5) as engine:
        # Only in ``wait`` a shell takes a signal at once. In gVisor a loop of sleeps can be too
        # slow.
        polite = begin(engine, "trap 'echo bye; exit 0' TERM; echo ready; sleep 1000 & wait")
        deaf = begin(engine, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
        for execution in polite, deaf:
            await says(execution, b"ready")
        unbegun = begin(engine, "echo never")
        async with asyncio.timeout(10):
            await engine.drain()  # in this task: the last command has not taken a step yet
        assert ((await polite.wait()).exit_reason, (await polite.wait()).exit_code) == (
            ExitReason.SHUTDOWN,
            0,
        )
        assert ((await deaf.wait()).exit_reason, (await deaf.wait()).term_signal) == (
            ExitReason.SHUTDOWN,
            signal.SIGKILL,
        )
        with pytest.raises(Unavailable):
            await unbegun.wait()
        with pytest.raises(Unavailable):
            begin(engine, "true")


async def test_drain_sends_away_who_waits_in_the_queue(tmp_path: Path) -> None:
    async with running(tmp_path, max_running=1) as engine:
        first, waiting = begin(engine, "sleep 1000"), begin(engine, "echo never")
        await first.wait_started()
        await asyncio.wait_for(engine.drain(), patience.seconds(10))
        with pytest.raises(Unavailable):
            await waiting.wait()


async def test_a_program_that_may_have_run_is_never_said_to_be_unavailable(
    engine: Engine, tmp_path: Path
) -> None:
    """The shutdown begins while the warden's report of the start is on the way. Unavailable tells
    the caller to come again. If the program had run, the caller would run the program twice."""
    for turns in range(40):
        mark = tmp_path / f"base/mark-{turns}"
        execution = begin(engine, f"touch {mark}; exec sleep 1000")
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        execution.end(ExitReason.SHUTDOWN, 0.0)
        try:
            assert (await execution.wait()).exit_reason is ExitReason.SHUTDOWN
        except Unavailable:
            # The warden serves requests in order: a program of an earlier request has run by now.
            await sh(engine, "true")
            assert not mark.exists()


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_forgotten_execution_is_freed_without_the_garbage_collector(
    engine: Engine, key: str | None
) -> None:
    """The command may be megabytes long, and the collector counts objects, not bytes."""
    gc.disable()
    try:
        execution = engine.submit(Submission(shell_command("echo x"), key=key)).execution
        await finish(execution)
        gone = weakref.ref(execution)
        await engine.forget(execution)
        del execution
        await wait_until_async(lambda: gone() is None)
    finally:
        gc.enable()


async def test_a_remembered_execution_takes_little_memory(engine: Engine) -> None:
    """Thousands are remembered."""

    async def run(n_executions: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(n_executions):
            await finish(begin(engine, "echo x"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        await run(10)
        assert await run(100) < 100 * 4096
    finally:
        tracemalloc.stop()


async def test_a_fault_of_our_own_is_an_answer_and_costs_no_place_and_no_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, max_running=1) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(command_run, "decide", lambda *_: 1 // 0)
            execution = engine.submit(
                Submission(shell_command("echo ran >> count"), key="k")
            ).execution
            with pytest.raises(Internal, match=execution.id):
                await execution.wait()
        assert "ZeroDivisionError" in caplog.text
        again = engine.submit(Submission(shell_command("echo ran >> count"), key="k"))
        assert again == (execution, False)
        with pytest.raises(Internal):
            await again.execution.wait()
        assert (await sh(engine, "cat count")).stdout == b"ran\n"


# Waiting for the first of several futures.


async def test_the_first_of_several_is_enough_and_the_others_are_left_alone() -> None:
    loop = asyncio.get_running_loop()
    one, other = loop.create_future(), loop.create_future()
    waiting = asyncio.ensure_future(first_of(one, other))
    await asyncio.sleep(0)
    other.set_result(None)
    await waiting
    assert not one.done()
    await first_of(one, other)  # at once


async def test_who_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(first_of(future))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not future.cancelled()
    assert not future._callbacks
