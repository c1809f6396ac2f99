"""An image without /bin/sh. That a lost shell makes the daemon unready is in
tests/api/probes/test_probes.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.executions import command, default_shell, direct_exec
from execd.engine.executions.command import argv_program
from execd.engine.executions.command_run import NO_SHELL
from execd.engine.executions.submission import Submission
from execd.model import Command, ExitReason, TerminalSize
from tests.engine.conftest import finish, running, sh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from execd.engine.engine import Engine


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of /bin/sh, which is empty."""
    place = tmp_path / "sh"
    for module in command, default_shell, direct_exec:
        monkeypatch.setattr(module, "SHELL", (str(place), "-c"))
    return place


@pytest.fixture
async def image(tmp_path: Path, shell: Path) -> AsyncIterator[Engine]:
    async with running(tmp_path, {"PATH": os.defpath}) as engine:
        assert not shell.exists()
        yield engine


@pytest.mark.parametrize("settings", [{}, {"direct_exec": "off"}], ids=["on", "off"])
@pytest.mark.usefixtures("shell")
async def test_plain_words_run_in_an_image_without_a_shell(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with running(tmp_path, {"PATH": os.defpath}, **settings) as engine:
        printed = await sh(engine, "head -c 3 '/dev/zero'", env={"IFS": "x"})
        assert (printed.text, printed.execution.started_by) == ("\0\0\0", "direct")
        ended = await sh(engine, "env -u NAME false")
        assert (ended.result.exit_code, ended.result.exit_reason) == (1, ExitReason.EXITED)
        told = await sh(engine, "tty", terminal=TerminalSize())
        assert told.text.startswith("/dev/pts/")
        missing = await sh(engine, "no-such-program x")
        assert missing.result.exit_reason is ExitReason.SPAWN_FAILED
        assert "program: 'no-such-program': No such file" in (missing.result.message or "")


@pytest.mark.parametrize(
    "line", ["cat | cat", "echo $HOME", "cd /", "A=1 env", "ls " + "a" * 200_000]
)
async def test_any_other_line_in_an_image_without_a_shell_fails_with_the_advice_to_use_argv(
    image: Engine, line: str
) -> None:
    failed = (await sh(image, line)).result
    assert (failed.exit_reason, failed.stand_in_exit_code) == (ExitReason.SPAWN_FAILED, 127)
    assert failed.message == NO_SHELL


async def test_argv_of_an_image_without_a_shell_has_the_words_of_a_missing_program(
    image: Engine, shell: Path
) -> None:
    program = argv_program([str(shell), "-c", "true"])
    failed = await finish(image.submit(Submission(Command(program=program))).execution)
    assert failed.result.message is not None
    assert f"program: '{shell}'" in failed.result.message
    ran = await finish(image.submit(Submission(Command(program=argv_program(["true"])))).execution)
    assert ran.execution.started_by == "argv"


async def test_image_without_a_shell_is_ready_and_a_shell_that_comes_later_is_used(
    image: Engine, shell: Path
) -> None:
    assert image.is_ready
    assert image.capabilities()["commands"]["shell"] is False
    await sh(image, "echo $HOME")
    assert image.is_ready, "a failed line is no trouble of the shell"
    shell.symlink_to("/bin/sh")
    assert (await sh(image, "echo $((1 + 1))")).text == "2"
    assert image.capabilities()["commands"]["shell"] is True
    shell.unlink()
    assert not image.is_ready, "a shell that was there is missed"
