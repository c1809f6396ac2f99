"""The image's own program under a real engine: what comes before its start, and its environment.
tests/test_server_entrypoint.py has the daemon's side."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from execd.engine.entrypoint import FORWARDED, KILLED, Entrypoint, image_environment
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine

OPEN_FILES = 1024
VARIABLES = {"PATH": os.environ["PATH"]}


async def ended(entrypoint: Entrypoint) -> int:
    await wait_until_async(entrypoint.ended.done)
    return entrypoint.ended.result()


@pytest.mark.parametrize("number", sorted({*FORWARDED} - {signal.SIGWINCH}))
async def test_signal_before_the_start_comes_as_soon_as_the_program_runs(
    engine: Engine, number: int
) -> None:
    entrypoint = Entrypoint(["sleep", "1000"], OPEN_FILES)
    entrypoint.forward(number)
    await engine.start_entrypoint(entrypoint, VARIABLES)
    assert await ended(entrypoint) == 128 + number


async def test_signal_during_the_start_comes_as_soon_as_the_program_runs(engine: Engine) -> None:
    entrypoint = Entrypoint(["sleep", "1000"], OPEN_FILES)
    starting = asyncio.ensure_future(engine.start_entrypoint(entrypoint, VARIABLES))
    await asyncio.sleep(0)  # the request is sent, and no answer has been read
    assert not starting.done()
    entrypoint.forward(signal.SIGTERM)
    await starting
    assert await ended(entrypoint) == 128 + signal.SIGTERM


async def test_a_signal_after_the_end_changes_nothing(engine: Engine) -> None:
    entrypoint = Entrypoint(["sh", "-c", "exit 5"], OPEN_FILES)
    await engine.start_entrypoint(entrypoint, VARIABLES)
    assert await ended(entrypoint) == 5
    entrypoint.forward(signal.SIGTERM)
    await engine.signals_sent()
    assert entrypoint.exit_code(143) == 5


async def test_start_without_a_warden_is_an_end_by_kill(engine: Engine) -> None:
    await engine.warden.close()
    entrypoint = Entrypoint(["true"], OPEN_FILES)
    await engine.start_entrypoint(entrypoint, VARIABLES)
    assert await ended(entrypoint) == KILLED


async def test_exit_code_is_the_signal_s_without_a_start_and_a_kill_s_without_an_end(
    engine: Engine,
) -> None:
    entrypoint = Entrypoint(["sleep", "1000"], OPEN_FILES)
    await entrypoint.wait(asyncio.get_running_loop().time() + 1000)  # for nothing
    assert entrypoint.exit_code(143) == 143
    await engine.start_entrypoint(entrypoint, VARIABLES)
    await entrypoint.wait(asyncio.get_running_loop().time())
    assert entrypoint.exit_code(143) == KILLED
    entrypoint.forward(signal.SIGKILL)
    assert await ended(entrypoint) == KILLED


async def test_start_closes_no_descriptor_of_the_daemon_and_leaves_none(
    engine: Engine, tmp_path: Path
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for program in ("true", str(tmp_path / "missing")):
        entrypoint = Entrypoint([program], OPEN_FILES)
        await engine.start_entrypoint(entrypoint, VARIABLES)
        await ended(entrypoint)
    # A guard of the disk may hold a directory open for a moment.
    await wait_until_async(lambda: set(os.listdir("/proc/self/fd")) == before)


def test_environment_of_the_image_has_no_variable_of_the_daemon() -> None:
    own = {"EXECD_PORT": "1", "SANDBOX_BASE_DIR": "/", "OTEL_X": "", "KUBERNETES_PORT": "1"}
    image = {"PATH": "/bin", "execd_port": "1", "MY_EXECD_PORT": "1", "HOME": "/root"}
    assert image_environment({**own, **image}) == image
