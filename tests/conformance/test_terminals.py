"""Programs in a terminal over the WebSocket, drawn by a real emulator (pyte): resize, Ctrl-C,
UTF-8, coming back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pyte
import pytest

from ..patience import patience
from .contract import RECORDER
from .target import READ_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx

    from .conftest import Run
    from .target import Target

    Open = Callable[..., Awaitable["Viewer"]]

DEADLINE_SECONDS = 20.0
CTRL_C = "\x03"
CTRL_Z = "\x1a"
UP = "\x1b[A"
# The text to find is never part of the typed text: the place of the typed text on the screen
# depends on the redraw of the prompt.
LOOP = "print('lo' + 'op'); [None for _ in iter(int, 1)]\r"
SIZE = "import os; print(*os.get_terminal_size())\r"

FULL_SCREEN = r"""
import curses

def main(screen):
    curses.curs_set(0)
    key = 'none'
    while True:
        rows, cols = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, f'size {cols}x{rows}')
        screen.addstr(1, 0, f'key {key}', curses.A_REVERSE)
        screen.addstr(rows - 1, 0, 'last line é€')
        screen.refresh()
        got = screen.get_wch()
        if got == 'q':
            return
        if got == curses.KEY_RESIZE:
            curses.update_lines_cols()
        key = 'up' if got == curses.KEY_UP else 'resize' if got == curses.KEY_RESIZE else got

curses.wrapper(main)
print('bye')
"""

JOB = """
import os, signal, time
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"resumed"))
print("started", flush=True)
while True:
    time.sleep(0.05)  # pause() would miss a signal that comes just before
"""


class Viewer:
    """A terminal. ``screen`` holds the visible text, ``last`` the last JSON message."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, cols: int, rows: int) -> None:
        self.socket = socket
        self.screen = pyte.Screen(cols, rows)
        self.last: dict[str, Any] = {}
        self._stream = pyte.ByteStream(self.screen)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def __str__(self) -> str:
        return "\n".join(self.lines).rstrip()

    async def until(self, holds: Callable[[], object]) -> None:
        """Draw messages until the condition holds; when no more messages come the condition must
        hold."""
        try:
            async with asyncio.timeout(patience.seconds(DEADLINE_SECONDS)):
                while not holds() and await self.draw():
                    pass
        except TimeoutError:
            pass  # the screen says more
        assert holds(), f"never on the screen:\n{self}"

    async def draw(self) -> bool:
        """Draw a message; return whether a message came."""
        message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            # gVisor echoes such keys unchanged, and pyte drops the rest of a text from an
            # unprintable character on.
            self._stream.feed(message.data.translate(None, (CTRL_C + CTRL_Z).encode()))
        elif message.type is aiohttp.WSMsgType.TEXT:
            self.last = json.loads(message.data)
            RECORDER.add_message("sends", self.last)
        else:
            return False
        return True

    async def shows(self, text: str) -> None:
        await self.until(lambda: text in str(self))

    async def type(self, keys: str) -> None:
        await self.socket.send_bytes(keys.encode())

    async def repeat(self, keys: str, *, until: str) -> None:
        """Type the keys until the screen shows the text: vim throws away keys that follow a Ctrl-C
        or a resize too soon."""
        deadline = time.monotonic() + patience.seconds(DEADLINE_SECONDS)
        while until not in str(self) and time.monotonic() < deadline:
            await self.type(keys)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self.draw()
        await self.shows(until)

    async def resize(self, cols: int, rows: int) -> None:
        self.screen.resize(rows, cols)
        await self.socket.send_str(json.dumps({"type": "resize", "cols": cols, "rows": rows}))

    async def end(self) -> dict[str, Any]:
        """The last message: the execution."""
        await self.until(lambda: self.last.get("type") == "exited")
        return self.last


@pytest.fixture
async def attach(target: Target) -> AsyncIterator[Open]:
    """Connects a viewer to an execution, by the path of the execution's URL."""
    async with aiohttp.ClientSession() as session:

        async def connect(path: str, *, cols: int = 80, rows: int = 24) -> Viewer:
            return Viewer(await session.ws_connect(f"{target.url}{path}/attach"), cols, rows)

        yield connect


@pytest.fixture
def terminal(client: httpx.Client) -> Callable[..., str]:
    """Starts a program in a terminal; returns the path of the execution's URL."""

    def begin(*argv: str, cols: int = 80, rows: int = 24) -> str:
        env = {"TERM": "linux", "PYTHON_BASIC_REPL": "1", "PS1": "$ ", "JOB": JOB}
        body = {"argv": argv, "pty": {"cols": cols, "rows": rows}, "env": env, "detach": True}
        answer = client.post("/v1/executions", json=body)
        assert answer.status_code == 202, answer.text
        return f"/v1/executions/{answer.json()['id']}"

    return begin


@pytest.fixture
def installed(run: Run) -> Callable[..., str]:
    def find(*names: str) -> str:
        found = run(" || ".join(f"command -v {name}" for name in names)).stdout.strip()
        if not found:
            pytest.skip(f"no {names[0]} in this sandbox")
        return found

    return find


async def test_python_in_a_terminal_is_resized_interrupted_and_spoken_to_in_utf8(
    terminal: Callable[..., str], attach: Open
) -> None:
    path = terminal("python3", "-q")
    viewer = await attach(path)
    await viewer.shows(">>>")
    await viewer.type("print('caf\u00e9 \u20ac', len('\u20ac'))\r")
    await viewer.shows("caf\u00e9 \u20ac 1")
    await viewer.resize(100, 30)
    await viewer.type(SIZE)
    await viewer.shows("100 30")
    # At a Ctrl-C a terminal throws away earlier input: send the Ctrl-C when the loop runs, not
    # earlier.
    await viewer.type(LOOP)
    await viewer.shows("loop")
    await viewer.type(CTRL_C)
    await viewer.shows("KeyboardInterrupt")
    await viewer.socket.close()
    viewer = await attach(path, cols=100, rows=30)  # vim has lived on, and redraws all
    await viewer.until(lambda: "caf\u00e9 \u20ac 1" in str(viewer) and str(viewer).endswith(">>>"))
    await viewer.type("exit(3)\r")
    body = await viewer.end()
    assert (body["exit_code"], body["exit_reason"]) == (3, "exited")


@pytest.mark.parametrize("text", ["one\ntwo\n", "one\ntwo"])
def test_terminal_takes_the_input_of_its_request_and_then_end_of_file(
    client: httpx.Client, text: str
) -> None:
    body = {"argv": ["cat"], "pty": True, "stdin": text, "timeout_seconds": 30}
    done = client.post("/v1/executions", json=body).json()
    assert (done["exit_reason"], done["exit_code"]) == ("exited", 0), done
    for word in "one", "two":  # the echo, and the program's output
        assert done["stdout"].count(word) == 2, done


def test_terminal_with_open_input_goes_on_after_the_input_of_its_request(
    client: httpx.Client,
) -> None:
    body = {"argv": ["cat"], "pty": True, "stdin": "one\n", "stdin_open": True, "detach": True}
    path = client.post("/v1/executions", json=body).headers["location"]
    for word in "one", "two":
        wait_until(
            lambda word=word: client.get(f"{path}/stdout").text.count(word) == 2,  # type: ignore[misc]  # bound now
            READ_SECONDS,
            "the terminal has echoed and the program has written",
        )
        client.post(f"{path}/stdin", content=b"two\n" if word == "one" else b"")
    client.post(f"{path}/stdin?eof=true").raise_for_status()
    done = client.get(f"{path}?wait_seconds=25").json()
    assert (done["exit_reason"], done["exit_code"]) == ("exited", 0), done


def test_program_in_a_terminal_has_a_type_of_terminal_unless_the_request_names_one(
    client: httpx.Client,
) -> None:
    for env, expected in ({}, "xterm-256color"), ({"TERM": "vt100"}, "vt100"):
        body = {"command": "echo $TERM", "pty": True, "env": env}
        assert client.post("/v1/executions", json=body).json()["stdout"] == f"{expected}\r\n"
    body = {"command": "echo ${TERM-none}"}
    assert client.post("/v1/executions", json=body).json()["stdout"] == "none\n"


@pytest.mark.both_shapes
def test_end_of_a_shell_hangs_up_no_job_in_the_background(
    client: httpx.Client, run: Run, folder: str
) -> None:
    """A job with a group of its own, one that the shell has forgotten, and one of a shell without
    job control: in the shell's group, which is the foreground, and deaf to the hang-up."""
    job = "sh -c 'trap \"\" HUP; echo $$ >{0}/{1}; exec sleep 1000' &"
    plain = job.replace('trap "" HUP; ', "")
    name = folder
    shells = {
        "job": ("bash --norc --noprofile -i", plain.format(name, "job") + "\n"),
        "disowned": ("bash --norc --noprofile -i", plain.format(name, "disowned") + " disown\n"),
        "deaf": ("sh", job.format(name, "deaf") + "\n"),
    }
    try:
        for kind, (shell, line) in shells.items():
            line += f"until [ -s {name}/{kind} ]; do sleep 0.01; done\nexit 3\n"
            body = {"argv": shell.split(), "pty": True, "stdin": line, "timeout_seconds": 60}
            done = client.post("/v1/executions", json=body).json()
            assert (done["exit_code"], done["exit_reason"]) == (3, "exited"), done
        for kind in shells:
            assert run(f"kill -0 $(cat {name}/{kind})").exit_code == 0, kind
    finally:
        run(f"kill -9 $(cat {name}/*)")


@pytest.mark.both_shapes
def test_end_of_a_shell_hangs_up_its_own_group(client: httpx.Client, run: Run, folder: str) -> None:
    body = {"command": f"sleep 1000 & echo $! >{folder}/pid; exit 3", "pty": True}
    assert client.post("/v1/executions", json=body).json()["exit_code"] == 3
    wait_until(
        lambda: run(f"kill -0 $(cat {folder}/pid)").exit_code != 0, READ_SECONDS, "it has ended"
    )


async def test_full_screen_program_draws_itself_again_after_a_resize(
    terminal: Callable[..., str], attach: Open
) -> None:
    viewer = await attach(
        terminal("python3", "-c", FULL_SCREEN, cols=60, rows=12), cols=60, rows=12
    )
    await viewer.shows("size 60x12\nkey none")
    await viewer.until(lambda: viewer.lines[11].startswith("last line \u00e9\u20ac"))
    assert viewer.screen.buffer[1][0].reverse
    await viewer.type("x")
    await viewer.shows("key x")
    await viewer.type(UP)
    await viewer.shows("key up")
    await viewer.resize(100, 30)
    # ncurses looks for a SIGWINCH and reads a key after that: a signal between the two steps
    # shows at the next key.
    await viewer.repeat("x", until="size 100x30")
    await viewer.until(lambda: viewer.lines[29].startswith("last line"))
    await viewer.type("q")
    assert (await viewer.end())["exit_code"] == 0
    assert "bye" in str(viewer)


async def test_top_runs_in_a_terminal(
    terminal: Callable[..., str], attach: Open, installed: Callable[..., str]
) -> None:
    viewer = await attach(terminal(installed("top")))
    await viewer.shows("PID USER")
    await viewer.resize(120, 10)
    await viewer.until(lambda: "PID USER" in str(viewer) and viewer.lines[9])
    await viewer.type("q")
    assert (await viewer.end())["exit_code"] == 0


async def test_top_ends_at_ctrl_c(
    terminal: Callable[..., str], attach: Open, installed: Callable[..., str]
) -> None:
    viewer = await attach(terminal(installed("top")))
    await viewer.shows("PID USER")
    await viewer.type(CTRL_C)
    assert (await viewer.end())["exit_reason"] in ("exited", "signaled")


async def test_vim_edits_a_file_in_a_terminal(
    terminal: Callable[..., str], attach: Open, installed: Callable[..., str], run: Run, folder: str
) -> None:
    vim = installed("vim", "vim.tiny")
    viewer = await attach(
        terminal(vim, "-u", "NONE", "-i", "NONE", "-n", "-N", f"{folder}/note.txt")
    )
    await viewer.shows("note.txt")
    await viewer.type("icaf\u00e9 \u20ac\rsecond")
    await viewer.shows("caf\u00e9 \u20ac\nsecond")
    await viewer.type("\x1b")
    await viewer.until(lambda: "INSERT" not in str(viewer))
    await viewer.resize(100, 30)
    await viewer.until(lambda: str(viewer).count("~") == 27)  # vim has drawn the new lines
    await viewer.repeat(":set lines?\r", until="lines=30")
    await viewer.type("ggddp")
    await viewer.shows("second\ncaf\u00e9 \u20ac")
    await viewer.type("A!")
    await viewer.shows("caf\u00e9 \u20ac!")
    await viewer.type(CTRL_C)
    await viewer.until(lambda: "INSERT" not in str(viewer))
    await viewer.repeat(":w\r", until="written")
    await viewer.type(":q\r")
    assert (await viewer.end())["exit_code"] == 0
    assert run.out(f"cat {folder}/note.txt") == "second\ncaf\u00e9 \u20ac!\n"


@pytest.mark.both_shapes
async def test_shell_has_job_control(terminal: Callable[..., str], attach: Open) -> None:
    """Text typed after a Ctrl-C or Ctrl-Z begins with Enter: gVisor leaves the key itself in the
    input, in front of the text."""
    viewer = await attach(terminal("/bin/sh", "-i"))
    await viewer.shows("$")
    await viewer.type('python3 -c "$JOB"\r')
    await viewer.shows("started")
    await viewer.type(CTRL_Z)
    await viewer.until(lambda: "Stopped" in str(viewer) and str(viewer).endswith("\n$"))
    await viewer.type("\rfg\r")
    await viewer.shows("resumed")
    await viewer.type(CTRL_C)
    await viewer.until(lambda: str(viewer).endswith("\n$"))
    await viewer.type("\recho fin''ished; exit 4\r")
    assert (await viewer.end())["exit_code"] == 4
    assert "finished" in str(viewer)
