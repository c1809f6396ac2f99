"""Signals to ``execctl run --tty`` and ``execctl sh``, and this terminal at their end."""

from __future__ import annotations

import signal
import termios
from typing import TYPE_CHECKING

import pytest

from tests.client.cli.conftest import TIMEOUT_SECONDS, ended
from tests.client.cli.routers import losing_router
from tests.client.conftest import AT_ONCE
from tests.conformance.target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import pexpect

    from execd_client import Execd

    Spawn = Callable[..., "pexpect.spawn[str]"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_go_to_the_program_in_the_terminal(terminal: Spawn, number: int) -> None:
    line = "trap 'echo caught; exit 5' TERM HUP; echo ready; while :; do sleep 0.05; done"
    child = terminal("run", "--tty", "-c", line)
    before = termios.tcgetattr(child.fileno())
    child.expect("ready")
    wait_until(lambda: not is_as(child, before), TIMEOUT_SECONDS, "the terminal is raw")
    child.kill(number)
    child.expect("caught")
    wait_until(lambda: is_as(child, before), TIMEOUT_SECONDS, "the terminal is as before")
    assert ended(child) == 5


def is_as(child: pexpect.spawn[str], before: list[object]) -> bool:
    return termios.tcgetattr(child.fileno()) == before


@AT_ONCE
def test_a_second_sigterm_ends_execctl_where_execd_does_not_answer(
    terminal: Spawn, url: str
) -> None:
    with losing_router(url, silent=("/signal",)) as address:
        child = terminal("--url", address, "run", "--tty", "-c", "echo ready; sleep 600")
        before = termios.tcgetattr(child.fileno())
        child.expect("ready")

        def has_ended() -> bool:
            child.kill(signal.SIGTERM)
            return is_as(child, before)

        wait_until(has_ended, TIMEOUT_SECONDS, "the terminal is as before")
        assert ended(child) == 143


def test_a_shell_ends_with_its_terminal(terminal: Spawn, sandbox: Execd) -> None:
    child = terminal("sh", "--cwd", "/tmp")
    child.expect(r"[$#] ")
    child.sendline("echo pid-$$-")
    child.expect(r"pid-(\d+)-")
    process_id = int(child.match.group(1))
    child.close(force=False)
    wait_until(
        lambda: process_id not in [item.pid for item in sandbox.list("RUNNING")],
        TIMEOUT_SECONDS,
        "the shell has ended",
    )
