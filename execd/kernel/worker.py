"""The worker: one session. A fork of the zygote, or of another worker, in which user code runs.

Who is there. The daemon at the other end of the channel; the warden, this process' parent, which
sees it end; user code, in this very process, with all its threads, handlers and forks.

What holds.
  * A frame is sent by this process only: a fork of user code that comes back out of its cell ends
    without a word.
  * Each cell begins with its own descriptors 1 and 2, sys.stdout and sys.stderr, input, and with
    SIGINT ours and unblocked. Variables, imports, directory, environment and the event loop stay as
    user code left them.
  * SIGINT means the cell that runs. Between cells it does nothing, in our own lines it waits for
    user code's.
  * Handlers of user code for other signals are set aside between cells: an alarm left over raises
    in no line of ours, and is lost.
  * Whatever goes wrong in our own lines ends the process: the daemon then says that the state is
    lost, and starts another. No attempt is made to repair what user code has taken apart.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import importlib
import os
import resource
import site
import sys
import time
import warnings
from os import _exit, getpid
from typing import TYPE_CHECKING, Any

from IPython import __version__ as ipython_version

from execd.kernel import fork, frames, inspection, mime_bundles
from execd.kernel.cell_front_end import CellFrontEnd
from execd.kernel.cell_signals import CellSignals
from execd.kernel.double_fork import WorkerEnds, fork_orphan, set_up_worker_process
from execd.kernel.frame_channel import FrameChannel, FrameChannelClosed
from execd.kernel.stdio_pipes import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.shell import Shell

FAULT_EXIT_CODE = 70
"""EX_SOFTWARE: our own error, or a state that user code has left beyond repair."""


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


class Worker:
    """Owns the channel and the streams. ``run`` never returns."""

    def __init__(self, shell: Shell, ends: WorkerEnds) -> None:
        self._shell = shell
        self._signals = CellSignals(shell.session_loop)
        self._start_in_process(ends)
        self._path_is_set = False
        self._is_branch = False
        # The first run of IPython's lines in a fork copies most pages that any later one touches. A
        # worker of the pool has the time; one that is waited for would do it a moment later.
        shell.run("pass", False)
        shell.display_formatter.format(shell.execution_count)

    def _start_in_process(self, ends: WorkerEnds) -> None:
        self._pid = getpid()
        self._channel = FrameChannel(ends.protocol, frames.TO_WORKER)
        self._streams = Streams()
        self._shell.front_end = self._front_end = CellFrontEnd(self._channel, self._streams)
        self._signals.start_in_process()

    def run(self) -> None:
        code = FAULT_EXIT_CODE
        try:
            while True:
                self._handle(self._channel.receive())
        except FrameChannelClosed:
            code = 0
        except BaseException as error:
            self._report_failure(error)
        finally:
            _exit(code)

    def _report_failure(self, error: BaseException) -> None:
        if getpid() == self._pid:
            try:
                self._channel.send(
                    {
                        "type": "failed",
                        "message": f"{type(error).__name__}: {mime_bundles.truncate(str(error))}",
                    }
                )
            except BaseException:
                pass  # it ends one way or the other

    def _handle(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "execute":
            self._execute(frame)
        elif kind == "configure":
            self._configure(frame)
        elif kind == "complete":
            self._reply(
                frame,
                lambda: inspection.find_completions(self._shell, frame["code"], frame["cursor"]),
            )
        elif kind == "variables":
            self._reply(frame, lambda: inspection.list_variables(self._shell, frame["limit"]))
        elif kind == "fork":
            self._fork(frame)
        # An "input" that comes when nobody asks any more was meant for a cell that has ended.

    def _send(self, frame: dict[str, Any]) -> None:
        if getpid() != self._pid:
            _exit(0)
        self._channel.send(frame)

    # Between cells.

    def _configure(self, frame: dict[str, Any]) -> None:
        env = frame["env"]
        try:
            if frame["cwd"]:  # a branch stays where it is
                os.chdir(frame["cwd"])
            for number, soft, hard in frame["limits"]:
                # A branch cannot have more than its original.
                ceiling = resource.getrlimit(number)[1]
                soft, hard = (
                    value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
                    for value in (soft, hard)
                )
                resource.setrlimit(number, (soft, hard))
            if not self._is_branch:
                os.environ.clear()
            os.environ.update(env)
        except (OSError, ValueError) as error:
            self._send({"type": "failed", "message": f"{type(error).__name__}: {error}"})
            return
        time.tzset()
        if not self._path_is_set:
            self._path_is_set = True
            _set_module_path(env)
        self._send({"type": "configured"})

    def _reply(self, frame: dict[str, Any], function: Callable[[], dict[str, Any]]) -> None:
        """A question that runs a little of user code: its reprs, its ``__dir__``."""
        answer: dict[str, Any]
        self._signals.was_interrupted = (
            False  # what came between cells was meant for the one before
        )
        try:
            answer = self._signals.run_interruptibly(function)
        except KeyboardInterrupt:
            answer = {"error": "interrupted"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {mime_bundles.truncate(str(error))}"}
        self._signals.is_interruptible = False
        self._streams.flush()
        self._send({"type": "reply", "id": frame["id"], **mime_bundles.to_json(answer)})

    def _fork(self, frame: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"type": "reply", "id": frame["id"]}
        try:
            descriptors = self._channel.take_descriptors(4 * frame["count"])
        except OSError as error:
            self._send({**answer, "error": str(error)})
            return
        found = fork.describe_losses(
            {self._channel.fileno(), *descriptors, *self._shell.session_loop.own_sockets()}
        )
        own = sorted(fork.find_user_generators(self._shell))
        if own:
            found.append(f"random generators start anew in the branches: {', '.join(own)}")
        pending = self._shell.session_loop.count_pending_tasks()
        if pending:
            found.append(f"{pending} asyncio task(s) go on in the original only")
        answer["warnings"] = [
            mime_bundles.truncate(text, mime_bundles.NAME_CHARACTERS) for text in found
        ]
        while descriptors:
            ends = WorkerEnds(*descriptors[:4])
            try:
                intermediate_pid = fork_orphan()
            except OSError as error:
                answer["error"] = f"fork: {error.strerror}"
                break
            if intermediate_pid is not None:
                self._become_branch(ends, intermediate_pid, descriptors[4:])
                return
            for fd in ends:
                os.close(fd)
            del descriptors[:4]
        for fd in descriptors:
            os.close(fd)
        self._send(answer)

    def _become_branch(self, ends: WorkerEnds, intermediate_pid: int, others: list[int]) -> None:
        for fd in others:
            os.close(fd)
        self._channel.detach()
        self._streams.close()
        set_up_worker_process(ends, intermediate_pid)
        self._start_in_process(ends)
        self._is_branch = True
        fork.start_branch(self._shell)
        self._send(
            {
                "type": "ready",
                "python": python_version(),
                "ipython": ipython_version,
                "warnings": [],
            }
        )

    # A cell.

    def _execute(self, frame: dict[str, Any]) -> None:
        cell = frame["id"]
        self._front_end.begin_cell(cell, frame["allow_input"])
        self._signals.was_interrupted = False
        self._streams.restore()
        self._signals.begin_cell()
        for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
            # a directory that did not exist may by now: pip's, an upload's
            del sys.path_importer_cache[path]
        error: mime_bundles.CellError | None
        try:
            outcome = self._signals.run_interruptibly(
                lambda: self._shell.run(frame["code"], frame["store_history"])
            )
            count, error, exit_code = outcome
        except KeyboardInterrupt as interrupt:  # in IPython's own lines, before or after the cell's
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                # and with it a coroutine of IPython's that was never awaited
                interrupt.__traceback__ = None
            count, exit_code = self._shell.execution_count, None
            error = mime_bundles.describe_error(KeyboardInterrupt, interrupt, ["KeyboardInterrupt"])
        self._signals.is_interruptible = False
        if getpid() != self._pid:
            self._exit_user_fork(error)
        self._signals.end_cell()
        self._streams.flush()
        note = self._front_end.end_cell()
        if note is not None:
            self._send(note)
        if error is not None:
            self._send({"type": "error", "id": cell, **error._asdict()})
        self._send(
            {
                "type": "done",
                "id": cell,
                "status": "success" if error is None else "error",
                "execution_count": count,
                "exit": None if exit_code is None else {"code": exit_code},
            }
        )

    def _exit_user_fork(self, error: mime_bundles.CellError | None) -> None:
        """os.fork in a cell, and this is the child: its cell is over."""
        if error is not None:
            print("\n".join(error.traceback), file=sys.stderr)
        self._streams.flush()
        _exit(0 if error is None else 1)


def _set_module_path(env: dict[str, str]) -> None:
    """sys.path as an interpreter of this session's environment would have it; the zygote's knew
    none."""
    site.USER_BASE = site.USER_SITE = None
    if site.ENABLE_USER_SITE and not env.get("PYTHONNOUSERSITE"):
        # Also one that does not exist: pip makes it when the interpreter's own cannot be written
        # to.
        before = list(sys.path)
        site.addsitedir(site.getusersitepackages())
        added = [path for path in sys.path if path not in before]
        places = [before.index(path) for path in site.getsitepackages() if path in before]
        place = min(places, default=len(before))
        sys.path[:] = before[:place] + added + before[place:]
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
