"""One cell in a real worker: which frames count, and the ladder of an end."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from execd.engine.sessions.session_state import SessionState
from execd.model import ExitReason, Limits
from tests.engine.sessions.test_forged_frames import DONE, OWN, RESULT, SPEAK, as_bytes
from tests.engine.sessions.test_manager import begin, run, sessions_in, value
from tests.proc.conftest import living, new_token
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("distance", [-1, 1], ids=["earlier", "later"])
async def test_frames_with_the_number_of_another_cell_do_not_count(
    tmp_path: Path, distance: int
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        await run(engine, session, "None")
        other = session._number + 1 + distance
        error = {"type": "error", "id": OWN, "name": "E", "value": "forged", "traceback": []}
        done = {**DONE, "status": "error", "execution_count": 99, "exit": {"code": 7}}
        forged = [as_bytes(frame, other) for frame in (RESULT, error, done)]
        cell = await run(engine, session, f"{SPEAK % forged}\n'own'")
        assert [rich.kind for rich in cell.output.rich] == ["result"]
        shown = msgspec.json.decode(cell.output.rich[0].fields["data"])
        assert shown["text/plain"] == "'own'"
        assert cell.result is not None
        assert (cell.result.exit_reason, cell.result.exit_code) == (ExitReason.EXITED, 0)
        assert (cell.cell.status, cell.cell.execution_count) == ("success", 2)
        assert session.generation == 1


async def test_the_duration_of_a_cell_is_the_time_between_its_begin_and_its_end(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        began = time.monotonic()
        cell = await run(engine, session, "import time; time.sleep(0.1)")
        assert cell.result is not None
        assert 0.1 <= cell.result.duration_seconds <= time.monotonic() - began


async def test_a_timed_out_cell_keeps_its_state_although_a_command_would_be_killed_by_then(
    tmp_path: Path,
) -> None:
    async with sessions_in(
        tmp_path, timeout_grace_seconds=0.05, interrupt_grace_seconds=1000.0
    ) as engine:
        session = await engine.sessions.create()
        await run(engine, session, "import os, signal, time; kept = 'kept'")
        # Deaf to all interrupts: the second one comes long before a command's grace is over.
        code = (
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "while not os.path.exists('answered'): time.sleep(0.01)\n"
        )
        # The answer comes 0.45 s after the limit, long after the grace of a command.
        cell = await run(engine, session, code, timeout_seconds=2.5)
        (tmp_path / "base/answered").touch()
        assert cell.result is not None
        assert cell.result.exit_reason is ExitReason.TIMEOUT
        assert await value(engine, session, "kept") == "'kept'"
        assert session.generation == 1


async def test_a_cell_that_goes_on_after_its_interrupt_is_interrupted_again_and_keeps_its_state(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        code = (
            "import time\n"
            "try:\n"
            "    open('begun', 'w').close()\n"
            "    while True: time.sleep(0.01)\n"
            "except KeyboardInterrupt:\n"
            "    while True: time.sleep(0.01)\n"
        )
        cell = begin(engine, session, code)
        await wait_until_async(lambda: (tmp_path / "base/begun").exists(), 20)
        cell.end(ExitReason.INTERRUPTED, 4.0)
        result = await cell.wait()
        assert (result.exit_reason, result.term_signal) == (ExitReason.INTERRUPTED, None)
        assert await value(engine, session, "time.__name__") == "'time'"
        assert session.generation == 1


async def test_a_cell_that_ignores_its_interrupt_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        code = (
            "import signal, time\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "open('begun', 'w').close()\n"
            "while True: time.sleep(1000)\n"
        )
        cell = begin(engine, session, code)
        await wait_until_async(lambda: (tmp_path / "base/begun").exists(), 20)
        cell.end(ExitReason.CANCELED, 0.2)
        await wait_until_async(lambda: session.state is SessionState.DEAD, 20)
        assert (await cell.wait()).exit_reason is ExitReason.CANCELED
        after = await run(engine, session, "1")
        assert (after.cell.generation, after.cell.state_lost) == (2, True)


async def test_the_end_of_a_grace_after_the_workers_death_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        code = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
            "open('begun', 'w').close()\n"
            "while True: time.sleep(0.01)\n"
        )
        cell = begin(engine, session, code)
        await wait_until_async(lambda: (tmp_path / "base/begun").exists(), 20)
        over = time.monotonic() + 0.6
        cell.end(ExitReason.CANCELED, 0.5)
        assert (await cell.wait()).exit_reason is ExitReason.CANCELED
        await wait_until_async(lambda: time.monotonic() > over, 20)
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_caller_that_leaves_after_a_cell_is_done_ends_nothing(tmp_path: Path) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        token = new_token()
        code = f"import subprocess; p = subprocess.Popen(['sleep', '{token}'])"
        cell = begin(engine, session, code)
        with cell.attach():
            await cell.wait_started()
            runner = cell.runner
            assert runner is not None
            # The loop does not turn: the cell is done, and its end is not handled yet.
            wait_until(runner.sample, 20)
        result = await cell.wait()
        assert (result.exit_reason, result.killed) == (ExitReason.EXITED, 0)
        assert living(f"sleep {token}") != []


async def test_limit_that_is_heard_of_after_the_cell_is_done_ends_what_the_cell_has_begun(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path, interrupt_grace_seconds=0.2) as engine:
        session = await engine.sessions.create(limits=Limits(cpu_seconds=1))
        left, busy = new_token(), new_token()
        deaf = f"trap : TERM; while :; do sleep {left}; done"
        cell = begin(
            engine,
            session,
            "import subprocess, sys\n"
            f"deaf = subprocess.Popen(['sh', '-c', {deaf!r}])\n"
            f"code = subprocess.call([sys.executable, '-c', 'while True: pass', '{busy}'])",
        )
        await cell.wait_started()
        await wait_until_async(lambda: living(busy) and living(f"sleep {left}"), 20)
        worker = session.worker
        assert worker is not None
        busy_process = psutil.Process(*living(busy))
        await wait_until_async(lambda: busy_process.cpu_times().user > 0.2, 20)
        await worker.memory_bytes()  # the warden has begun to count the cell
        runner = cell.runner
        assert runner is not None
        wait_until(runner.sample, 20)  # the loop does not turn
        result = await cell.wait()
        assert (result.exit_reason, result.survivors) == (ExitReason.CPU_LIMIT, ())
        assert living(f"sleep {left}") == []
        assert session.generation == 1


async def test_what_a_thread_starts_after_its_cell_was_ended_ends_with_the_session(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        token = new_token()
        os.mkfifo(tmp_path / "base/ended")
        cell = begin(
            engine,
            session,
            "import subprocess, threading\n"
            "def work():\n"
            "    open('begun', 'w').close()\n"
            "    open('ended').close()\n"
            f"    subprocess.run(['sleep', '{token}'])\n"
            "threading.Thread(target=work).start()\n"
            "threading.Event().wait()",
        )
        await wait_until_async(lambda: (tmp_path / "base/begun").exists(), 20)
        cell.end(ExitReason.INTERRUPTED, 4.0)
        assert (await cell.wait()).survivors == ()
        await asyncio.to_thread((tmp_path / "base/ended").write_text, "")
        await wait_until_async(lambda: living(f"sleep {token}"), 20)
        await engine.sessions.restart(session)
        await wait_until_async(lambda: not living(f"sleep {token}"), 20)
