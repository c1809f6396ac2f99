"""Starts of zygotes that fail, with interpreters made for the test: what is refused, and when a
refused interpreter gets a new start."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from execd.engine.sessions import zygote_client, zygote_process
from execd.errors import NotSupported
from tests.engine.sessions.test_manager import START_SECONDS, sessions_in, value
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine

PYTHON = shlex.quote(sys.executable)


def write_program(path: Path, text: str) -> str:
    """Put the program in place at once: the daemon may start the program at any moment."""
    written = path.with_name(f".{path.name}")
    written.write_text(text)
    written.chmod(0o755)
    return str(written.replace(path))


async def refuse_session(engine: Engine, words: str) -> str:
    """Ask for a session, which is refused; return the cause."""
    with pytest.raises(NotSupported, match=words) as refused:
        await engine.sessions.create()
    return str(refused.value.details["cause"])


async def test_interpreter_that_hangs_is_refused_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "BEGIN_SECONDS", 0.2)
    monkeypatch.setattr(zygote_process, "START_SECONDS", 2.0)
    left = tmp_path / "left"
    text = f"#!/bin/sh\nsleep 1000 &\nwait $!\ntouch {left}\n"
    python = write_program(tmp_path / "python", text)
    async with sessions_in(tmp_path, python=python) as engine:
        assert await refuse_session(engine, "has not begun to run Python within 0.2 s") == "hangs"
        await wait_until_async(
            lambda: "did not load IPython within 2 s" in (engine.sessions.zygote.trouble or ""),
            START_SECONDS,
        )
        assert await refuse_session(engine, "did not load IPython within 2 s") == "hangs"
    assert not left.exists()


async def test_interpreter_that_was_stopped_while_it_starts_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "SLOW_SECONDS", 0.05)
    text = f'#!/bin/sh\nkill -STOP $$\nexec {PYTHON} "$@"\n'
    python = write_program(tmp_path / "python", text)
    async with sessions_in(tmp_path, python=python) as engine:
        assert await value(engine, await engine.sessions.create(), "6 * 7") == "42"
        assert engine.sessions.zygote.restarts == 0


async def test_interpreter_that_is_slow_to_begin_serves_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "BEGIN_SECONDS", 0.2)
    go = tmp_path / "go"
    text = f'#!/bin/sh\nuntil test -e {go}; do sleep 0.02; done\nexec {PYTHON} "$@"\n'
    python = write_program(tmp_path / "python", text)
    async with sessions_in(tmp_path, python=python) as engine:
        assert await refuse_session(engine, "has not begun to run Python") == "hangs"
        go.touch()
        await wait_until_async(lambda: engine.sessions.zygote.is_up, START_SECONDS)
        assert engine.sessions.refusal is None
        assert await value(engine, await engine.sessions.create(), "6 * 7") == "42"
        assert engine.sessions.zygote.restarts == 0


async def test_interpreter_may_print_as_much_as_is_allowed_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "MAX_START_OUTPUT_BYTES", 1000)
    text = f'#!/bin/sh\nprintf "%{{}}s" >&2\nexec {PYTHON} "$@"\n'
    python = write_program(tmp_path / "python", text.replace("{}", "1000"))
    async with sessions_in(tmp_path / "allowed", python=python) as engine:
        assert await value(engine, await engine.sessions.create(), "6 * 7") == "42"
    python = write_program(tmp_path / "python", text.replace("{}", "1001"))
    async with sessions_in(tmp_path / "more", python=python) as engine:
        assert await refuse_session(engine, "does not run the program of sessions") == "garbage"


async def test_interpreter_that_never_loads_ipython_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "START_SECONDS", 2.0)
    (tmp_path / "IPython.py").write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "beginning.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "program = sys.argv[2]\nsys.argv = ['-c', *sys.argv[3:]]\nexec(program)\n"
    )
    text = f'#!/bin/sh\nexec {PYTHON} {tmp_path}/beginning.py "$@"\n'
    python = write_program(tmp_path / "python", text)
    async with sessions_in(tmp_path, python=python) as engine:
        assert await refuse_session(engine, "did not load IPython within 2 s") == "hangs"


async def test_interpreter_that_served_is_refused_only_after_several_starts_that_look_its_fault(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    python = write_program(tmp_path / "python", f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    async with sessions_in(tmp_path, python=python, session_pool=0) as engine:
        await engine.sessions.create()
        write_program(tmp_path / "python", f"#!/bin/sh\necho >>{starts}\nkill -SEGV $$\n")
        process = engine.sessions.zygote._process
        assert process is not None
        process.kill()
        await wait_until_async(lambda: engine.sessions.refusal is not None, START_SECONDS)
        assert await refuse_session(engine, "crashed at its start with signal 11") == "crashed"
        assert starts.read_text() == "\n" * zygote_client.MAX_DOUBTS


async def test_refused_interpreter_gets_a_new_start_after_a_while_and_the_caller_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired, starts = tmp_path / "repaired", tmp_path / "starts"
    text = f'#!/bin/sh\necho >>{starts}\ntest -e {repaired} || exit 1\nexec {PYTHON} "$@"\n'
    python = write_program(tmp_path / "python", text)
    async with sessions_in(tmp_path, python=python) as engine:
        await refuse_session(engine, "exit code 1")
        repaired.touch()
        await refuse_session(engine, "exit code 1")
        assert starts.read_text() == "\n", "nothing that a footprint shows has changed"
        monkeypatch.setattr(zygote_client, "REFUSED_SECONDS", 0.0)
        await refuse_session(engine, "exit code 1")
        await wait_until_async(lambda: engine.sessions.zygote.is_up, START_SECONDS)
        assert await value(engine, await engine.sessions.create(), "6 * 7") == "42"
        assert engine.sessions.refusal is None
