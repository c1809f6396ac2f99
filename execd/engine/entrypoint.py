"""The image's own program, ``execd serve -- CMD ARG…``: what the container would run without execd.

CMD is user code: the warden starts CMD inside the walls, as the user of commands. CMD is nobody's
request: no execution of the API, in no queue, under no limit of execd's settings, and its output
goes past the daemon to the container's own descriptors. The daemon ends when CMD ends, with CMD's
exit code, and passes on the signals that a container gets.

Owners. The warden is CMD's parent, and alone waits for CMD. ``Entrypoint`` owns the ``Child``.
Nothing here has a task of its own: signals come in callbacks of the loop (``forward``), and the end
in a callback of ``Child.exited``. The server decides when the daemon ends. The end of the warden
ends what CMD leaves behind.

What can race.

* A signal against the start. A signal that comes before CMD runs waits in ``_early``, and ``start``
  sends all of them once CMD runs, in their order. Only after a SIGTERM that comes before ``start``
  is called CMD never runs: the server asks before the start whether the daemon ends already.
* A signal against CMD's end. The warden drops a signal for a leader that has ended, and the kernel
  does not give the pid to another process before the warden has waited.
* CMD's end against a shutdown. CMD's exit code is the daemon's in both orders. SIGTERM goes to CMD
  and begins the shutdown; CMD may end before, while or after executions end (``wait``). A CMD that
  is still there when its share of the time is over gets SIGKILL with the warden, and the exit code
  is the one of a KILL.
* A reset against CMD's end. If CMD ends first, the daemon is about to end, and the reset with the
  daemon. If ``let_go`` comes first, CMD's end tells nothing, and CMD starts anew.
* The loss of the warden against CMD's end. CMD died with the warden, so the exit code is the one of
  a KILL, unless the warden has told of the end before.
"""

from __future__ import annotations

import asyncio
import fcntl
import fnmatch
import functools
import logging
import os
import resource
import signal
import stat
import sys
import termios
from typing import TYPE_CHECKING

from execd.engine.executions import exit_status
from execd.engine.executions.environment import (
    DAEMONS_PREFIXES,
    MARKER,
    marker_entry,
)
from execd.engine.executions.execution_record import new_id
from execd.engine.executions.stdio import give_to_user
from execd.model import NO_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, SIGNAL_EXIT_CODE, Limits
from execd.proc import kernel_traits
from execd.proc.client import SpawnError, WardenLost
from execd.proc.messages import Exited, Spawn
from execd.proc.program_block import DEFAULT_PATH, pack, search
from execd.proc.rlimits import open_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from execd.engine.executions.context import EngineContext
    from execd.proc.child import Child, Lost

log = logging.getLogger(__name__)

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
KILLED = SIGNAL_EXIT_CODE + signal.SIGKILL
STDIO = (0, 1, 2)


class Entrypoint:
    """The image's program: made before anything of the daemon, started once the daemon listens."""

    def __init__(
        self, argv: Sequence[str], soft_open_files: int, *, gives_terminal: bool = False
    ) -> None:
        """``soft_open_files``: the container's soft limit. The daemon raises its own, and a program
        that closes all descriptors up to the limit would take seconds. ``gives_terminal``: CMD gets
        standard input as its controlling terminal."""
        assert argv, "the command line has at least a program"
        self._argv = argv
        self._soft_open_files = soft_open_files
        self._gives_terminal = gives_terminal
        self._child: Child | None = None
        self._early: list[int] = []
        """Signals that came before CMD ran."""
        self._was_asked = False
        """Whether CMD was started, or is about to be."""
        self._path = DEFAULT_PATH
        self._cwd = os.getcwd()
        self._again: Callable[[], Awaitable[None]] | None = None
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """CMD's exit code; 126 or 127 if CMD could not be started."""

    def forward(self, number: int) -> None:
        """Send the signal to CMD. CMD's children get what CMD sends, as in any container."""
        if self._child is None:
            self._early.append(number)
        else:
            self._child.signal(number, scope="leader")

    async def start(self, context: EngineContext, environment: Mapping[str, str]) -> None:
        """Start CMD with the image's ``environment``, in this process's working directory. A failed
        start is an end too, with a message on stderr."""
        self._was_asked = True
        self._path = environment.get("PATH", DEFAULT_PATH)
        self._again = functools.partial(self._launch, context, environment)
        try:
            await self._again()
        except SpawnError as error:
            print(f"execd: {error}", file=sys.stderr, flush=True)
            code = exit_status.code_of_failed_start(error.step, error.error)
            self.ended.set_result(NOT_EXECUTABLE_EXIT_CODE if code == NO_EXIT_CODE else code)
        except WardenLost:
            self.ended.set_result(KILLED)

    async def _launch(self, context: EngineContext, environment: Mapping[str, str]) -> None:
        """Raises SpawnError, WardenLost."""
        context.on_run()  # the guards of the disk begin to look
        descriptors = [os.dup(fd) for fd in STDIO]
        try:
            request = self._request(context, environment)
            give_to_user(filter(_is_private, descriptors), request.uid, request.gid)
        except BaseException:
            for fd in descriptors:
                os.close(fd)
            raise
        child = await context.warden.launch(request, descriptors, _note_limit)
        self._was_asked = True
        self._child = child
        child.exited.add_done_callback(functools.partial(self._on_exited, child))
        for number in self._early:
            self.forward(number)
        self._early.clear()

    def let_go(self) -> None:
        """A reset ends CMD with the warden, and not the daemon. ``start_again`` follows."""
        self._child = None
        if self._again is not None:
            self._early.clear()

    def obstacle(self) -> str:
        """Return why CMD cannot start again, as far as files tell; empty: nothing is in the way.
        Blocking, for a thread that acts as the user."""
        if self._again is None or self.ended.done():
            return ""
        if not os.path.isdir(self._cwd):
            return f"its directory {self._cwd} is gone"
        for path in search(self._argv[0], self._path):
            found = os.path.join(self._cwd, path)
            if os.path.isfile(found) and os.access(found, os.X_OK, effective_ids=True):
                return ""
        return f"{self._argv[0]!r} cannot be found or executed"

    async def start_again(self) -> None:
        """Start CMD anew after a reset. Signals since ``let_go`` follow. Where CMD cannot start,
        the daemon serves on without CMD: the caller of the reset has another sandbox to look at,
        and the next reset tries again."""
        if self._again is None or self.ended.done():
            return
        try:
            await self._again()
        except (SpawnError, WardenLost) as error:
            self._was_asked = False
            log.error("the image's program did not start again", extra={"error": str(error)})

    def _request(self, context: EngineContext, environment: Mapping[str, str]) -> Spawn:
        execution_id = new_id()
        env = {MARKER: execution_id, **image_environment(environment, context.config.hide_env)}
        identity = context.identity
        # As many as the kernel lets a program have that shares the daemon's user.
        most_files = open_files(Limits(open_files=sys.maxsize))
        return Spawn(
            tag=context.warden.new_tag(),
            program=pack(self._argv, env, self._cwd),
            stdio=list(STDIO),
            terminal=self._gives_terminal,
            limits=[[resource.RLIMIT_NOFILE, min(self._soft_open_files, most_files), most_files]],
            processes=0,
            marker=marker_entry(execution_id),
            uid=identity.uid,
            gid=identity.gid,
            groups=None if identity.groups is None else list(identity.groups),
        )

    def _on_exited(self, child: Child, exited: asyncio.Future[Exited | Lost]) -> None:
        if child is not self._child:
            return
        ended, code = exited.result(), KILLED
        if isinstance(ended, Exited):
            code = os.waitstatus_to_exitcode(ended.wait_status)
            if code < 0:
                code = SIGNAL_EXIT_CODE - code
        log.info("the image's program has ended", extra={"exit_code": code})
        self.ended.set_result(code)

    async def wait(self, until: float) -> None:
        """Return when CMD has ended, at the time ``until`` of the loop's clock at the latest."""
        if self._was_asked:
            timeout = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait((self.ended,), timeout=timeout)

    def exit_code(self, without: int) -> int:
        """Return the exit code of the daemon, if the daemon ends now. ``without``: if CMD never
        ran, or did not start again. Any thread may call this."""
        if not self._was_asked:
            return without
        return self.ended.result() if self.ended.done() else KILLED


def release_terminal() -> bool:
    """Give up the container's terminal, so that CMD may control it: Ctrl-C, jobs of a shell, and
    the terminal's size are then CMD's. Return whether there was a terminal to give.

    gVisor lets nobody control a terminal again that was given up. There the daemon keeps the
    terminal, and passes on the signals.
    """
    if os.getsid(0) != os.getpid() or not os.isatty(0):
        return False  # without a session of its own, the terminal is somebody else's
    if not kernel_traits.find().signals_terminals:
        return False
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel hangs up: tty_ioctl(4)
    try:
        fcntl.ioctl(0, termios.TIOCNOTTY)
    except OSError:  # not the controlling terminal
        return False
    finally:
        signal.signal(signal.SIGHUP, former)
    return True


def image_environment(environment: Mapping[str, str], hidden: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of the daemon's environment that CMD would have without execd, without
    those of the patterns ``hidden`` (``--hide-env``): commands can read CMD's environment."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(DAEMONS_PREFIXES)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in hidden)
    }


def _is_private(fd: int) -> bool:
    """A pipe or a terminal belongs to this container alone. A file or /dev/null has other users,
    and keeps its owner."""
    return stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd)


def _note_limit(limit: str, used: int) -> None:
    log.warning("the image's program is over a limit", extra={"limit": limit, "used": used})
