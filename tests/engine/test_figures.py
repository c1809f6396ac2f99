"""The figures of the daemon: from the engine's parts, the warden and the kernel."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from typing import TYPE_CHECKING

import psutil

from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.sessions.session_state import SessionState
from execd.model import Command, ExitReason, Program
from tests.engine.conftest import running, sh, shell_command
from tests.gvisor import is_gvisor
from tests.patience import patience
from tests.waiting import DEADLINE_SECONDS, POLL_SECONDS, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.metrics.stats import Stats

MIB = 1 << 20
SPIN = "exec python3 -c 'import time\nwhile time.process_time() < 1: pass'"


async def stats_until(engine: Engine, fits: Callable[[Stats], bool]) -> Stats:
    """Return the first figures that fit: memory and processes are those of the latest scan."""
    began = time.monotonic()
    while True:
        found = engine.stats()
        if fits(found):
            return found
        patience.check(began, DEADLINE_SECONDS, found)
        await asyncio.sleep(POLL_SECONDS)


async def test_each_part_has_its_memory_and_its_cpu_time(engine: Engine) -> None:
    # The warden writes the first figures when the warden is configured.
    # A starting zygote counts as a command until its pid is known.
    before = await stats_until(engine, lambda found: found.memory.commands_bytes == 0)
    assert before.warden.processes is not None
    assert before.memory.sessions_bytes == 0
    command = Command(program=Program(argv=(), display="x = bytearray(64 << 20)", is_code=True))
    options = CellOptions(session_id="a", makes_session=True)
    submitted = engine.submit(Submission(command, options))
    await submitted.execution.wait()
    large = "exec python3 -c 'import time; x = bytearray(64 << 20); print(1); time.sleep(60)'"
    execution = engine.submit(Submission(shell_command(large))).execution
    await sh(engine, SPIN)

    def has_all(found: Stats) -> bool:
        memory, cpu = found.memory, found.cpu
        assert cpu.trees_seconds is not None
        return (
            (memory.sessions_bytes or 0) > 64 * MIB
            and (memory.commands_bytes or 0) > 64 * MIB
            and (memory.zygote_bytes or 0) > 0
            and cpu.trees_seconds > 0.5
        )

    found = await stats_until(engine, has_all)
    own = psutil.Process().memory_info().rss
    assert 0.5 * own < (found.memory.daemon_bytes or 0) < 2 * own
    assert 4 * MIB < (found.memory.warden_bytes or 0) < 64 * MIB
    assert found.cpu.daemon_seconds > 0
    assert found.cpu.warden_seconds is not None
    assert found.warden.processes is not None
    assert found.warden.processes >= 3, "the zygote, a worker, a command"
    assert (found.executions.running, found.executions.queued) == (1, 0)
    execution.end(ExitReason.CANCELED, 0.0)
    await execution.wait()


async def test_the_daemons_cpu_time_has_the_kernels_work_for_it(engine: Engine) -> None:
    end = time.process_time() + 0.2
    while time.process_time() < end:
        os.listdir("/proc")
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert engine.stats().cpu.daemon_seconds >= round(before.ru_utime + before.ru_stime, 6)


async def test_a_kernel_that_does_not_say_gives_null(engine: Engine) -> None:
    found = engine.stats()
    assert (found.cpu.load_1m is None) == is_gvisor()
    assert (found.disk.base_dir.limit_bytes, found.disk.base_dir.used_bytes) == (None, None)
    assert found.memory.pod_size_bytes == (engine.capabilities()["pod_memory"]["size_bytes"])
    assert found.memory.pod_used_bytes is not None


async def test_guarded_directory_has_its_limit(tmp_path: Path) -> None:
    async with running(tmp_path, base_dir_bytes=64 * MIB) as engine:
        await sh(engine, "sleep 0.1")  # the guard looks while something runs
        found = await stats_until(engine, lambda found: found.disk.base_dir.used_bytes is not None)
        assert found.disk.base_dir.limit_bytes == 64 * MIB
        assert found.disk.tmp_dir.limit_bytes is None


async def test_lost_warden_has_no_figures_until_the_next_one_is_up(engine: Engine) -> None:
    assert engine.warden.pid is not None
    os.kill(engine.warden.pid, signal.SIGKILL)
    await wait_until_async(lambda: not engine.is_ready)
    lost = engine.stats()
    assert (lost.ready, lost.warden.up) == (False, False)
    assert lost.memory.warden_bytes is lost.cpu.warden_seconds is lost.cpu.trees_seconds is None
    found = await stats_until(engine, lambda found: found.warden.restarts == 1)
    assert found.ready
    await stats_until(engine, lambda found: found.cpu.trees_seconds is not None)


async def test_counts_are_those_of_the_engine(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        await sh(engine, "printf 123")
        await sh(engine, "kill -9 $$")
        kept = engine.submit(
            Submission(shell_command("printf 12345"), key="a", payload=b"x")
        ).execution
        await kept.wait()
        found = engine.stats()
        ended = {reason: count for reason, count in found.executions.ended.items() if count}
        assert ended == {ExitReason.EXITED: 2, ExitReason.SIGNALED: 1}
        assert set(found.executions.ended) == set(ExitReason)
        assert found.executions.output_bytes == {"stdout": 8, "stderr": 0}
        assert found.disk.journal_bytes == (tmp_path / "state" / "journal").stat().st_size > 0
        assert not found.disk.journal_failing
        assert found.uptime_seconds > 0


async def test_sessions_are_counted_by_state(engine: Engine) -> None:
    await engine.sessions.create(session_id="a")
    engine.sessions.declare(session_id="b")
    found = engine.stats()
    assert set(found.sessions.states) == set(SessionState)
    assert {state: n for state, n in found.sessions.states.items() if n} == {"IDLE": 1, "DEAD": 1}
    assert found.sessions.ready
