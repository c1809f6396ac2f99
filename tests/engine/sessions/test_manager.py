"""Sessions as the engine keeps them, with real interpreters: the zygote's life, bounds, loss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from execd.engine.executions.command import code_program
from execd.engine.executions.submission import CellOptions, Submission
from execd.engine.sessions import session_worker, zygote_client
from execd.engine.sessions.session_state import SessionState
from execd.engine.sessions.session_worker import KILLED_NOTE, SessionWorker
from execd.engine.sessions.zygote_process import ZygoteProcess
from execd.errors import (
    Conflict,
    Internal,
    InvalidArgument,
    NotFound,
    NotSupported,
    PreconditionFailed,
    ResourceExhausted,
    SessionBusy,
    Unavailable,
)
from execd.kernel.frames import FRAME_BYTES
from execd.model import Command, ExitReason, Limits, State
from tests.engine.conftest import running, sh
from tests.gvisor import is_gvisor
from tests.patience import patience
from tests.proc.conftest import living, new_token
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.submission import Submitted
    from execd.engine.sessions.session import Session

START_SECONDS = 60.0


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with sessions_in(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def sessions_in(folder: Path, **settings: Any) -> AsyncIterator[Engine]:
    async with running(
        folder, **({"python": sys.executable, "queue_wait_seconds": START_SECONDS} | settings)
    ) as made:
        made.prepare_sessions()
        yield made


def code_command(code: str, **fields: Any) -> Command:
    return Command(program=code_program(code), **fields)


def begin(
    engine: Engine, session: Session, code: str, options: CellOptions | None = None, **fields: Any
) -> Execution:
    options = msgspec.structs.replace(options or CellOptions(), session_id=session.id)
    return engine.submit(Submission(code_command(code, **fields), options)).execution


def run_alone(engine: Engine, code: str) -> Submitted:
    """Run the code in a session of its own."""
    options = CellOptions(makes_session=True, is_last=True)
    return engine.submit(Submission(code_command(code), options))


async def run(engine: Engine, session: Session, code: str, **options: Any) -> Execution:
    cell = begin(engine, session, code, **options)
    await cell.wait()
    return cell


async def value(engine: Engine, session: Session, code: str) -> str:
    cell = await run(engine, session, code)
    assert cell.cell.status == "success", cell.output.rich
    return msgspec.json.decode(cell.output.rich[-1].fields["data"])["text/plain"]


async def test_start_does_not_wait_for_python(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, sessions="eager", session_pool=2) as engine:
        assert engine.is_ready
        assert not engine.sessions.zygote.is_up
        assert (await sh(engine, "echo at once")).text == "at once"
        await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 2, START_SECONDS)
        facts = engine.sessions.zygote.facts
        assert facts is not None
        assert facts["python"] == sys.version.split()[0]


async def test_lazy_sessions_start_nothing_before_the_first(engine: Engine) -> None:
    assert engine.sessions.zygote.facts is None
    session = await engine.sessions.create()
    assert await value(engine, session, "1 + 1") == "2"
    assert engine.sessions.zygote.facts is not None


async def test_sessions_that_are_off_are_not_supported(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, sessions="off") as engine:
        with pytest.raises(NotSupported):
            await engine.sessions.create()
        with pytest.raises(NotSupported):
            run_alone(engine, "1")


async def test_interpreter_that_does_not_start_is_named_and_commands_go_on(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no python today >&2\nexit 1\n")
    broken.chmod(0o755)
    async with sessions_in(tmp_path, python=str(broken)) as engine:
        with pytest.raises(NotSupported, match="no python today"):
            await engine.sessions.create()
        assert len(engine.sessions) == 0
        assert (await sh(engine, "echo on")).text == "on"


async def test_preloaded_modules_are_there_and_missing_ones_are_named(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, preload=("fractions", "no_such_module")) as engine:
        session = await engine.sessions.create()
        assert await value(engine, session, "import sys; 'fractions' in sys.modules") == "True"
        facts = engine.sessions.zygote.facts
        assert facts is not None
        assert "no_such_module" in " ".join(facts["warnings"])


async def test_killed_zygote_is_replaced_and_sessions_live_on(engine: Engine) -> None:
    session = await engine.sessions.create()
    await run(engine, session, "x = 1")
    process = engine.sessions.zygote._process
    assert process is not None
    process.kill()
    await wait_until_async(lambda: engine.sessions.zygote.restarts == 1, START_SECONDS)
    other = await engine.sessions.create()
    assert await value(engine, other, "2 * 3") == "6"
    assert await value(engine, session, "x") == "1"


async def test_wait_for_another_zygote_is_short_after_a_zygote_that_was_ready(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User code may kill the zygote again and again; only failed starts wait longer and longer."""
    monkeypatch.setattr(zygote_client, "FIRST_BACKOFF_SECONDS", 1000.0)
    monkeypatch.setattr(zygote_client, "MAX_BACKOFF_SECONDS", 1000.0)
    await engine.sessions.create()
    zygote = engine.sessions.zygote
    for count in (1, 2):
        await wait_until_async(lambda: zygote.is_up, START_SECONDS)
        assert zygote._process is not None
        zygote._process.kill()
        await wait_until_async(lambda count=count: zygote.restarts == count, START_SECONDS)
    assert await value(engine, await engine.sessions.create(), "2 * 3") == "6"


async def test_sessions_come_back_when_the_base_dir_does(engine: Engine, tmp_path: Path) -> None:
    await engine.sessions.create()
    zygote = engine.sessions.zygote
    assert zygote._process is not None
    shutil.rmtree(tmp_path / "base")
    (tmp_path / "base").touch()
    zygote._process.kill()
    await wait_until_async(lambda: "is not a directory" in (zygote.trouble or ""), START_SECONDS)
    (tmp_path / "base").unlink()
    await wait_until_async(lambda: zygote.is_up, START_SECONDS)
    assert await value(engine, await engine.sessions.create(), "2 * 3") == "6"


async def test_pool_is_filled_again_after_a_worker_was_lost_before_it_was_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse = session_worker.SessionWorker.rehearse
    lost: list[SessionWorker] = []

    async def rehearse_the_second(worker: SessionWorker, configuration: dict[str, Any]) -> None:
        if not lost:
            lost.append(worker)
            raise session_worker.WorkerLost("killed by user code")
        await rehearse(worker, configuration)

    monkeypatch.setattr(session_worker.SessionWorker, "rehearse", rehearse_the_second)
    async with sessions_in(tmp_path, sessions="eager", session_pool=1) as engine:
        await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 1, START_SECONDS)
    assert len(lost) == 1


async def test_unknown_error_while_the_pool_is_filled_is_logged_and_the_pool_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rehearse = session_worker.SessionWorker.rehearse
    monkeypatch.setattr(zygote_client, "MAX_BACKOFF_AFTER_READY_SECONDS", 0.01)

    async def fail_once(worker: SessionWorker, configuration: dict[str, Any]) -> None:
        if not caplog.records:
            raise RuntimeError("a fault")
        await rehearse(worker, configuration)

    monkeypatch.setattr(session_worker.SessionWorker, "rehearse", fail_once)
    with caplog.at_level(logging.ERROR):
        async with sessions_in(tmp_path, sessions="eager", session_pool=1) as engine:
            await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 1, START_SECONDS)
    assert [record.message for record in caplog.records] == [
        "the pool of workers could not be filled"
    ]


async def test_pool_is_filled_when_descriptors_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = session_worker.SessionWorker
    refused: list[OSError] = []

    def refuse_the_first(*arguments: Any, **settings: Any) -> SessionWorker:
        if not refused:
            refused.append(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            raise refused[0]
        return make(*arguments, **settings)

    monkeypatch.setattr(session_worker, "SessionWorker", refuse_the_first)
    async with sessions_in(tmp_path, sessions="eager", session_pool=1) as engine:
        await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 1, START_SECONDS)
    assert len(refused) == 1


async def stop_zygote(engine: Engine) -> None:
    """Stop the zygote, and take the worker forked before the stop."""
    zygote = engine.sessions.zygote
    await engine.sessions.create()
    await wait_until_async(lambda: zygote.n_pooled == 1, START_SECONDS)
    assert zygote._process is not None
    assert zygote._process._child is not None
    zygote._process._child.signal(signal.SIGSTOP, scope="leader")
    await engine.warden.confirm_sent()
    await engine.sessions.create()  # from the pool


async def test_stopped_zygote_is_told_to_go_on(engine: Engine) -> None:
    await stop_zygote(engine)
    session = await engine.sessions.create()
    assert await value(engine, session, "1") == "1"
    assert engine.sessions.zygote.restarts == 0


async def test_zygote_that_does_not_go_on_is_replaced(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZygoteProcess, "resume", lambda self: None)
    await stop_zygote(engine)
    session = await engine.sessions.create()
    assert await value(engine, session, "1") == "1"
    assert engine.sessions.zygote.restarts == 1


@pytest.mark.parametrize("victim", ["zygote", "warden"])
async def test_zygote_that_dies_before_a_fork_costs_its_session_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    fork = ZygoteProcess.fork
    async with sessions_in(tmp_path, session_pool=0) as engine:

        def kill_and_fork(process: ZygoteProcess, worker: SessionWorker) -> None:
            monkeypatch.setattr(ZygoteProcess, "fork", fork)
            assert process._child is not None
            if victim == "zygote":
                process._child.signal(signal.SIGKILL, scope="leader")
            else:
                assert engine.warden.pid is not None
                os.kill(engine.warden.pid, signal.SIGKILL)
            fork(process, worker)

        monkeypatch.setattr(ZygoteProcess, "fork", kill_and_fork)
        assert await value(engine, await engine.sessions.create(), "1") == "1"
        assert engine.sessions.zygote.restarts == 1


async def test_idle_session_loses_its_state_and_says_so(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, session_idle_seconds=0.3) as engine:
        session = await engine.sessions.create()
        await run(engine, session, "x = 1")
        await wait_until_async(lambda: session.state is SessionState.DEAD, START_SECONDS)
        cell = await run(engine, session, "'x' in globals()")
        assert (cell.cell.generation, cell.cell.state_lost) == (2, True)


async def test_cell_is_not_given_to_an_interpreter_that_is_being_ended(engine: Engine) -> None:
    session = await engine.sessions.create()
    await run(engine, session, "x = 1")
    assert session.worker is not None
    # as after a grace, for an idle session, or after a slow question
    session.worker.kill()
    expecting = begin(engine, session, "1", CellOptions(expect_generation=1))
    cell = await run(engine, session, "'x' in globals()")
    assert (cell.cell.status, cell.cell.generation, cell.cell.state_lost) == ("success", 2, True)
    with pytest.raises(PreconditionFailed):
        await expecting.wait()


async def test_interpreter_that_ends_before_its_first_cell_is_replaced(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await engine.sessions.create()
    other = await engine.sessions.create()
    note = engine.sessions.journal_generation

    async def slow_note(noted: Session) -> None:
        if noted.life.generation == 1 and noted.worker is not None:
            noted.worker.kill()
            await asyncio.wait((noted.worker.gone,))
        await note(noted)

    monkeypatch.setattr(engine.sessions, "journal_generation", slow_note)
    cell = await run(engine, session, "1")
    assert (cell.cell.status, cell.cell.generation) == ("success", 2)
    expecting = begin(engine, other, "1", CellOptions(expect_generation=1))
    with pytest.raises(PreconditionFailed):
        await expecting.wait()


async def test_session_whose_state_is_lost_is_not_forked(engine: Engine) -> None:
    session = await engine.sessions.create()
    await run(engine, session, "x = 1")
    await run(engine, session, "import os; os._exit(1)")
    with pytest.raises(Conflict, match="state is lost"):
        await engine.sessions.fork(session, session_id=None, count=1)
    cell = await run(engine, session, "1")
    assert (cell.cell.generation, cell.cell.state_lost) == (2, True)


async def test_session_that_dies_while_it_is_forked_leaves_no_branch(engine: Engine) -> None:
    session = await engine.sessions.create()
    await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 1, START_SECONDS)
    before = len(os.listdir("/proc/self/fd"))
    forking = asyncio.create_task(engine.sessions.fork(session, session_id=None, count=2))
    await asyncio.sleep(0)  # fork() first waits for an answer of the warden
    assert session.worker is not None
    session.worker.kill()
    with pytest.raises(Conflict):
        await forking
    await engine.sessions.end(session)
    assert len(engine.sessions) == 0
    await wait_until_async(lambda: len(os.listdir("/proc/self/fd")) < before, START_SECONDS)


async def test_cell_that_waits_for_a_thread_of_its_original_names_the_thread(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path, interrupt_grace_seconds=0.1) as engine:
        session = await engine.sessions.create()
        await run(
            engine,
            session,
            "import ctypes\n"
            "libc, thread = ctypes.CDLL(None), ctypes.c_ulong()\n"
            "libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)\n"
            "libc.pthread_setname_np(thread, b'rows-0')\n"
            "lock = ctypes.create_string_buffer(64)\n"
            "libc.pthread_mutex_lock(lock)",  # for the thread, which a branch has not
        )
        for _ in range(2):  # a branch, and a branch of the branch
            [session], warnings = await engine.sessions.fork(session, session_id=None, count=1)
            assert [text.endswith("of rows") for text in warnings] == [True]
        cell = await run(engine, session, "libc.pthread_mutex_lock(lock)", timeout_seconds=1.0)
        assert cell.result is not None
        assert cell.result.exit_reason is ExitReason.TIMEOUT
        assert "it is a branch: 1 native thread(s)" in cell.result.message
        assert cell.result.message.endswith("of rows")


async def test_question_that_takes_too_long_is_interrupted_and_keeps_the_state(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.sessions.session.REQUEST_SECONDS", 2.0)
    session = await engine.sessions.create()
    await run(
        engine,
        session,
        "import time\nclass Slow:\n    def __repr__(self): time.sleep(60)\nslow, x = Slow(), 1",
    )
    said = await engine.sessions.variables(session, 10)
    assert {variable["name"] for variable in msgspec.json.decode(said.variables)} == {
        "time",
        "Slow",
        "slow",
        "x",
    }
    await run(engine, session, "class Slow:\n    def __dir__(self): time.sleep(60)\nslow = Slow()")
    # IPython's completer may catch the interrupt, and have nothing to say
    with contextlib.suppress(Conflict):
        await engine.sessions.complete(session, "slow.", 5)
    cell = await run(engine, session, "x")
    assert (cell.cell.status, cell.cell.generation, cell.cell.state_lost) == ("success", 1, False)


@pytest.mark.parametrize("grace_seconds", [60.0, 0.1], ids=["patient", "impatient"])
async def test_question_answered_late_keeps_the_state_and_a_question_never_answered_costs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace_seconds: float
) -> None:
    monkeypatch.setattr("execd.engine.sessions.session.REQUEST_SECONDS", 1.5)
    monkeypatch.setattr("execd.engine.sessions.session.REQUEST_GRACE_SECONDS", grace_seconds)
    answers = grace_seconds > 1
    slow = f"""
import signal, time
interrupts = []
class Slow:
    def __dir__(self):
        signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
        while not (interrupts and {answers}):
            time.sleep(0.01)
        time.sleep(0.5)
        return ["answer"]
slow, x = Slow(), 1
"""
    # Shorter than the answer takes: the grace of cells is not the grace of questions.
    async with sessions_in(tmp_path, interrupt_grace_seconds=0.1) as engine:
        session = await engine.sessions.create()
        await run(engine, session, slow)
        with contextlib.nullcontext() if answers else pytest.raises(Conflict):
            await engine.sessions.complete(session, "slow.", 5)
        cell = await run(engine, session, "1")
        assert cell.cell.state_lost is not answers


async def test_fault_of_our_own_in_a_cell_is_an_answer_and_no_second_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await engine.sessions.create()
    await run(engine, session, "n = 0")
    with monkeypatch.context() as patch:
        patch.setattr("execd.engine.sessions.cell_run.decide", lambda *_: 1 // 0)
        options = CellOptions(session_id=session.id)
        submission = Submission(code_command("n += 1"), options, key="k")
        cell = engine.submit(submission).execution
        with pytest.raises(Internal, match=cell.id):
            await cell.wait()
    assert engine.submit(submission) == (cell, False)
    shown = await run(engine, session, "print(n)")
    assert shown.output.streams["stdout"].memory.read(0, 2) == b"1\n"


async def test_forks_at_the_same_time_stay_within_the_bound_together(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, max_sessions=5) as engine:
        parents = [await engine.sessions.create() for _ in range(2)]
        answers = await asyncio.gather(
            *(engine.sessions.fork(parent, session_id=None, count=2) for parent in parents),
            return_exceptions=True,
        )
        assert sorted(type(answer) for answer in answers if isinstance(answer, Exception)) == [
            ResourceExhausted
        ]
        assert len(engine.sessions) == 4
        await engine.sessions.create()


async def test_sessions_over_the_bound_are_refused_until_one_is_deleted(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, max_sessions=2) as engine:
        first = await engine.sessions.create()
        await engine.sessions.create()
        with pytest.raises(ResourceExhausted):
            await engine.sessions.create()
        with pytest.raises(ResourceExhausted):
            await engine.sessions.fork(first, session_id=None, count=1)
        assert len(engine.sessions) == 2
        await engine.sessions.end(first)
        await engine.sessions.create()
        with pytest.raises(NotFound):
            engine.sessions.get(first.id)


async def test_session_that_was_made_for_a_cell_that_could_not_run_is_forgotten(
    tmp_path: Path,
) -> None:
    async with sessions_in(tmp_path, max_sessions=1) as engine:
        await engine.sessions.create()
        for name, keep in ((None, True), ("named", False), (None, False)):
            options = CellOptions(
                session_id=name, makes_session=True, is_last=name is None and not keep
            )
            cell = engine.submit(Submission(code_command("1"), options)).execution
            with pytest.raises(ResourceExhausted):
                await cell.wait()
        await wait_until_async(lambda: len(engine.sessions) == 1, START_SECONDS)


async def test_cell_that_waits_too_long_never_runs(tmp_path: Path) -> None:
    async with sessions_in(tmp_path) as engine:
        session = await engine.sessions.create()
        holding = begin(engine, session, "import time; time.sleep(60)")
        await holding.wait_started()
        engine.sessions.config = msgspec.structs.replace(engine.config, queue_wait_seconds=0.2)
        late = begin(engine, session, "y = 1")
        with pytest.raises(ResourceExhausted):
            await late.wait()
        with pytest.raises(SessionBusy):
            begin(engine, session, "1", CellOptions(on_busy="reject"))
        holding.end(ExitReason.CANCELED, 2.0)
        await holding.wait()
        assert await value(engine, session, "'y' in globals()") == "False"


async def test_cells_that_wait_are_bounded(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, max_queued=2) as engine:
        session = await engine.sessions.create()
        cells = [begin(engine, session, "import time; time.sleep(0.2)") for _ in range(3)]
        with pytest.raises(ResourceExhausted):
            begin(engine, session, "1")
        idle = await engine.sessions.create()
        assert await value(engine, idle, "1") == "1", "it does not have to wait"
        for cell in cells:
            await cell.wait()


async def test_slow_disk_loses_nothing_of_what_a_cell_wrote(engine: Engine) -> None:
    session = await engine.sessions.create()
    over = threading.Event()
    for _ in range(4):
        engine._parts.store.threads.submit(over.wait)
    # As for commands: the output exceeds memory. The rest of the output is in the pipe when the
    # cell reports the end.
    cell = begin(engine, session, "print('x' * 320_000)\nprint('end')")
    try:
        await wait_until_async(lambda: cell.output.streams["stdout"].spool is not None)
        slow = asyncio.get_running_loop().call_later(0.3, over.set)
        await cell.wait()
        slow.cancel()
    finally:
        over.set()
    assert cell.view.total_bytes("stdout") == 320_005
    assert (await cell.view.read("stdout", 320_000, 320_005)) == b"\nend\n"
    assert await value(engine, session, "1") == "1"


async def test_cell_that_is_cancelled_while_it_waits_leaves_the_queue(
    engine: Engine, tmp_path: Path
) -> None:
    session = await engine.sessions.create()
    holding = begin(
        engine, session, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    )
    waiting = begin(engine, session, "y = 1")
    await holding.wait_started()
    waiting.end(ExitReason.CANCELED, 0.0)
    result = await waiting.wait()
    assert result.exit_reason is ExitReason.CANCELED
    (tmp_path / "base/go").touch()
    assert await value(engine, session, "'y' in globals()") == "False"


async def test_cell_that_says_that_it_is_done_before_it_is_told_to_stop_keeps_its_reason(
    engine: Engine, tmp_path: Path
) -> None:
    session = await engine.sessions.create()
    cell = begin(
        engine,
        session,
        "import time; time.sleep(0.1); open('done', 'w').close(); 1 + 1",
        timeout_seconds=3.0,
    )
    await cell.wait_started()
    # The loop hears nothing, and the deadline's timer is due before the frames are read.
    wait_until((tmp_path / "base/done").exists, 20)
    wait_until(lambda: time.monotonic() > cell.deadlines.deadline, 20)
    cell.deadlines._check_deadline()
    result = await cell.wait()
    assert (result.exit_reason, cell.cell.status) == (ExitReason.EXITED, "success")


async def test_lost_warden_ends_cells_and_sessions_begin_anew(engine: Engine) -> None:
    session = await engine.sessions.create()
    await run(engine, session, "x = 1")
    cell = begin(engine, session, "import time; time.sleep(60)")
    await cell.wait_started()
    assert engine.warden.pid is not None
    os.kill(engine.warden.pid, signal.SIGKILL)
    result = await cell.wait()
    assert (result.exit_reason, cell.cell.status) == (ExitReason.INIT_KILLED, "error")
    after = await run(engine, session, "1 + 1")
    assert (after.cell.status, after.cell.generation, after.cell.state_lost) == ("success", 2, True)


async def test_drain_ends_cells_as_shutdown(engine: Engine) -> None:
    session = await engine.sessions.create()
    cell = begin(engine, session, "import time; time.sleep(60)")
    waiting = begin(engine, session, "1")
    await cell.wait_started()
    await engine.drain()
    assert (await cell.wait()).exit_reason is ExitReason.SHUTDOWN
    with pytest.raises(Unavailable):
        await waiting.wait()
    with pytest.raises(Unavailable):
        begin(engine, session, "1")


async def test_stopped_worker_cannot_hold_its_session(tmp_path: Path) -> None:
    async with sessions_in(tmp_path, interrupt_grace_seconds=0.3) as engine:
        session = await engine.sessions.create()
        began = time.monotonic()
        cell = await run(
            engine,
            session,
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
            timeout_seconds=1.5,
        )
        assert time.monotonic() - began < patience(5)
        assert cell.result is not None
        assert cell.result.exit_reason is ExitReason.TIMEOUT
        after = await run(engine, session, "1")
        assert (after.cell.status, after.cell.generation, after.cell.state_lost) == (
            "success",
            2,
            True,
        )


async def test_output_between_cells_is_counted_and_blocks_nobody(
    engine: Engine, tmp_path: Path
) -> None:
    session = await engine.sessions.create()
    code = (
        "import os, threading, time\n"
        "def later():\n"
        "    while not os.path.exists('gate'): time.sleep(0.01)\n"
        "    os.write(1, b'x' * 500_000)\n"
        "threading.Thread(target=later).start()"
    )
    cell = await run(engine, session, code)
    assert cell.state is State.EXITED
    (tmp_path / "base/gate").touch()
    await wait_until_async(lambda: session.unclaimed_output_bytes == 500_000, 20)
    assert (await run(engine, session, "1")).view.total_bytes("stdout") == 0
    assert session.unclaimed_output_bytes == 0


async def test_flood_of_displays_is_ended(engine: Engine) -> None:
    session = await engine.sessions.create()
    code = (
        "import json, os\n"
        "frame = json.dumps({'type': 'clear_output', 'id': 1, 'wait': False}).encode()\n"
        "frame = len(frame).to_bytes(4, 'big') + frame\n"
        "socks = [fd for fd in map(int, os.listdir('/proc/self/fd')) if fd > 2]\n"
        "while True:\n"
        "    for fd in socks:\n"
        "        try: os.write(fd, frame)\n"
        "        except OSError: pass\n"
    )
    cell = await run(engine, session, code, timeout_seconds=30)
    assert cell.result is not None
    assert cell.result.exit_reason in (ExitReason.OUTPUT_LIMIT, ExitReason.WORKER_DIED)
    assert len(cell.output.rich) <= 10_000
    assert (await run(engine, session, "1")).cell.state_lost


async def test_cwd_that_is_gone_is_the_callers_and_leaves_no_session(engine: Engine) -> None:
    with pytest.raises(InvalidArgument):
        await engine.sessions.create(session_id="here", cwd="/no/such/place")
    session = await engine.sessions.create(session_id="here")
    assert await value(engine, session, "1") == "1"


async def test_deleted_session_lets_those_who_wait_go(engine: Engine) -> None:
    session = await engine.sessions.create()
    cell = begin(engine, session, "import time; time.sleep(60)")
    waiting = begin(engine, session, "1")
    await cell.wait_started()
    await engine.sessions.end(session)
    assert (await cell.wait()).exit_reason is ExitReason.CANCELED
    with pytest.raises(NotFound):
        await waiting.wait()


async def test_answer_to_input_that_could_not_be_sent_is_taken_when_it_comes_again(
    engine: Engine,
) -> None:
    session = await engine.sessions.create()
    cell = begin(engine, session, "input('name? ')", CellOptions(allow_input=True))
    await wait_until_async(lambda: cell.runner.open_input_request is not None, 20)
    with pytest.raises(InvalidArgument) as refused:
        engine.sessions.give_input(session, "x" * (FRAME_BYTES + 1))
    assert refused.value.details == {"field": "text"}
    engine.sessions.give_input(session, "Ada")
    with pytest.raises(Conflict):
        engine.sessions.give_input(session, "Ada")
    await cell.wait()
    assert msgspec.json.decode(cell.output.rich[-1].fields["data"])["text/plain"] == "'Ada'"


async def test_deleting_a_session_waits_for_the_end_of_that_session_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, neighbour = await engine.sessions.create(), await engine.sessions.create()
    token = new_token()
    await run(
        engine, session, f"import subprocess; subprocess.Popen(['setsid', 'sleep', '{token}'])"
    )
    worker, may_end = neighbour.worker, asyncio.Event()
    assert worker is not None
    close = worker.close

    async def close_late() -> None:
        await may_end.wait()
        await close()

    monkeypatch.setattr(worker, "close", close_late)
    deleting = asyncio.create_task(engine.sessions.end(neighbour))
    await wait_until_async(lambda: neighbour.worker is None, 20)
    async with asyncio.timeout(20):
        await engine.sessions.end(session)
    assert living(f"sleep {token}") == []
    assert not deleting.done()
    may_end.set()
    await deleting


async def test_many_sessions_leave_nothing_behind(engine: Engine) -> None:
    n_sessions = 20 if is_gvisor() else 100  # a session takes gVisor half a second
    first = await engine.sessions.create()
    await wait_until_async(lambda: engine.sessions.zygote.n_pooled == 1, START_SECONDS)
    await asyncio.sleep(0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(n_sessions):
        cell = run_alone(engine, f"{number}").execution
        await cell.wait()
    await wait_until_async(
        lambda: len(engine.sessions) == 1 and engine.sessions.zygote.n_pooled == 1, START_SECONDS
    )
    await wait_until_async(lambda: len(os.listdir("/proc/self/fd")) <= before, START_SECONDS)
    # The zygote, the first session and the pooled worker.
    await wait_until_async(lambda: len(engine.warden._children) == 3, START_SECONDS)
    assert await value(engine, first, "1") == "1"


async def test_a_cell_does_not_answer_for_the_cpu_time_of_a_process_that_an_earlier_cell_left(
    engine: Engine,
) -> None:
    session = await engine.sessions.create(limits=Limits(cpu_seconds=1))
    busy = "import subprocess\nleft = subprocess.Popen(['sh', '-c', 'while :; do :; done'])\n"
    # A process younger than 20 ms would count as the next cell's.
    is_young = "int(open(f'/proc/{left.pid}/stat').read().split()[13]) < 10"
    await run(engine, session, f"{busy}while {is_young}: pass")
    cell = await run(engine, session, "left.wait()")
    assert cell.result is not None
    assert (cell.result.exit_reason, cell.cell.status) == (ExitReason.EXITED, "success")
    assert await value(engine, session, "left.returncode") == "-9"


async def test_a_cell_answers_for_the_cpu_time_of_its_own_process(engine: Engine) -> None:
    session = await engine.sessions.create(limits=Limits(cpu_seconds=1))
    cell = await run(engine, session, "!while :; do :; done")
    assert cell.result is not None
    assert (cell.result.exit_reason, cell.cell.status) == (ExitReason.CPU_LIMIT, "error")


HANGING_EXIT = "import atexit, time\natexit.register(time.sleep, 1000);"


def unwritten(path: Path) -> str:
    return f"f = open({str(path)!r}, 'w')\nn = f.write('text')"


@pytest.mark.parametrize("end", ["delete", "restart", "drain", "eviction"])
async def test_end_of_a_session_loses_no_text_of_its_files(tmp_path: Path, end: str) -> None:
    idle_seconds = 0.3 if end == "eviction" else 3600.0
    async with sessions_in(tmp_path, session_idle_seconds=idle_seconds) as engine:
        session = await engine.sessions.create()
        await run(engine, session, unwritten(tmp_path / "found"))
        if end == "delete":
            await engine.sessions.end(session)
        elif end == "restart":
            await engine.sessions.restart(session)
        elif end == "drain":
            await engine.drain()
        else:
            await wait_until_async(lambda: session.state is SessionState.DEAD, START_SECONDS)
        assert (tmp_path / "found").read_text() == "text"


@pytest.mark.parametrize("end", ["end", "restart", "drain"])
async def test_end_of_a_busy_session_interrupts_its_cell_and_loses_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    # A busy machine may need more than the daemon's seconds for an interpreter's end.
    monkeypatch.setattr("execd.engine.sessions.session.END_SECONDS", 60.0)
    graces = {"cancel_grace_seconds": 60.0, "shutdown_timeout": 300.0}
    async with sessions_in(tmp_path, **graces) as engine:
        session = await engine.sessions.create()
        marker = tmp_path / "is written"
        code = f"{unwritten(tmp_path / 'found')}\nopen({str(marker)!r}, 'w').close()"
        cell = begin(engine, session, f"{code}\nimport time\ntime.sleep(1000)")
        await wait_until_async(marker.exists)
        waiting = begin(engine, session, "'f' in globals()")
        if end == "drain":
            await engine.drain()
        else:
            await getattr(engine.sessions, end)(session)
        assert (tmp_path / "found").read_text() == "text"
        expected = {"end": "CANCELED", "restart": "INTERRUPTED", "drain": "SHUTDOWN"}
        assert (await cell.wait()).exit_reason is ExitReason[expected[end]]
        with contextlib.suppress(NotFound, Unavailable):
            await waiting.wait()
            data = msgspec.json.decode(waiting.output.rich[-1].fields["data"])
            assert data["text/plain"] == "False"


async def test_interpreter_that_does_not_end_is_killed_and_the_next_cell_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("execd.engine.sessions.session.END_SECONDS", 0.2)
    session = await engine.sessions.create()
    await run(engine, session, HANGING_EXIT)
    await engine.sessions.restart(session)
    cell = await run(engine, session, "1")
    assert (cell.cell.status, cell.cell.state_lost) == ("success", True)
    assert cell.cell.background is not None
    assert b"did not end within" in cell.cell.background.stderr
    assert "an interpreter was killed before its end" in caplog.messages


async def test_code_whose_interpreter_does_not_end_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.sessions.cell_run.END_SECONDS", 0.2)
    submitted = run_alone(engine, HANGING_EXIT)
    result = await submitted.execution.wait()
    assert (result.exit_code, result.exit_reason) == (0, ExitReason.EXITED)
    stderr = submitted.execution.output.streams["stderr"]
    assert b"did not end within" in (stderr.memory.read(0, stderr.total_bytes) or b"")


async def test_interpreter_that_an_exit_function_ends_was_in_time(engine: Engine) -> None:
    code = "import atexit, os\n_ = atexit.register(os._exit, 3)"
    submitted = run_alone(engine, code)
    result = await submitted.execution.wait()
    assert (result.exit_code, result.exit_reason) == (0, ExitReason.EXITED)
    assert submitted.execution.view.total_bytes("stderr") == 0


# As the memory guard and the kernel do.
KILLING_EXIT = "import atexit, os\n_ = atexit.register(os.kill, os.getpid(), 9)"


async def test_interpreter_that_is_killed_in_its_exit_functions_says_so(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    submitted = run_alone(engine, KILLING_EXIT)
    result = await submitted.execution.wait()
    assert (result.exit_code, result.exit_reason) == (0, ExitReason.EXITED)
    stderr = submitted.execution.output.streams["stderr"]
    assert stderr.memory.read(0, stderr.total_bytes) == KILLED_NOTE
    session = await engine.sessions.create()
    await run(engine, session, KILLING_EXIT)
    await engine.sessions.restart(session)
    cell = await run(engine, session, "1")
    assert cell.cell.background is not None
    assert cell.cell.background.stderr == KILLED_NOTE
    assert "an interpreter was killed before its end" in caplog.messages


async def test_cell_that_waits_for_input_does_not_hold_up_the_end_of_its_session(
    engine: Engine,
) -> None:
    session = await engine.sessions.create()
    cell = begin(engine, session, "input()", CellOptions(allow_input=True))
    await wait_until_async(lambda: session.state is SessionState.WAITING_INPUT)
    await engine.sessions.end(session)
    assert (await cell.wait()).exit_reason is ExitReason.CANCELED
