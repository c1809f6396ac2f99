"""Signals to ``execctl run --tty`` and ``execctl sh``, and this terminal at their end."""

from __future__ import annotations

import signal
import termios
from typing import TYPE_CHECKING

import pytest

from execd_client import ExecdError, ResourceExhausted
from execd_client.cli.screen import read_output
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


@pytest.mark.parametrize("size", [(24, 80), (0, 0)])
def test_a_short_program_has_its_output_and_exit_code_in_a_terminal_of_any_size(
    terminal: Spawn, size: tuple[int, int]
) -> None:
    child = terminal("run", "--tty", "-c", "echo done; exit 3", dimensions=size)
    child.expect("done")
    assert ended(child) == 3


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


class Refusing:
    """A terminal that refuses messages before its output."""

    def __init__(self) -> None:
        self._answers: list[ExecdError | bytes] = [
            ResourceExhausted("too much"),
            b"out",
        ]

    def read(self) -> bytes:
        answer = self._answers.pop(0)
        if isinstance(answer, ExecdError):
            raise answer
        return answer


def test_a_refused_key_or_size_does_not_end_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert read_output(Refusing()) == b"out"  # type: ignore[arg-type]
    assert capfd.readouterr().err == "execctl: too much\r\n"
