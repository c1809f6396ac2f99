"""``run``, ``sh``, ``ps``, ``logs``, ``kill``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Any

import click
import msgspec

from execd_client import Conflict, ConnectionLost, ExecdError, NotFound
from execd_client.cli import REFUSED
from execd_client.cli.connection import connected
from execd_client.cli.output import Output, print_kept, tell
from execd_client.cli.screen import attach, need_terminal, terminal_size
from execd_client.options import new_id

if TYPE_CHECKING:
    from types import FrameType

    from execd_client import Execd, Handle, Result
    from execd_client.cli.connection import Context

PASS_ON = {"allow_interspersed_args": False}
INTERRUPTS_UNTIL_KILL = 3
KILL_SECONDS = 3.0
"""After the third Ctrl-C execd has so long to end the program; then execctl ends alone."""
START_SECONDS = 0.5
"""Without an event for so long, execd is asked whether the program is there."""
GAVE_UP = b"execctl: execd does not answer; the program may still run\n"


@click.command(context_settings=PASS_ON)
@click.option("-c", "line", metavar="LINE", help="Run a line of /bin/sh instead of ARGV.")
@click.option("--cwd", metavar="DIR", help="Directory of the program.")
@click.option("-e", "--env", "variables", metavar="NAME=VALUE", multiple=True, help="A variable.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End the program after this time.")
@click.option("--clear-env", is_flag=True, help="Give the program no variables but those of -e.")
@click.option("--merge-output", is_flag=True, help="Give the program one pipe for both outputs.")
@click.option("--session", metavar="ID", help="Use the directory and environment of a session.")
@click.option("--id", "name", metavar="ID", help="Name the run: the same name runs once.")
@click.option("-d", "--detach", is_flag=True, help="Print the id, and let the program go on.")
@click.option("-t", "--tty", is_flag=True, help="Run the program in a terminal.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@connected
def run(
    context: Context,
    argv: tuple[str, ...],
    line: str | None,
    detach: bool,
    tty: bool,
    **given: Any,
) -> int:
    """Run a program, with this terminal's input and output.

    Ctrl-C and SIGTERM go to the program. The exit code is the program's.
    """
    if (line is None) == (not argv):
        raise click.UsageError("give either ARGV, after --, or -c LINE")
    command: Any = line if line is not None else list(argv)
    options = _options(**given)
    if tty:
        if not detach:
            need_terminal("--tty")
        handle = context.sandbox.start(command, pty=terminal_size(), **options)
        return handle_id(context, handle) if detach else attach(handle)
    if detach:
        return handle_id(context, context.sandbox.start(command, **options))
    return _Foreground(context.sandbox, command, options, context.settings.json).run()


def _options(
    cwd: str | None,
    variables: tuple[str, ...],
    timeout: float | None,
    clear_env: bool,
    merge_output: bool,
    session: str | None,
    name: str | None,
) -> Any:
    for variable in variables:
        if "=" not in variable:
            raise click.UsageError(f"--env: {variable!r} is not NAME=VALUE")
    said = {
        "cwd": cwd,
        "env": dict(variable.split("=", 1) for variable in variables) or None,
        "timeout_seconds": timeout,
        "clear_env": clear_env or None,
        "merge_output": merge_output or None,
        "session_id": session,
        "id": name,
    }
    return {field: value for field, value in said.items() if value is not None}


def handle_id(context: Context, handle: Handle) -> int:
    if context.settings.json:
        context.print_json({"id": handle.id})
    else:
        click.echo(handle.id)
    return 0


class _Foreground:
    """Runs a program. A signal goes to the program; the third SIGINT ends the program."""

    def __init__(self, sandbox: Execd, command: Any, options: Any, is_json: bool) -> None:
        self._command = command
        self._options = {"id": new_id("run"), **options}
        self._sandbox = sandbox
        self._handle = sandbox.handle(self._options["id"])
        self._is_json = is_json
        self._started = threading.Event()
        self._signals: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._n_interrupts = 0
        self._has_lost_input = False

    def run(self) -> int:
        """The exit code. Raises ExecdError, and OSError if the output cannot be written."""
        self._catch_signals()
        for work in (self._forward_signals, self._forward_input):
            # The threads end with the process: a read of the terminal cannot be ended otherwise.
            threading.Thread(target=work, daemon=True).start()
        result, output = self._followed()
        if self._is_json:
            click.echo(msgspec.json.encode(_fields(result)).decode())
        output.tell_end(result)
        if self._has_lost_input and result.exit_reason == "canceled":
            return REFUSED
        assert result.exit_code is not None, "the stream ends with the program"
        return result.exit_code

    def _followed(self) -> tuple[Result, Output]:
        result: Result | None = None
        output = Output(is_silent=self._is_json)
        for event in self._sandbox.stream(self._command, stdin_open=True, **self._options):
            self._started.set()
            try:
                output.show(event)
            except OSError:
                with contextlib.suppress(ExecdError):
                    self._handle.kill(0.1)
                raise
            result = event.result or result
        return result or self._handle.result(), output

    def _catch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup: the program is not to hear of SIGHUP.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._caught)
        signal.signal(signal.SIGALRM, _give_up)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put(signal.Signals(number).name)
        if number == signal.SIGINT:
            self._n_interrupts += 1
            if self._n_interrupts == INTERRUPTS_UNTIL_KILL:
                signal.setitimer(signal.ITIMER_REAL, KILL_SECONDS)

    def _forward_signals(self) -> None:
        """Not in the handler: the handler interrupts the client at any place."""
        while True:
            name = self._signals.get()
            self._wait_for_start()
            try:
                if self._n_interrupts >= INTERRUPTS_UNTIL_KILL:
                    self._handle.kill(0.1)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                else:
                    self._handle.signal(name)
            except ExecdError as error:
                tell(f"{name} was not delivered: {error.message}")

    def _wait_for_start(self) -> None:
        """A router may keep the first events back for as long as the program waits for input."""
        while not self._started.wait(START_SECONDS):
            try:
                self._handle.result()
            except ExecdError:
                continue  # Not there yet, or out of reach: the stream tells which.
            self._started.set()

    def _forward_input(self) -> None:
        self._wait_for_start()
        try:
            while data := _read_input():
                self._handle.stdin(data)
            self._handle.stdin(eof=True)
        except (Conflict, NotFound):
            return  # The program has ended, or has closed its input.
        except ExecdError as error:
            self._end_without_input(error)

    def _end_without_input(self, error: ExecdError) -> None:
        """The program would wait for the rest of its input for ever."""
        self._has_lost_input = True
        may = "may be" if isinstance(error, ConnectionLost) else "is"
        tell(f"input {may} lost, so the program is ended: {error.message}")
        try:
            self._handle.kill(0.1)
        except ExecdError as unended:
            tell(f"the program was not ended: {unended.message}")


def _read_input() -> bytes:
    """Input that cannot be read, for example of a terminal that is gone, is at its end."""
    try:
        return os.read(0, 65536)
    except OSError:
        return b""


def _give_up(_number: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, GAVE_UP)
    os._exit(128 + signal.SIGINT)


def _fields(result: Result) -> dict[str, Any]:
    """A result for JSON, with the output as text."""
    said: dict[str, Any] = msgspec.to_builtins(result)
    del said["stdout_bytes"], said["stderr_bytes"]
    return {**said, "stdout": result.stdout, "stderr": result.stderr}


@click.command()
@click.option("--cwd", metavar="DIR", help="Directory of the shell.")
@click.option("--shell", default="/bin/sh", show_default=True, help="The shell.")
@connected
def sh(context: Context, cwd: str | None, shell: str) -> int:
    """Open a shell in a terminal. The exit code is the shell's."""
    need_terminal("sh")
    options: Any = {"cwd": cwd} if cwd else {}
    argv = [shell, "-i"]
    return attach(context.sandbox.start(argv, pty=terminal_size(), **options), ends=True)


@click.command()
@click.option("-a", "--all", "every", is_flag=True, help="Show ended ones too.")
@connected
def ps(context: Context, every: bool) -> None:
    """List the commands and cells that run."""
    found = context.sandbox.list()
    shown = [item for item in found if every or item.state != "EXITED"]
    if context.settings.json:
        return context.print_json(shown)
    rows = [
        (item.id, item.state, item.exit_code, item.started_at, (_what(item))[:200])
        for item in shown
    ]
    return context.print_table(["id", "state", "exit", "started", "command"], rows)


def _what(item: Any) -> str:
    return str(item.command or item.code or " ".join(item.argv or []))


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on to the end of the program.")
@click.argument("execution_id", metavar="ID")
@connected
def logs(context: Context, execution_id: str, follow: bool) -> int:
    """Print the output of a command or a cell."""
    handle = context.sandbox.handle(execution_id)
    if context.settings.json:
        result = handle.wait() if follow else handle.result()
        context.print_json(_fields(result))
        return (result.exit_code or 0) if follow else 0
    result = handle.result()  # an unknown id is an error
    if not follow:
        for name in ("stdout", "stderr"):
            print_kept(handle, name)
        Output().tell_end(result)
        return 0
    return _follow(handle)


def _follow(handle: Handle) -> int:
    output, result = Output(), None
    for event in handle.events():
        output.show(event)
        result = event.result or result
    ended = result or handle.wait()
    output.tell_end(ended)
    return ended.exit_code or 0


@click.command()
@click.option("-s", "--signal", "name", metavar="NAME", help="Send a signal, and end nothing else.")
@click.argument("execution_ids", metavar="ID...", nargs=-1, required=True)
@connected
def kill(context: Context, execution_ids: tuple[str, ...], name: str | None) -> None:
    """End commands and cells, with all their processes."""
    shown = []
    for execution_id in execution_ids:
        handle = context.sandbox.handle(execution_id)
        if name is not None:
            handle.signal(name)
            shown.append({"id": execution_id, "signal": name})
        else:
            shown.append(_fields(handle.kill()))
    if context.settings.json:
        context.print_json(shown)


COMMANDS = [run, sh, ps, logs, kill]
