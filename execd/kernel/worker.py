"""The worker: the process of a session, in which user code runs. Forked from the zygote or from a
worker.

Processes. The daemon holds the other end of the channel. The warden is the worker's parent and sees
the worker's end. User code runs in the worker's process, with threads, signal handlers and forks of
its own.

Rules:
  * Only the worker's process sends frames. A fork of user code that returns from the cell's code
    ends without sending.
  * Each cell begins with descriptors 1 and 2, sys.stdout, sys.stderr and input in order, and with
    SIGINT unblocked and handled by the worker. Variables, imports, directory, environment and event
    loop stay as user code left them, but for the variables that the request sets for the cell
    (``CellEnvironment``).
  * Signals: see ``cell_signals``.
  * An error in the worker's own lines ends the process. The daemon then reports the loss of the
    session's state and starts a new worker. The worker repairs nothing that user code has broken.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import atexit
import importlib
import os
import resource
import site
import sys
import time
from os import _exit, getpid
from typing import TYPE_CHECKING, Any

from IPython import __version__ as ipython_version

from execd.kernel import fork, frames, inspection, mime_bundles
from execd.kernel.cell_front_end import CellFrontEnd
from execd.kernel.cell_signals import CellSignals
from execd.kernel.double_fork import WorkerEnds, fork_orphan, set_up_worker_process
from execd.kernel.frame_channel import FrameChannel, FrameChannelClosed
from execd.kernel.open_files import flush_all_files
from execd.kernel.stdio_pipes import Streams, write_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.shell import Shell

FAULT_EXIT_CODE = 70
"""EX_SOFTWARE: an error of the worker, or a state broken by user code."""

# Bound at import, in the zygote: a cell may assign another object to os.environ. This object also
# sets the variables of the C library, which child processes inherit.
_environ = os.environ
_tzset = time.tzset


def python_version() -> str:
    """Return the interpreter's version, as in 3.11.7."""
    return ".".join(map(str, sys.version_info[:3]))


class CellEnvironment:
    """Sets variables for a cell, and knows the values before.

    ``set_up`` and ``undo`` run while the worker owns the signal handlers (``cell_signals``):
    neither an interrupt nor a handler of user code stops them halfway.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set_up(self, env: dict[str, str]) -> None:
        """Set the variables of the cell that begins."""
        assert not self._before, "the cell before was not undone"
        for name, value in env.items():
            self._before[name] = _environ.get(name)
            _environ[name] = value
        if "TZ" in env:
            _tzset()

    def undo(self) -> None:
        """Give each variable of ``set_up`` the value before, whatever the cell did to the variable.

        Other variables that the cell changed stay changed, as variables of Python do.
        """
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is not None:
                _environ[name] = value
                continue
            try:
                del _environ[name]
            except KeyError:
                pass  # the cell has deleted the variable
        if "TZ" in before:
            _tzset()


class Worker:
    """Serves the daemon's frames, one at a time. Owns the channel and the streams."""

    def __init__(self, shell: Shell, ends: WorkerEnds) -> None:
        self._shell = shell
        self._signals = CellSignals(shell.session_loop)
        self._environment = CellEnvironment()
        self._streams = Streams()
        self._end_request: int | None = None
        """The request that asked for the process's end."""
        self._start_in_process(ends)
        fork.reseed_global_generators()  # all workers of a zygote begin with the same state
        self._path_is_set = False
        self._is_branch = False
        self._mark = resource.RLIM_INFINITY
        # The first cell in a fork copies most pages that later cells touch. A worker of the pool
        # has time for the copies. A worker awaited by a session would make the copies anyway, in
        # the first cell.
        shell.run("pass", False)
        shell.display_formatter.format(shell.execution_count)

    def _start_in_process(self, ends: WorkerEnds) -> None:
        """Take over the descriptors of a new process, a worker or a branch."""
        self._pid = getpid()
        self._channel = FrameChannel(ends.protocol, frames.TO_WORKER)
        self._streams.start_in_process()
        self._shell.front_end = self._front_end = CellFrontEnd(
            self._channel, self._streams, lambda: fork.reseed_restored(self._shell)
        )
        self._signals.start_in_process()

    def run(self) -> None:
        """Serve frames until the daemon asks for the end, or closes the channel. Then the caller
        lets the interpreter end: threads and exit functions have their time, and the last exit
        function is ``finish``. Does not return after a fault, but ends the process."""
        try:
            while self._end_request is None:
                self._handle(self._channel.receive())
        except FrameChannelClosed:
            pass
        except BaseException as error:
            self._report_failure(error)
            _exit(FAULT_EXIT_CODE)
        # Now, because an exit function may not come to its end.
        flush_all_files()

    def finish(self) -> None:
        """End the process, as the last of its exit functions. The rest of the interpreter's end
        would copy most pages shared with the zygote."""
        if getpid() != self._pid:
            return
        try:
            flush_all_files()
            self._streams.flush()
            if self._end_request is not None:
                self._channel.send({"type": "reply", "id": self._end_request})
        finally:
            _exit(0)

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
                pass  # the process ends in any case

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
        elif kind == "reseed":
            fork.reseed_restored(self._shell)
        elif kind == "end":
            self._end_request = frame["id"]
        else:
            # An "input" between cells answers a cell that has ended: drop the frame.
            assert kind == "input"

    def _send(self, frame: dict[str, Any]) -> None:
        """Send a frame. Ends the process in a fork of user code."""
        if getpid() != self._pid:
            _exit(0)
        self._channel.send(frame)

    # Between cells.

    def _configure(self, frame: dict[str, Any]) -> None:
        """Apply the session's directory, environment and limits."""
        env, cwd = frame["env"], frame["cwd"]
        if cwd:  # empty for a branch: the branch keeps the original's directory
            try:
                os.chdir(cwd)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                remedy = "name a directory that exists and may be entered"
                self._send({"type": "failed", "message": f"cwd: {cwd!r}: {reason}; {remedy}"})
                return
        try:
            for number, soft, hard in frame["limits"]:
                # An unprivileged branch cannot raise the original's hard limits.
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
            self._send({"type": "failed", "message": f"limits, env: {error}"})
            return
        time.tzset()
        if not self._path_is_set:
            self._path_is_set = True
            _set_module_path(env)
        self._send({"type": "configured"})

    def _reply(self, frame: dict[str, Any], function: Callable[[], dict[str, Any]]) -> None:
        """Send the answer of a function that runs a little user code: ``__repr__``, ``__dir__``."""
        answer: dict[str, Any]
        # A SIGINT between cells was meant for the cell before.
        self._signals.was_interrupted = False
        try:
            answer = mime_bundles.to_json(self._signals.run_interruptibly(function))
        except KeyboardInterrupt:
            answer = {"error": "interrupted"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {mime_bundles.truncate(str(error))}"}
        self._signals.take_over()
        self._streams.flush()
        self._send({"type": "reply", "id": frame["id"], **answer})

    def _fork(self, frame: dict[str, Any]) -> None:
        """Fork branches. In the original, send the reply; in a branch, send "ready"."""
        answer: dict[str, Any] = {"type": "reply", "id": frame["id"]}
        try:
            descriptors = self._channel.take_descriptors(4 * frame["count"])
        except OSError as error:
            self._send({**answer, "error": str(error)})
            return
        found = fork.describe_losses(
            self._shell,
            {self._channel.fileno(), *descriptors, *self._shell.session_loop.own_sockets()},
        )
        own = sorted(fork.find_user_generators(self._shell))
        if own:
            found.append(f"random generators start anew in the branches: {', '.join(own)}")
        pending = self._shell.session_loop.count_pending_tasks()
        if pending:
            found.append(f"{pending} asyncio task(s) go on in the original only")
        fork.stop_openmp()
        _set_mark(resource.RLIM_INFINITY)  # a branch belongs to no cell of the original
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
        _set_mark(self._mark)
        for fd in descriptors:
            os.close(fd)
        for kind, texts in (
            ("warnings", found),
            ("native_threads", fork.describe_native_threads()),
        ):
            answer[kind] = [
                mime_bundles.truncate(text, mime_bundles.NAME_CHARACTERS) for text in texts
            ]
        self._send(answer)

    def _become_branch(self, ends: WorkerEnds, intermediate_pid: int, others: list[int]) -> None:
        """Turn the new process into a worker. others: descriptors of branches not yet forked."""
        assert getpid() != self._pid
        for fd in others:
            os.close(fd)
        self._channel.detach()
        self._streams.close()
        set_up_worker_process(ends, intermediate_pid)
        self._start_in_process(ends)
        self._is_branch = True
        # Exit functions run from the youngest to the oldest. The original's are the original's: one
        # may remove a directory that the original needs.
        atexit.register(self.finish)
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
        """Run a cell and send its end."""
        cell = frame["id"]
        self._front_end.begin_cell(cell, frame["allow_input"])
        self._mark = frame.get("mark") or resource.RLIM_INFINITY
        _set_mark(self._mark)
        self._signals.was_interrupted = False
        self._streams.restore()
        self._environment.set_up(frame.get("env", {}))
        for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
            # The path had no importer, so Python assumes that the directory does not exist. Pip or
            # an upload may have made the directory since.
            del sys.path_importer_cache[path]
        count = self._shell.execution_count
        outcome, raised = self._signals.run_cell(
            lambda: self._shell.run(frame["code"], frame["store_history"])
        )
        if outcome is None:
            assert raised is not None
            outcome = self._shell.describe_early_end(raised, count)
        count, error, exit_code = outcome
        if getpid() != self._pid:
            self._exit_user_fork(error)
        self._environment.undo()
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

    def _exit_user_fork(self, error: mime_bundles.ErrorDescription | None) -> None:
        """End the child of an os.fork by user code, at the end of the cell."""
        if error is not None:
            write_error("\n".join(error.traceback))
        self._streams.flush()
        _exit(0 if error is None else 1)


def _set_mark(mark: int) -> None:
    """Mark this process and all that it starts from now on: see ``tree_mark`` of the daemon."""
    try:
        resource.setrlimit(resource.RLIMIT_RSS, (mark, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        pass  # user code has lowered the hard limit


def _set_module_path(env: dict[str, str]) -> None:
    """Set sys.path as a new interpreter with the session's environment would.

    The zygote has started without PYTHONPATH and without a user site.
    """
    site.USER_BASE = site.USER_SITE = None
    if site.ENABLE_USER_SITE and not env.get("PYTHONNOUSERSITE"):
        # Add the user site even if the directory does not exist: pip creates the directory when the
        # interpreter's site-packages is read-only.
        before = list(sys.path)
        site.addsitedir(site.getusersitepackages())
        added = [path for path in sys.path if path not in before]
        places = [before.index(path) for path in site.getsitepackages() if path in before]
        place = min(places, default=len(before))
        sys.path[:] = before[:place] + added + before[place:]
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
