"""``execctl`` as a process, against the daemon of ``tests/client``, behind a router. The tests of
the client itself run without the router too; here a second run would start each program again, and
find what those tests find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pexpect
import pytest

from tests.client.conftest import reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.target import Target

EXECCTL = Path(sys.executable).parent / "execctl"
TIMEOUT_SECONDS = 60.0
DIMENSIONS = 30, 100
"""Rows and columns of the terminals."""
TERMINAL = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
"""This terminal does not tell where its cursor is; the editor would wait a second for the answer
after each line."""


@pytest.fixture(scope="module", params=["router"])
def url(request: pytest.FixtureRequest, target: Target) -> Iterator[str]:
    """With AT_ONCE: direct."""
    with reached(target, request.param) as found:
        yield found


@pytest.fixture
def execctl(url: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        variables = {"EXECD_URL": url, **options.pop("env", {})}
        return subprocess.run(
            [EXECCTL, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            cwd=options.pop("cwd", tmp_path),
            env={**os.environ, **variables},
            **({"stdin": subprocess.DEVNULL} | options if "input" not in options else options),
        )

    return run


@pytest.fixture
def terminal(url: str, tmp_path: Path) -> Iterator[Callable[..., pexpect.spawn[str]]]:
    """Starts execctl in a real terminal."""
    made = []

    def spawn(*arguments: str, dimensions: tuple[int, int] = DIMENSIONS) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            str(EXECCTL),
            list(arguments),
            timeout=TIMEOUT_SECONDS,
            encoding="utf-8",
            dimensions=dimensions,
            cwd=tmp_path,
            env={**os.environ, **TERMINAL, "EXECD_URL": url},
        )
        made.append(child)
        return child

    yield spawn
    for child in made:
        child.close(force=True)


def ended(child: pexpect.spawn[str]) -> int | None:
    """The exit code, once the program has ended."""
    child.expect(pexpect.EOF)
    child.close()
    found: int | None = child.exitstatus
    return found
