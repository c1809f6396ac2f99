"""``py``: a cell, a file, or a REPL in a session."""

from __future__ import annotations

import base64
import codeop
import os
import queue
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from execd_client import Conflict, Event, ExecdError, NotFound
from execd_client.cli.connection import connected
from execd_client.cli.output import Output, failed, tell
from execd_client.options import new_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prompt_toolkit.completion import Completion
    from prompt_toolkit.document import Document

    from execd_client import Bundle, CellResult, Execd, Session
    from execd_client.cli.connection import Context

    Step = Event | CellResult | BaseException

INLINE = ("iTerm.app", "WezTerm")
KITTY_PIECE = 4096
INTERRUPTED = 128 + signal.SIGINT
ENDS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
LOOK_SECONDS = 0.05
"""Between two looks whether execd has a cell that Ctrl-C is to interrupt."""


@click.command()
@click.option("-c", "code", metavar="CODE", help="Run this code.")
@click.option("--session", "name", metavar="ID", help="Use this session, and keep it.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End each cell after this time.")
@click.option(
    "--images", default=".", metavar="DIR", show_default=True, help="Save images into DIR."
)
@click.argument("file", type=click.File("r"), required=False)
@connected
def py(
    context: Context,
    code: str | None,
    file: Any,
    name: str | None,
    timeout: float | None,
    images: str,
) -> int:
    """Run Python in a session: CODE, a FILE, or a REPL. Images are shown where the terminal can
    show images (iTerm2, WezTerm, kitty), and else saved. The exit code is 1 after an error. Ctrl-C
    interrupts the cell, and so do SIGTERM and SIGHUP, which also end execctl."""
    if code is not None and file is not None:
        raise click.UsageError("give either -c CODE or FILE")
    try:
        with _session(context.sandbox, name) as session:
            cells = _Cells(context, session, timeout, Path(images))
            if code is None and file is None and sys.stdin.isatty():
                return _Repl(cells, session).run()
            return cells.run(code if code is not None else (file or sys.stdin).read())
    except (KeyboardInterrupt, _Stopped) as stopped:
        # Not sys.exit: the interpreter aborts at its end if the cell's thread has stdout's lock.
        os._exit(stopped.code if isinstance(stopped, _Stopped) else INTERRUPTED)


class _Stopped(SystemExit):
    """SIGTERM or SIGHUP. A SystemExit: asyncio, which the prompt uses, lets those pass."""

    code: int


def _stop(number: int, _frame: object) -> None:
    raise _Stopped(128 + number)


@contextmanager
def _session(sandbox: Execd, name: str | None) -> Iterator[Session]:
    """The session of a name, or a session that is deleted at the end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    if name:
        yield sandbox.sessions.get_or_create(name)
        return
    session = sandbox.sessions.create()
    try:
        yield session
    finally:
        session.delete()


class _Cells:
    """Runs cells, each in a thread that shows its output. The main thread asks for input, and
    interrupts: there Ctrl-C ends a wait."""

    def __init__(
        self, context: Context, session: Session, timeout: float | None, images: Path
    ) -> None:
        self._context = context
        self._session = session
        self._options: Any = {} if timeout is None else {"timeout_seconds": timeout}
        self._images = images
        self._n_images = 0
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()

    def run(self, code: str) -> int:
        """The exit code. Raises ExecdError, OSError if the output cannot be written, and
        KeyboardInterrupt for a Ctrl-C while the Ctrl-C before is not delivered."""
        self._steps = queue.SimpleQueue()
        self._output = Output(is_silent=self._context.settings.json)
        self._handle = self._context.sandbox.handle(new_id("cell"))
        # The cell may run before start() returns: signals wait for the loop below.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            threading.Thread(target=self._work, args=(code, self._steps), daemon=True).start()
        except BaseException:  # of a signal just before, too
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        was_interrupted = False
        while True:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                step = self._steps.get()
                if isinstance(step, Event):
                    self._ask(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    self._tell_end(step)
                    return INTERRUPTED if was_interrupted else int(not step.ok)
            except KeyboardInterrupt:
                was_interrupted = True
                self._interrupt()
            except (OSError, _Stopped):
                self._interrupt()
                raise

    def _work(
        self, code: str, steps: queue.SimpleQueue[Event | CellResult | BaseException]
    ) -> None:
        options = {**self._options, "id": self._handle.id}
        if not self._context.settings.json:
            options |= {"on_event": self._show, "allow_input": sys.stdin.isatty()}
        try:
            steps.put(self._session.run(code, **options))
        except BaseException as error:  # the main thread raises the error
            steps.put(error)

    def _show(self, event: Event) -> None:
        self._output.show(event)
        if (bundle := event.bundle) is not None:
            self._show_bundle(bundle)
        if event.kind == "input_request":
            self._steps.put(event)

    def _ask(self, event: Event) -> None:
        """Answer ``input()``. Ctrl-D and Ctrl-C interrupt the cell."""
        hide = bool(event.fields["password"])
        try:
            answer = click.prompt(
                event.fields["prompt"], "", hide_input=hide, show_default=False, prompt_suffix=""
            )
        except click.Abort:
            click.echo()
            raise KeyboardInterrupt from None
        try:
            self._session.input(answer)
        except Conflict as late:  # The cell has ended meanwhile.
            tell(late.message)

    def _interrupt(self) -> None:
        """Interrupt this cell only: the session may run a cell of somebody else before."""
        try:
            while self._steps.empty():
                try:
                    if self._handle.result().state == "QUEUED":
                        self._handle.kill()
                    else:
                        self._handle.signal("SIGINT")
                except NotFound:  # execd does not have the cell yet.
                    time.sleep(LOOK_SECONDS)
                else:
                    return
        except Conflict:
            return  # The cell has ended.
        except ExecdError as error:
            tell(f"the cell was not interrupted: {error.message}")

    def _tell_end(self, cell: CellResult) -> None:
        if self._context.settings.json:
            shown: dict[str, Any] = {
                "text": cell.text,
                "stdout": cell.stdout,
                "stderr": cell.stderr,
            }
            shown |= {"truncated": cell.truncated, "exit_reason": cell.exit_reason}
            self._context.print_json({**shown, "error": cell.error, "displays": cell.displays})
            return
        self._output.tell_lost()
        if cell.state_lost:
            tell("the variables were lost: the interpreter is new")
        if cell.error is not None:
            click.echo("\n".join(cell.error.traceback), err=True)
        elif cell.message:
            tell(cell.message)

    def _show_bundle(self, bundle: Bundle) -> None:
        image = bundle.image
        if image is None:
            click.echo(bundle.text)
            return
        if not _shown_inline(image):
            while True:
                self._n_images += 1
                target = self._images / f"image-{self._n_images}"
                if not list(self._images.glob(f"{target.name}.*")):
                    break
            click.echo(f"saved {bundle.save(target)}")


def _shown_inline(image: bytes) -> bool:
    """Show an image by the sequences of iTerm2 or kitty. False: this terminal has neither."""
    if not sys.stdout.isatty():
        return False
    text = base64.b64encode(image).decode()
    if os.environ.get("TERM_PROGRAM") in INLINE:
        click.echo(f"\033]1337;File=inline=1;size={len(image)}:{text}\a")
        return True
    if "KITTY_WINDOW_ID" not in os.environ or not image.startswith(b"\x89PNG"):
        return False
    for start in range(0, len(text), KITTY_PIECE):
        more = int(start + KITTY_PIECE < len(text))
        control = f"a=T,f=100,m={more}" if start == 0 else f"m={more}"
        click.echo(f"\033_G{control};{text[start : start + KITTY_PIECE]}\033\\", nl=False)
    click.echo()
    return True


class _Repl:
    def __init__(self, cells: _Cells, session: Session) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer

        class FromSession(Completer):
            def get_completions(self, document: Document, _event: object) -> Iterable[Completion]:
                return _completions(session, document)

        self._cells = cells
        self._session = session
        self._prompt: PromptSession[str] = PromptSession(
            completer=FromSession(), complete_while_typing=False
        )

    def run(self) -> int:
        click.echo("Python in the sandbox. Ctrl-D ends, Ctrl-C interrupts.")
        while True:
            try:
                code = self._read()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                continue
            if code.strip():
                self._run(code)

    def _read(self) -> str:
        """A whole statement: more lines while the code is incomplete, to an empty line."""
        lines = [self._prompt.prompt(">>> ")]
        while _is_incomplete(lines):
            lines.append(self._prompt.prompt("... "))
        return "\n".join(lines)

    def _run(self, code: str) -> None:
        try:
            self._cells.run(code)
        except ExecdError as error:
            tell(error.message)
        except OSError as error:
            failed(error)
        except KeyboardInterrupt:
            tell("the cell may still run")


def _is_incomplete(lines: list[str]) -> bool:
    if lines[-1] == "" or lines[0].startswith(("%", "!")):
        return False
    try:
        return codeop.compile_command("\n".join(lines)) is None or (
            len(lines) > 1 and lines[-1].startswith((" ", "\t"))
        )
    except (SyntaxError, ValueError, OverflowError):
        return False


def _completions(session: Session, document: Document) -> Iterable[Completion]:
    from prompt_toolkit.completion import Completion

    try:
        found = session.complete(document.text, document.cursor_position)
    except ExecdError:
        return []  # The next cell tells the error.
    start = found.cursor_start - document.cursor_position
    return [Completion(match, start_position=start) for match in found.matches]


COMMANDS = [py]
