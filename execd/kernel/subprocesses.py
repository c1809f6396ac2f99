"""Programs that cells start by magic: ``!cmd``, ``%%bash`` and its kind; and by os.system. Their
output goes where the program writes it.

IPython would run ``!cmd`` on a terminal (pexpect) and ``%%bash`` from a thread that copies; here a
program has descriptors 1 and 2 themselves, so output is in order, streams, and no thread is left
behind that a fork would lose. Only when a cell has put something else in the place of sys.stdout
(``%%capture``) are pipes copied into it.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPT_SECONDS = 1.0
_COPY_BYTES = 64 * 1024


def run_in_shell(command: str) -> int:
    """The exit code as IPython has it: negative for a signal."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    return run([shell, "-c", command], None)


def system(command: Any) -> int:
    """In the place of os.system, which C runs with SIGINT ignored: no interrupt would end the cell,
    only its whole session."""
    code = run(["/bin/sh", "-c", os.fspath(command)], None, never_captured=True)
    return -code if code < 0 else code << 8


def run(argv: Sequence[Any], text: bytes | None, *, never_captured: bool = False) -> int:
    """Run a program with ``text`` as its input (None: nothing). Raises OSError if it cannot be
    started, KeyboardInterrupt.

    An interrupt goes on to the program's whole group, as a terminal's would.
    """
    _flush_streams()
    captured = not (
        never_captured
        or (_writes_to_descriptor("stdout", 1) and _writes_to_descriptor("stderr", 2))
    )
    output = subprocess.PIPE if captured else None
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    ) as process:
        try:
            _communicate(process, text)
            return process.wait()
        except KeyboardInterrupt:
            _interrupt_and_kill(process)
            raise
        except BaseException:
            _signal_group(process, signal.SIGKILL)
            raise


def _writes_to_descriptor(name: str, number: int) -> bool:
    """Whether this stream of sys writes to this descriptor."""
    try:
        return bool(getattr(sys, name).fileno() == number)
    except Exception:  # whatever stands in for sys.stdout; io.UnsupportedOperation if it is honest
        return False


def _flush_streams() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # what user code has put there is its own affair
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
        while selector.get_map():
            for key, _ in selector.select():
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[os.write(key.fd, rest) :] if rest else rest
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


def _interrupt_and_kill(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGINT)
    try:
        process.wait(INTERRUPT_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also of one that ended: its group may have members that ignored the signal.
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def install_script_magic(shell: Any) -> None:
    """Replace how ``%%script`` and its kind (``%%bash``, ``%%sh``, ``%%perl``) run a program in the
    foreground.

    With output into variables or in the background they are IPython's own.
    """
    magics = shell.magics_manager.registry["ScriptMagics"]  # 9.x loads it on the miss
    original = magics.shebang

    def shebang(line: str, cell: str) -> None:
        from IPython.utils.process import arg_split

        args, argv = original.parser.parse_known_args(arg_split(line, posix=True))
        if args.bg or args.out or args.err or args.proc:
            original(line, cell)
            return
        try:
            code = run(
                argv, (cell if cell.endswith("\n") else cell + "\n").encode("utf-8", "replace")
            )
        except FileNotFoundError:
            print(f"Couldn't find program: {argv[0]!r}")
            return
        if args.raise_error and code != 0:
            raise subprocess.CalledProcessError(code, cell)

    shebang.parser = original.parser  # type: ignore[attr-defined]  # where the original looks for it, as itself
    magics.shebang = shebang
    magics.magics["cell"]["script"] = shebang
    shell.magics_manager.magics["cell"]["script"] = shebang


def forget_magic_threads(shell: Any) -> None:
    """In a branch: the thread that copies for ``%%script --out`` did not come along; another is
    made when needed."""
    magics = shell.magics_manager.registry.get("ScriptMagics")
    if magics is not None:
        magics.event_loop = None
