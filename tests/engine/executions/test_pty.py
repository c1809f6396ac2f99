"""Terminals with real programs, in both shapes. gVisor leaves out parts of a terminal (see
stdio.py). The session's signals make up for the missing parts."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import struct
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions import exit_status, stdio
from execd.engine.executions.exit_status import Exit
from execd.engine.executions.submission import Submission
from execd.model import TerminalSize
from execd.proc import kernel_traits
from execd.proc.messages import Exited, Killed
from tests.engine.conftest import sh, shell_command
from tests.proc.conftest import PATH, living, new_token, spawn
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.proc.child import Child
    from execd.proc.client import WardenClient
    from execd.proc.messages import Scope
    from tests.proc.conftest import Wardens


class Screen:
    """The master: types, and keeps the program's output."""

    def __init__(self, master: int) -> None:
        self.master = master
        self.text = ""
        os.set_blocking(master, False)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def shows(self, text: str) -> bool:
        with contextlib.suppress(BlockingIOError, OSError):  # EIO: the program has closed the tty
            while data := os.read(self.master, 65536):
                self.text += data.decode(errors="replace")
        return text in self.text

    async def wait_for(self, text: str) -> None:
        try:
            await wait_until_async(lambda: self.shows(text), 20)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the screen: {self.text!r}") from None

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
        self.master = -1


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    made: list[Screen] = []
    yield made
    for screen in made:
        screen.close()


async def on_terminal(
    client: WardenClient, screens: list[Screen], *argv: str, cols: int = 80, rows: int = 24
) -> tuple[Child, Screen]:
    terminal = stdio.open_terminal(cols, rows)
    screen = Screen(terminal.master)
    screens.append(screen)
    marker = f"EXECD_EXECUTION_ID={new_token()}"
    child = await spawn(
        client,
        argv=list(argv),
        env={
            **PATH,
            "PS1": "ready> ",
            "TERM": "xterm",
            "HISTFILE": "",
            **dict([marker.split("=", 1)]),
        },
        cwd="/",
        stdio=[0, 0, 0],
        descriptors=[terminal.slave],
        marker=marker,
        on_limit=lambda limit, _: pytest.fail(limit),
        terminal=True,
    )
    return child, screen


async def ended(child: Child) -> Exit:
    exited = await asyncio.wait_for(child.exited, 20)
    assert isinstance(exited, Exited)
    return exit_status.decode(exited.wait_status)


async def end(child: Child) -> None:
    child.kill(0.0)
    assert isinstance(await asyncio.wait_for(child.killed, 20), Killed)


WATCHER = """
import os, signal, sys, time
def changed(*_):
    os.write(1, ("size %dx%d of %s\\n" % (*os.get_terminal_size(0), sys.argv[1])).encode())
signal.signal(signal.SIGWINCH, changed)
if sys.argv[1] == "foreground":
    if os.fork() == 0:
        os.setpgid(0, 0)
        sys.argv[1] = "background"
    else:
        os.write(1, b"front\\n")
os.write(1, b"watching\\n")
while True:
    time.sleep(0.05)  # pause() would miss a signal that comes just before
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


async def test_a_program_finds_a_terminal_of_the_size_asked_for(
    wardens: Wardens, client: WardenClient, screens: list[Screen]
) -> None:
    child, screen = await on_terminal(
        client,
        screens,
        "/bin/sh",
        "-c",
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size && echo done",
        cols=132,
        rows=43,
    )
    await screen.wait_for("43 132\r\ndone")
    assert await ended(child) == Exit(0, None)


async def test_a_resize_and_its_signal_reach_the_whole_session(
    wardens: Wardens, client: WardenClient, screens: list[Screen]
) -> None:
    child, screen = await on_terminal(client, screens, *python(WATCHER, "foreground"))
    await wait_until_async(
        lambda: screen.shows("watching") and screen.text.count("watching") == 2, 20
    )
    stdio.set_size(screen.master, 100, 30)
    child.signal(signal.SIGWINCH, scope="session")
    await screen.wait_for("size 100x30 of foreground")
    await screen.wait_for("size 100x30 of background")
    await end(child)


async def test_a_burst_of_resizes_ends_with_the_last_size(
    client: WardenClient, screens: list[Screen]
) -> None:
    child, screen = await on_terminal(client, screens, *python(WATCHER, "alone"))
    await screen.wait_for("watching")
    for cols in range(40, 240):
        stdio.set_size(screen.master, cols, 30)
        child.signal(signal.SIGWINCH, scope="session")
    await screen.wait_for("size 239x30 of alone")
    await end(child)


async def test_control_c_reaches_the_foreground_group_and_not_the_shell(
    wardens: Wardens, client: WardenClient, screens: list[Screen]
) -> None:
    token = new_token()
    child, screen = await on_terminal(client, screens, "/bin/bash", "--norc", "--noprofile", "-i")
    await screen.wait_for("ready> ")
    screen.type(f"sleep {token}\r")
    await wait_until_async(lambda: living(f"sleep {token}"), 20)
    screen.type("\x03")
    await wait_until_async(lambda: not living(f"sleep {token}"), 20)
    screen.type("echo alive $((6*7)) $?\r")
    await screen.wait_for("alive 42 130")
    screen.type("exit 5\r")
    assert await ended(child) == Exit(5, None)
    await end(child)


async def test_end_of_file_typed_ends_a_reader(client: WardenClient, screens: list[Screen]) -> None:
    child, screen = await on_terminal(client, screens, "/bin/cat")
    screen.type("grüße\r")
    await screen.wait_for("grüße\r\ngrüße\r\n")
    os.write(screen.master, stdio.END_OF_FILE)
    assert await ended(child) == Exit(0, None)


async def test_a_hang_up_ends_an_interactive_shell_and_what_it_runs(
    wardens: Wardens, client: WardenClient, screens: list[Screen]
) -> None:
    token = new_token()
    child, screen = await on_terminal(client, screens, "/bin/bash", "--norc", "--noprofile", "-i")
    await screen.wait_for("ready> ")
    screen.type(f"sleep {token} & sleep {token}\r")
    await wait_until_async(lambda: len(living(f"sleep {token}")) == 2, 20)
    # The terminal stays open: the daemon closes no terminal before the leader's end. In gVisor a
    # shell that begins to read a terminal after the close may never see the signal.
    child.signal(signal.SIGHUP, scope="session")
    child.signal(signal.SIGCONT, scope="session")
    await asyncio.wait_for(child.exited, 20)
    await wait_until_async(lambda: not living(f"sleep {token}"), 20)
    await end(child)


COUNTER = """
import os, signal, sys, time
seen, folder = [], sys.argv[1]
for number in signal.SIGWINCH, signal.SIGHUP:
    signal.signal(number, lambda number, _: seen.append(number))
is_last = False
while not is_last:
    is_last = os.path.exists(f"{folder}/stop")
    with open(f"{folder}/new", "w") as file:
        file.write("%d %d" % (seen.count(signal.SIGWINCH), seen.count(signal.SIGHUP)))
    os.rename(f"{folder}/new", f"{folder}/{'last' if is_last else 'counts'}")
    time.sleep(0.005)
"""
N_RESIZES = 10


async def test_a_program_gets_one_signal_for_each_resize_and_one_for_the_hang_up(
    engine: Engine, tmp_path: Path
) -> None:
    """gVisor may send none; where gVisor does, the program gets a second signal."""
    counts, last = tmp_path / "counts", tmp_path / "last"

    def seen() -> list[int]:
        return [int(word) for word in counts.read_text().split()] if counts.exists() else [-1, -1]

    counter = shlex.join(python(COUNTER, str(tmp_path)))
    command = shell_command(
        f"{counter} & read line; exit 3", terminal=TerminalSize(cols=80, rows=24)
    )
    execution = engine.submit(Submission(command)).execution
    try:
        await wait_until_async(lambda: seen() == [0, 0], 20)
        for n in range(1, N_RESIZES + 1):
            execution.resize(80 + n, 24)
            await wait_until_async(lambda n=n: seen()[0] >= n, 20)
        execution.resize(80 + N_RESIZES, 24)  # the same size: a viewer that comes back
        await wait_until_async(lambda: seen()[0] > N_RESIZES, 20)
        await execution.write_stdin(b"\r")
        assert (await execution.wait()).exit_code == 3
        await wait_until_async(lambda: seen()[1] >= 1, 20)
        await sh(engine, "true")  # the warden has taken all that the daemon sent before
    finally:
        (tmp_path / "stop").touch()
    await wait_until_async(last.exists, 20)
    resizes, hang_ups = map(int, last.read_text().split())
    if kernel_traits.find().signals_terminals:
        assert (resizes, hang_ups) == (N_RESIZES + 1, 1)
    else:
        assert N_RESIZES < resizes <= 2 * N_RESIZES + 1
        assert 1 <= hang_ups <= 2


def test_a_terminal_has_the_size_in_characters_and_none_in_pixels() -> None:
    """A program that draws pictures takes any number of pixels for the truth."""
    terminal = stdio.open_terminal(100, 30)
    try:
        size = fcntl.ioctl(terminal.slave, termios.TIOCGWINSZ, bytes(8))
        assert struct.unpack("HHHH", size) == (30, 100, 0, 0)
    finally:
        os.close(terminal.master)
        os.close(terminal.slave)


# The scopes of a signal.

SAYS = "trap 'echo {0}' USR1; echo {0} ready; while :; do sleep 0.01; done"


async def test_a_signal_to_the_session_spares_what_has_left_it_and_one_to_the_tree_does_not(
    wardens: Wardens, client: WardenClient
) -> None:
    outer, inner = SAYS.format("outer"), SAYS.format("inner")
    elsewhere = SAYS.format("elsewhere")
    program = await wardens.run(
        client, f'set -m; sh -c "{inner}" & setsid sh -c "{elsewhere}" & {outer}'
    )
    for name in ("outer", "inner", "elsewhere"):
        await program.says(f"{name} ready")
    program.child.signal(signal.SIGUSR1, scope="session")
    await wait_until_async(
        lambda: (
            sorted(line for line in program.text.split("\n") if " " not in line)
            == ["", "inner", "outer"]
        ),
        20,
    )
    program.child.signal(signal.SIGUSR1, scope="tree")
    await wait_until_async(
        lambda: (
            sorted(line for line in program.text.split("\n") if " " not in line)
            == ["", "elsewhere", "inner", "inner", "outer", "outer"]
        ),
        20,
    )
    await end(program.child)


async def test_the_session_of_a_leader_that_has_ended_still_gets_signals(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    program = await wardens.run(client, f"sleep {token} & exit 4")
    assert await ended(program.child) == Exit(4, None)
    await wait_until_async(lambda: living(f"sleep {token}"), 20)
    program.child.signal(signal.SIGHUP, scope="session")
    await wait_until_async(lambda: not living(f"sleep {token}"), 20)


async def test_the_group_of_a_leader_that_has_ended_still_gets_signals_and_no_job_does(
    wardens: Wardens, client: WardenClient
) -> None:
    own, job = new_token(), new_token()
    line = f"sleep {own} & bash -c 'set -m; sleep {job} &'; exit 4"  # a dash has no job control
    program = await wardens.run(client, line)
    assert await ended(program.child) == Exit(4, None)
    await wait_until_async(lambda: living(f"sleep {own}") and living(f"sleep {job}"), 20)
    program.child.signal(signal.SIGHUP, scope="group")
    await wait_until_async(lambda: not living(f"sleep {own}"), 20)
    assert living(f"sleep {job}")
    await end(program.child)


@pytest.mark.parametrize("number", [-1, 0, 65, 2**40])
@pytest.mark.parametrize("scope", ["session", "tree"])
async def test_a_number_that_is_no_signal_harms_nobody(
    wardens: Wardens, client: WardenClient, scope: Scope, number: int
) -> None:
    program = await wardens.run(
        client, "trap 'exit 6' USR1; echo ready; while :; do sleep 0.01; done"
    )
    await program.says("ready")
    program.child.signal(number, scope=scope)
    program.child.signal(signal.SIGUSR1, scope=scope)
    assert await ended(program.child) == Exit(6, None)
    assert client.restarts == 0


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (b"", b"\x04"),
        (b"line\n", b"line\n\x04"),
        (b"half", b"half\x04\x04"),
    ],
)
def test_the_end_of_input_is_typed_twice_in_the_middle_of_a_line_only(
    text: bytes, keys: bytes
) -> None:
    """A second end of file behind a whole line would end the input of the next reader."""
    assert stdio.typed(text, ends=True) == keys
    assert stdio.typed(text, ends=False) == text
