"""Which Python serves: the choice alone, then with real interpreters."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from execd import own_tree
from execd.engine.executions import interpreters
from execd.engine.sessions import zygote_client, zygote_process
from execd.engine.sessions.interpreter_choice import InterpreterChoice
from execd.engine.sessions.interpreter_refusal import Footprint, Refusal
from execd.errors import NotSupported
from execd.model import Interpreter
from tests.engine.conftest import running
from tests.engine.sessions.test_manager import START_SECONDS, value
from tests.engine.sessions.test_zygote_process import write_program
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine

PYTHON = shlex.quote(sys.executable)
IMAGE = Interpreter("/usr/bin/python3", "image", "first on PATH")
OWN = Interpreter("/opt/execd/bin/python3", "own", "the image's cannot serve")
TOO_OLD = Refusal("too_old", "Python 3.6 is too old")
BROKEN = Refusal("broken_ipython", "no IPython")


def test_next_interpreter_takes_the_place_of_a_refused_one_and_says_why(tmp_path: Path) -> None:
    choice = InterpreterChoice([IMAGE, OWN])
    assert (choice.current, choice.is_last) == (IMAGE, False)
    image = tmp_path / "python3"
    assert choice.refuse(TOO_OLD, Footprint(str(image))) == TOO_OLD
    assert (choice.current.path, choice.is_last) == (OWN.path, True)
    assert choice.current.reason == "the image's cannot serve: Python 3.6 is too old"
    both = Refusal("too_old", "Python 3.6 is too old; and execd's own: no IPython")
    for _ in range(2):
        assert choice.refuse(BROKEN, Footprint(OWN.path)) == both
    assert not choice.has_changed()
    image.touch()
    assert choice.has_changed(), "a refused interpreter is another one now"
    choice.begin_again()
    assert choice.current == IMAGE


def test_only_interpreter_is_the_last() -> None:
    choice = InterpreterChoice([IMAGE])
    assert choice.is_last
    assert choice.refuse(BROKEN, Footprint(IMAGE.path)) == BROKEN
    assert choice.current == IMAGE


def test_interpreter_that_serves_is_the_choice_for_good() -> None:
    choice = InterpreterChoice([IMAGE, OWN])
    choice.refuse(TOO_OLD, Footprint(IMAGE.path))
    chosen = choice.current
    choice.settle()
    assert (choice.current, choice.is_last) == (chosen, True)
    assert choice.refuse(BROKEN, Footprint(OWN.path)) == BROKEN
    assert choice.current == chosen


def path_of(*programs: Path) -> dict[str, str]:
    return {"PATH": ":".join([*(str(program.parent) for program in programs), os.defpath])}


def told(engine: Engine) -> tuple[str, str, str]:
    facts = engine.capabilities()["sessions"]["interpreter"]
    return facts["path"], facts["origin"], facts["reason"]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The place of the image's Python."""
    (tmp_path / "image").mkdir()
    return tmp_path / "image" / "python3"


async def test_sessions_run_on_the_image_s_python_where_it_can_serve(
    tmp_path: Path, image: Path
) -> None:
    write_program(image, f'#!/bin/sh\nAT=image exec {PYTHON} "$@"\n')
    async with running(tmp_path, path_of(image), image_env="on") as engine:
        session = await engine.sessions.create()
        assert session.interpreter is not None
        assert session.interpreter.origin == "image"
        assert told(engine) == (str(image), "image", "the first python3 on PATH")


async def test_sessions_run_on_execd_s_own_python_where_the_image_s_cannot_serve(
    tmp_path: Path, image: Path
) -> None:
    """A program that is no Python, also without ``--image-env``, as with execd from pip."""
    shutil.copy("/bin/false", image)
    async with running(tmp_path, path_of(image)) as engine:
        session = await engine.sessions.create()
        assert await value(engine, session, "__import__('sys').executable") == repr(sys.executable)
        path, origin, reason = told(engine)
        assert (path, origin) == (sys.executable, "own")
        assert reason.startswith("the image's Python cannot serve sessions: ")
        assert f"{image} ended with exit code 1 and does not run Python" in reason
        assert session.interpreter is not None
        assert session.interpreter.reason == reason
        assert engine.sessions.refusal is None
        branches, _ = await engine.sessions.fork(session, session_id=None, count=1)
        assert branches[0].interpreter == session.interpreter


async def test_image_s_python_that_hangs_gives_way_to_execd_s_own(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "BEGIN_SECONDS", 0.2)
    # The time to set the other bound before the second start.
    monkeypatch.setattr(zygote_client, "FIRST_BACKOFF_SECONDS", 1.0)
    write_program(image, "#!/bin/sh\nexec sleep 1000\n")
    async with running(tmp_path, path_of(image), image_env="on") as engine:
        session = asyncio.create_task(engine.sessions.create())
        await wait_until_async(lambda: told(engine)[1] == "own", START_SECONDS)
        monkeypatch.setattr(zygote_process, "BEGIN_SECONDS", START_SECONDS)
        await session
        assert "has not begun to run Python within" in told(engine)[2]


async def test_refusal_of_all_interpreters_has_each_reason_and_ends_with_a_repair(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(image, "#!/bin/sh\nexit 3\n")
    own = tmp_path / "own"
    own.mkdir()
    write_program(own / "python3", "#!/bin/sh\nexit 4\n")
    monkeypatch.setattr(own_tree, "own_python", lambda _: str(own / "python3"))
    async with running(tmp_path, path_of(image), image_env="on") as engine:
        words = "exit code 3 .*; and execd's own: .* exit code 4"
        with pytest.raises(NotSupported, match=words) as refused:
            await engine.sessions.create()
        assert refused.value.details["cause"] == "not_a_python"
        write_program(image, f'#!/bin/sh\nexec {PYTHON} "$@"\n')
        session = await engine.sessions.create()
        assert session.interpreter is not None
        assert session.interpreter.origin == "image"
        assert engine.sessions.refusal is None


@pytest.mark.parametrize("python", ["image", "auto"])
async def test_image_without_python_has_execd_s_own_unless_only_the_image_s_is_wanted(
    tmp_path: Path, image: Path, python: str
) -> None:
    environment = {"PATH": str(image.parent)}
    async with running(tmp_path, environment, image_env="on", python=python) as engine:
        if python == "image":
            with pytest.raises(NotSupported, match="'python3': No such file"):
                await engine.sessions.create()
            return
        await engine.sessions.create()
        assert told(engine)[1:] == ("own", "the image has no python3 on PATH")


async def test_own_python_of_a_tree_finds_the_image_s_certificates_and_ignores_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree/bin").mkdir(parents=True)
    write_program(tmp_path / "tree/bin/python3", f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    monkeypatch.setattr(own_tree, "root", lambda: str(tmp_path / "tree"))
    bundle = tmp_path / "ca.crt"
    bundle.touch()
    monkeypatch.setattr(interpreters, "CERTIFICATES", (str(bundle),))
    environment = {"PATH": "/no/such", "PYTHONHOME": "/opt/conda", "PYTHONPATH": "/app"}
    async with running(tmp_path, environment, image_env="on") as engine:
        session = await engine.sessions.create()
        seen = "import os; os.environ['SSL_CERT_FILE'], 'PYTHONHOME' in os.environ"
        assert eval(await value(engine, session, seen)) == (str(bundle), False)
        assert await value(engine, session, "'/app' in __import__('sys').path") == "True"
        assert engine._parts.environment.variables["SSL_CERT_FILE"] == str(bundle)
        assert engine._parts.environment.variables["PATH"] == f"/no/such:{tmp_path}/state/bin"
    environment["PATH"] = os.defpath
    async with running(tmp_path, environment, image_env="on", python="own") as engine:
        # Commands have the image's python3; sessions have execd's own.
        assert "SSL_CERT_FILE" not in engine._parts.environment.variables
        session = await engine.sessions.create()
        assert eval(await value(engine, session, seen)) == (str(bundle), False)


@pytest.mark.parametrize("chosen", ["image", "own"])
async def test_interpreter_of_sessions_stays_the_same_as_long_as_the_daemon_lives(
    tmp_path: Path, image: Path, chosen: str
) -> None:
    """Neither takes the place of the other later, repaired or broken."""
    serves, fails = f'#!/bin/sh\nexec {PYTHON} "$@"\n', "#!/bin/sh\nexit 3\n"
    write_program(image, serves if chosen == "image" else fails)
    settings: dict[str, Any] = {"image_env": "on", "session_pool": 0}
    async with running(tmp_path, path_of(image), **settings) as engine:
        await engine.sessions.create()
        write_program(image, fails if chosen == "image" else serves)
        zygote = engine.sessions.zygote
        process = zygote._process
        assert process is not None
        process.kill()
        if chosen == "own":
            await wait_until_async(lambda: zygote._process not in (None, process), START_SECONDS)
            assert (await engine.sessions.create()).interpreter is not None
        else:
            await wait_until_async(lambda: engine.sessions.refusal is not None, START_SECONDS)
            with pytest.raises(NotSupported, match="exit code 3"):
                await engine.sessions.create()
        assert told(engine)[1] == chosen
