"""Programs started by cells: ``!cmd``, ``%%script`` magics such as ``%%bash``, and os.system.

IPython would run ``!cmd`` on a terminal (pexpect), and ``%%bash`` with a thread that copies output.
Here a program inherits descriptors 1 and 2. So output streams in order, and no thread is left
behind for a fork to lose. Only when a cell has replaced sys.stdout or sys.stderr (``%%capture``)
does the program write to pipes, and the cell's thread copies the pipes into the replacement until
the program ends. The later output of programs in the background goes to descriptors 1 and 2.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPT_SECONDS = 1.0
"""Time between SIGINT and SIGKILL for an interrupted program."""
# After KILL. Together the two waits are shorter than --interrupt-grace-seconds. Popen's own end
# would not wait again after an interrupt, and the program would stay a zombie.
REAP_SECONDS = 0.5
_COPY_BYTES = 64 * 1024
"""The size of a pipe: one reading takes all that an ended program has left there."""
_POLL_SECONDS = 0.1
"""How late the end of a program is noticed while programs in the background hold its pipes."""


def run_in_shell(command: str) -> int:
    """Run ``!cmd`` and return the exit code, negative for a signal. Raises as ``run`` does."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    return run([shell, "-c", _line_argument(command)], None)


def output_in_shell(command: str) -> str:
    """Run the command of ``x = !cmd`` and return its output, both streams in one. Raises as ``run``
    does."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        run_in_shell(command)
    return output.getvalue()


def system(command: Any) -> int:
    """Stand in for os.system. Return a wait status.

    C's system(3) ignores SIGINT while the program runs, so an interrupt would not end the cell.
    """
    line = _line_argument(os.fspath(command))
    code = run(["/bin/sh", "-c", line], None, never_captured=True)
    return -code if code < 0 else code << 8


def _line_argument(line: Any) -> Any:
    """Shells take an argument that begins with "-" or "+" for options; a blank means nothing."""
    text = os.fsdecode(line)
    return f" {text}" if text.startswith(("-", "+")) else line


def run(argv: Sequence[Any], text: bytes | None, *, never_captured: bool = False) -> int:
    """Run a program with ``text`` as standard input; None means an empty input.

    Returns the exit code, negative for a signal. Raises OSError if the program cannot be started;
    KeyboardInterrupt after the interrupt has gone to the program's whole group, as from a terminal.
    """
    _flush_streams()
    captured = not (
        never_captured
        or (_writes_to_descriptor("stdout", 1) and _writes_to_descriptor("stderr", 2))
    )
    output = subprocess.PIPE if captured else None
    # An interrupt inside of Popen would leave a program that nobody ends. So the interrupt is only
    # noted until ``process`` is bound. Not blocked: the program would inherit that. A handler is
    # the default again after exec, as the usual handler is.
    noted: list[int] = []
    usual: Any = signal.getsignal(signal.SIGINT)
    is_held = callable(usual) and threading.current_thread() is threading.main_thread()
    if is_held:
        signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT if captured and sys.stderr is sys.stdout else output,
            start_new_session=True,
        )
    except BaseException:
        if is_held:
            _end_hold(usual, noted)
        raise
    with process:
        assert process.pid > 1  # killpg of 1 or 0 would reach the warden's or the worker's group
        try:
            try:
                if is_held:
                    _end_hold(usual, noted)
                _communicate(process, text)
                return process.wait()
            except KeyboardInterrupt:
                _interrupt(process)
                raise
        except BaseException:
            # After the program's end too: members of its group may have ignored SIGINT. Without a
            # Python function in between, because a second interrupt may come when one begins.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            try:
                process.wait(REAP_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # the program has left its group, or hangs on a disk
            raise


def _writes_to_descriptor(name: str, number: int) -> bool:
    """Return whether a stream of sys writes to a descriptor."""
    try:
        return bool(getattr(sys, name).fileno() == number)
    except Exception:  # a replacement of user code; io.StringIO raises UnsupportedOperation
        return False


def _flush_streams() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # a stream of user code may raise anything
            pass


def _communicate(process: subprocess.Popen[bytes], text: bytes | None) -> None:
    rest = memoryview(text or b"")
    with selectors.DefaultSelector() as selector:
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            if pipe is not None:
                selector.register(
                    pipe,
                    selectors.EVENT_READ,
                    (name, codecs.getincrementaldecoder("utf-8")("replace")),
                )
        passes_after_end = 2  # one for the last output, one for the end of the streams
        while selector.get_map() and passes_after_end:
            has_ended = process.poll() is not None
            passes_after_end -= has_ended
            for key, _ in selector.select(0 if has_ended else _POLL_SECONDS):
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[_write_some(key.fd, rest) :] if rest else rest
                    except BrokenPipeError:
                        rest = memoryview(b"")
                    if not rest:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                name, decoder = key.data
                data = os.read(key.fd, _COPY_BYTES)
                getattr(sys, name).write(decoder.decode(data, final=not data))
                if not data:
                    selector.unregister(key.fileobj)
        for key in selector.get_map().values():
            if key.fileobj is not process.stdin:
                name, decoder = key.data
                getattr(sys, name).write(decoder.decode(b"", final=True))
                _leave_to_cat(key.fd, 1 if name == "stdout" else 2)


def _leave_to_cat(pipe: int, number: int) -> None:
    """Pass on to a descriptor what programs in the background write to the pipe from now on. With
    no reader they would get SIGPIPE. The shell ends at once, and cat is no child of this process.
    """
    # A shell gives /dev/null as descriptor 0 to what runs in the background.
    line = f"exec 3<&0; cat <&3 3<&- >&{number} &"
    subprocess.Popen(["/bin/sh", "-c", line], stdin=pipe, start_new_session=True).wait()


def _write_some(fd: int, data: memoryview) -> int:
    """Write as much as the pipe takes, and return how much: 0 if the pipe is full.

    In gVisor a pipe with room for a byte is ready for writing, but refuses up to PIPE_BUF bytes
    that do not fit as a whole.
    """
    n_offered = len(data)
    while n_offered:
        try:
            return os.write(fd, data[:n_offered])
        except BlockingIOError:
            n_offered = n_offered // 2 if n_offered <= select.PIPE_BUF else 0
    return 0


def _end_hold(usual: Any, noted: list[int]) -> None:
    """Give SIGINT its usual handler back, and repeat the interrupts that came meanwhile as one."""
    signal.signal(signal.SIGINT, usual)
    if noted:
        signal.raise_signal(signal.SIGINT)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the program's group, and wait for the program for INTERRUPT_SECONDS."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(INTERRUPT_SECONDS)
    except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
        pass


def install_script_magic(shell: Any) -> None:
    """Make ``%%script``, ``%%bash``, ``%%sh``, ``%%perl`` and the like run programs by ``run``.

    In the background IPython's own code runs the program.
    """
    magics = shell.magics_manager.registry["ScriptMagics"]  # IPython 9 loads the magics here
    original = magics.shebang

    def shebang(line: str, cell: str) -> None:
        from IPython.utils.process import arg_split

        args, argv = original.parser.parse_known_args(arg_split(line, posix=True))
        if args.bg or args.proc:
            original(line, cell)
            return
        text = cell if cell.endswith("\n") else cell + "\n"
        kept = {name: io.StringIO() for name in (args.out, args.err) if name}
        out, err = kept.get(args.out, sys.stdout), kept.get(args.err, sys.stderr)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(argv, text.encode("utf-8", "replace"))
        except FileNotFoundError:
            print(f"Couldn't find program: {argv[0]!r}")
            return
        for name, stream in kept.items():
            shell.user_ns[name] = stream.getvalue()
        if args.raise_error and code != 0:
            raise subprocess.CalledProcessError(code, cell)

    shebang.parser = original.parser  # type: ignore[attr-defined]  # read by IPython
    magics.shebang = shebang
    magics.magics["cell"]["script"] = shebang
    shell.magics_manager.magics["cell"]["script"] = shebang


def forget_magic_threads(shell: Any) -> None:
    """Forget, in a branch, the thread that copies output for ``%%script --bg``.

    Threads do not survive a fork. IPython makes a new thread when ``event_loop`` is None.
    """
    magics = shell.magics_manager.registry.get("ScriptMagics")
    if magics is not None:
        magics.event_loop = None
