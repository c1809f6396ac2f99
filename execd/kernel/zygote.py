"""The zygote: a process of the user's interpreter that imports and exercises IPython, and then only
forks workers.

Processes. The daemon holds the other end of the control channel (descriptor 3). The warden is the
parent of the zygote and, after each double fork, of the worker. The zygote has no threads, no
running event loop, and of execd only this folder.

All sessions share the work done before the first fork: imports, IPython's lazy initialization, and
the operator's preloaded modules. gc.freeze exempts the objects made so far from garbage collection:
otherwise the first collection in each worker would copy every page.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from execd.kernel import frames, process_name
from execd.kernel.double_fork import (
    WorkerEnds,
    find_cheap_fork,
    fork_orphan,
    set_up_worker_process,
)
from execd.kernel.frame_channel import FrameChannel, FrameChannelClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd.kernel.worker import Worker

CONTROL_FD = 3
PR_SET_THP_DISABLE = 41  # prctl(2)
MADV_NOHUGEPAGE = 15  # madvise(2)
# errnos of a machine in need, which say nothing about the interpreter.
_SHORTAGES = (
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
)

# Each cell exercises another part of IPython: results, displays, errors, syntax errors, await,
# magics.
_EXERCISES = (
    "_x = {'one': [1, 2.5, None], 'two': (3, 'four')}; _x",
    "from IPython.display import display, HTML; display(HTML('<b>x</b>'), {'a': 1})",
    "def _f(n):\n    return 1 / n\n_f(0)",
    "x ==",
    "import asyncio\nawait asyncio.sleep(0)",
    "%time 1",
    "%timeit -n1 -r1 1",
    "?int",
    "print('x')",
)


def main(ipython_folders: str, preload: list[str]) -> None:
    """Run the zygote until the daemon closes the channel; in a worker, run the worker to its end.

    ipython_folders: where ``py39`` and ``py311`` are, each with an IPython to use if the
    interpreter has none. preload: modules to import.

    The causes of a failure: "no_ipython"; "broken_ipython"; "crashed" (IPython fails in use);
    "no_resources" (another start may succeed).
    """
    process_name.take_name(process_name.INTERPRETER)
    channel = FrameChannel(CONTROL_FD, frames.TO_ZYGOTE)
    worker: Worker | None = None

    def finish() -> None:
        if worker is not None:
            worker.finish()

    # Before the imports: the first exit function is the last to run.
    atexit.register(finish)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a worker installs a handler
    began = time.monotonic()
    try:
        with _small_pages():
            ipython_version = _import_ipython(ipython_folders)
            # All imports of this folder happen now. Then ``execd`` in sys.modules is free for a
            # module of the user.
            from execd.kernel.shell import make_shell
            from execd.kernel.worker import Worker as SessionWorker
            from execd.kernel.worker import python_version

            for name in [name for name in sys.modules if name.split(".")[0] == "execd"]:
                del sys.modules[name]
            shell = make_shell()
        warnings = [warning for name in preload if (warning := _preload(name)) is not None]
        if threading.active_count() > 1:
            warnings.append(
                f"{threading.active_count() - 1} thread(s) of preloaded modules run in no session"
            )
        with _small_pages():
            _exercise_shell(shell)
    except BaseException as error:  # IPython, or a preloaded module, may even raise SystemExit
        channel.send({"type": "failed", **_explain(error)})
        return
    sys.argv = [""]
    find_cheap_fork()  # once for all workers
    gc.collect()
    gc.freeze()
    channel.send(
        {
            "type": "ready",
            "python": python_version(),
            "ipython": ipython_version,
            "import_seconds": round(time.monotonic() - began, 6),
            "warnings": warnings,
        }
    )
    try:
        while worker is None:
            worker = _fork_worker(
                channel, channel.receive(), lambda ends: SessionWorker(shell, ends)
            )
    except (FrameChannelClosed, frames.FrameError):
        return
    worker.run()


class _IPythonMissing(Exception):
    """``cause``: see ``main``. The message is for the operator of the interpreter."""

    def __init__(self, cause: str, message: str) -> None:
        version = ".".join(map(str, sys.version_info[:3]))
        super().__init__(f"Python {version} at {sys.executable} has {message}")
        self.cause = cause


def _explain(error: BaseException) -> dict[str, str]:
    """Return the fields of the frame "failed"."""
    if isinstance(error, _IPythonMissing):
        return {"cause": error.cause, "message": str(error)}
    cause = "no_resources" if _is_about_resources(error) else "crashed"
    return {"cause": cause, "message": f"{type(error).__name__}: {error}"}


def _is_about_resources(error: BaseException | None) -> bool:
    """Whether the error, or a cause of the error, is a lack of memory or of another resource."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _import_ipython(folders: str) -> str:
    """Import IPython and return the version. Raises _IPythonMissing, and errors of resources."""
    whose = "an IPython that"
    if importlib.util.find_spec("IPython") is None:
        folder = os.path.join(folders, "py311" if sys.version_info >= (3, 11) else "py39")
        if not os.path.isdir(folder):
            raise _IPythonMissing(
                "no_ipython",
                f"no IPython, and execd is installed without an IPython to lend ({folder} is "
                f"missing): install IPython 8 or 9 ({sys.executable} -m pip install ipython), or "
                "make the folder with image/make-ipython of execd's sources",
            )
        whose = "no IPython of its own, and execd's"
        # Last in sys.path: modules of the user's interpreter have priority.
        sys.path.append(folder)
        importlib.invalidate_caches()
    try:
        from IPython import __version__
    except BaseException as error:  # an IPython for a newer Python fails in many ways
        if _is_about_resources(error):
            raise
        raise _IPythonMissing(
            "broken_ipython",
            f"{whose} cannot be imported ({type(error).__name__}: {error}): install IPython 8 or 9 "
            f"again ({sys.executable} -m pip install --force-reinstall ipython)",
        ) from error
    return str(__version__)


def _preload(name: str) -> str | None:
    """Import a module. Return a warning if the import fails."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # a module may even raise SystemExit
        return f"{name} could not be imported: {type(error).__name__}: {error}"
    return None


@contextmanager
def _small_pages() -> Iterator[None]:
    """Let no huge page in, and none ever into the heap as it is at the end of the context.

    The heap grows in steps of 2 MiB, and the first byte used of a step would be a whole huge page.
    The blocks of preloaded modules and of cells get huge pages all the same
    (``zygote_process.HUGE_PAGES``).
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        prctl, madvise = libc.prctl, libc.madvise
    except (ImportError, OSError, AttributeError):  # a Python without ctypes
        yield
        return
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        # Before huge pages are allowed again: the next byte used may be in the unused end.
        for start, end in _heap_ranges():
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_NOHUGEPAGE)
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def _heap_ranges() -> list[tuple[int, int]]:
    """Return start and end of each part of the heap: proc_pid_maps(5)."""
    try:
        with open("/proc/self/maps") as maps:
            heap = [line.split(" ", 1)[0] for line in maps if line.endswith("[heap]\n")]
    except OSError:  # no /proc: the heap keeps its huge pages
        return []
    return [(int(start, 16), int(end, 16)) for start, end in (part.split("-") for part in heap)]


def _exercise_shell(shell: Any) -> None:
    """Run every exercise and forget the results."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for code in _EXERCISES:
            shell.run(code, True)
        shell.complete("", "impor", 5)
    shell.session_loop.close()
    shell.reset_session()


def _fork_worker(
    channel: FrameChannel, frame: dict[str, Any], make_worker: Callable[[WorkerEnds], Worker]
) -> Worker | None:
    """Fork a worker. Return the Worker in the new process, None in the zygote."""
    assert frame["type"] == "fork"
    try:
        ends = WorkerEnds(*channel.take_descriptors(4))
    except OSError as error:
        channel.send({"type": "fork_failed", "id": frame["id"], "message": str(error)})
        return None
    try:
        intermediate_pid = fork_orphan()
    except OSError as error:
        channel.send(
            {"type": "fork_failed", "id": frame["id"], "message": f"fork: {error.strerror}"}
        )
        intermediate_pid = None
    if intermediate_pid is None:
        for fd in ends:
            os.close(fd)
        return None
    channel.detach()
    try:
        set_up_worker_process(ends, intermediate_pid)
        return make_worker(ends)
    except BaseException:
        os._exit(1)  # the daemon misses the greeting, or sees the protocol socket close
