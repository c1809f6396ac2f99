"""Bash sessions: a series of commands that share variables, functions and the working directory.

A run is a bash of its own, and a command like any other: a run can be ended, timed out and
measured, and the death of a run loses nothing of the session. A run waits for the run before, in
the queue and without a place; the limit of waiting in the queue ends the wait.

The script of a run (``session_script``)

1. reads the state that the run before has saved,
2. evaluates the command in the same shell, with standard error on standard output,
3. saves the state anew: variables with their attributes, functions, aliases, options, traps, the
   umask, the positional parameters and the working directory.

The state goes to a file of its own and never to standard output, so no output of the command can be
taken for state. ``exit`` in the command saves the state too, by the trap EXIT. A trap EXIT of the
command is kept for the session, as in a shell that lives on, and runs when the command calls
``exit``; then the run saves nothing. Not kept: open descriptors, jobs, the stack of directories.

The state is a file in a directory of the session, which belongs to the user of the commands, mode
0700. The directories are in a folder in the directory for temporary files. The folder goes with the
daemon, because the state holds variables of the user. A daemon that is killed leaves its folder
behind, and the next daemon removes the folder. Several daemons may share the directory, also from
different containers, where a pid means nothing: a daemon that lives holds a lock (flock(2)) on a
file in its folder, and the kernel gives the lock up with the daemon.

Races:

* A run is killed while it saves its state. The run writes to a second file, which takes the place
  of the first only if it is whole. Otherwise the session goes on from the state before the run.
* User code removes the directory. The next run begins without state, and the directory is made
  anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import stat
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from execd.engine.executions.command import shell_program
from execd.errors import ExecdError, InvalidArgument, NotFound, ResourceExhausted
from execd.model import ExitReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.executions.execution import Execution
    from execd.engine.files.service import Files
    from execd.model import Command

MAX_BASH_SESSIONS = 1024
"""Bash sessions at once. More are 429.

An idle session costs a directory with a file of a few kilobytes."""


BASH_OPTIONS = ("--noprofile", "--norc", "-c")
NAME_OF_BASH = "bash"
"""The argument behind a script: how bash calls itself in messages, whatever the path of bash."""
END_MARK = b"#complete\n"
"""The last line of a whole state. A run that is killed while it saves leaves no such line."""

# "set +o" comes first, since the next lines need the usual options. Its output becomes a function,
# because the options must not hold while the state is read: with errexit a failure would end the
# shell.
#
# Variables are printed by name, without the readonly variables of bash itself: an assignment to
# BASH_VERSINFO would make bash give up on the rest of the state.
_SAVE = r"""{{
printf '__execd_options() {{\n'; set +o; printf '}}\n'
set +eunvx; set +o posix
while IFS= read -r __execd_name; do
case $__execd_name in
BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID|EXECD_EXECUTION_ID|__execd_*) ;;
*) declare -p "$__execd_name" ;;
esac
done < <(compgen -v)
declare -f
printf '{{ :\n'; declare -F; printf '}} >/dev/null 2>&1\n'
printf '{{ :\n'; shopt -p; alias -p; umask -p; trap -p; printf '}} 2>/dev/null\n'
printf 'cd -- %q 2>/dev/null || {{ cd -P .; printf "%%s\\n" %q"$PWD"; }}\n' "$PWD" \
"execd: the directory of the session is gone: $PWD. This run begins in "
printf 'OLDPWD=%q\n' "${{OLDPWD-}}"
printf 'set --'; (( $# )) && printf ' %q' "$@"; printf '\n'
printf '#complete\n'
}} >| {new} 2>/dev/null"""

# The marker of the execution, by which execd finds the processes of a run, is not part of the
# state. What follows the command is parsed before the command: after an open quote in the command
# bash misreads the next line. Braces with a redirection hide the lines from a trace (set -x).
_SCRIPT = r"""exec 2>&1
trap -- {trap} EXIT
[[ -r {state} ]] && . {state}
{cd}{{
if declare -F __execd_options >/dev/null; then
{{ __execd_options; unset -f __execd_options; }} 2>/dev/null
fi
eval -- {command}
{{ __execd_status=$?; }} 2>/dev/null
{save}
{{ trap - EXIT; exit "$__execd_status"; }} 2>/dev/null
}}
"""


def session_script(command: str, state: str, new: str, cwd: str | None) -> str:
    """Return the text for bash. ``state``: the path of the state before the run, if there is a
    file; ``new``: the path of the state afterwards. ``cwd``: a directory to enter first."""
    save = _SAVE.format(new=shlex.quote(new))
    return _SCRIPT.format(
        trap=shlex.quote("{ __execd_status=$?; } 2>/dev/null\n" + save),
        state=shlex.quote(state),
        cd="" if cwd is None else f"cd -- {shlex.quote(cwd)} || exit\n",
        command=shlex.quote(command),
        save=save,
    )


PREFIX = ".execd-bash-"
LOCK = "lock"
ATTEMPTS = 4


class BashStateFolder(NamedTuple):
    """The folder of this daemon. End with ``remove``."""

    path: str
    lock: int
    """Descriptor of the locked file."""

    def remove(self) -> None:
        """Remove the folder, as far as user code lets us, and give up the lock."""
        try:
            shutil.rmtree(self.path, ignore_errors=True)
        finally:
            os.close(self.lock)


def make_folder(directory: str) -> BashStateFolder:
    """Make the folder of this daemon. Raises OSError."""
    for _ in range(ATTEMPTS):
        path = os.path.join(directory, PREFIX + secrets.token_hex(8))
        os.mkdir(path, 0o700)
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _takes_lock(lock):
            return BashStateFolder(path, lock)
        os.close(lock)  # another daemon has taken the new folder for a leftover
    raise FileExistsError(f"{directory}: other daemons remove each new folder")


def remove_leftovers(directory: str) -> None:
    """Remove the folders of daemons that have ended. A folder without the file of the lock stays:
    the folder belongs to a daemon that is about to make the file, or to nobody whom execd knows."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in paths:
            _remove_if_free(path)


def _remove_if_free(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.islink(path):
            return
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(os.path.join(path, LOCK), flags)
        try:
            if _takes_lock(lock):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _takes_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Run(NamedTuple):
    execution: Execution
    turn: asyncio.Future[None]


class BashSession:
    """One session, made by ``BashSessions.create``."""

    def __init__(
        self, session_id: str, directory: str, cwd: str | None, *, is_context: bool
    ) -> None:
        self.id = session_id
        self.is_context = is_context
        """Whether a dialect lists the session among the contexts of its code interpreter."""
        self.directory = directory
        self.cwd = cwd
        """Where the first run begins; None: the base dir."""
        self.runs: deque[_Run] = deque()
        """The run that has the session's turn, and the runs that wait."""
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.is_deleted = False

    @property
    def execution(self) -> Execution | None:
        """The run that has the session's turn."""
        return self.runs[0].execution if self.runs else None

    @property
    def state_path(self) -> str:
        return os.path.join(self.directory, "state")

    @property
    def new_state_path(self) -> str:
        return os.path.join(self.directory, "new")


class BashSessions:
    """Owns the sessions and the tasks that end their runs. End with ``close``."""

    def __init__(
        self,
        run: Callable[[Command, asyncio.Future[None]], Execution],
        files: Files,
        temporary_dir: str,
        *,
        bash: str,
        max_waiting: int,
    ) -> None:
        """``run`` starts a command, once the future is done. ``files``: with paths as user code
        sees them. ``temporary_dir``: where the folder with the sessions' directories is.
        ``bash``: the path of bash. ``max_waiting``: runs that wait for the turns of their
        sessions."""
        self._shell = (bash, *BASH_OPTIONS)
        self._run = run
        self._max_waiting = max_waiting
        self._files = files
        self._temporary_dir = temporary_dir
        self._folder: BashStateFolder | None = None
        self._folder_guard = threading.Lock()
        self._creating = asyncio.Lock()
        self._sessions: dict[str, BashSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> BashSession:
        """Raises NotFound."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(f"there is no bash session {session_id!r}")
        return session

    def find(self, session_id: str) -> BashSession | None:
        return self._sessions.get(session_id)

    def list(self) -> list[BashSession]:
        """Return the sessions, the oldest first."""
        return list(self._sessions.values())

    async def create(
        self,
        *,
        cwd: str | None = None,
        session_id: str | None = None,
        is_context: bool = False,
    ) -> BashSession:
        """Make a session whose first run begins in ``cwd``, made if missing. ``is_context``: see
        ``BashSession``.

        Raises ResourceExhausted, and the errors of ``Files.make_directory``.
        """
        if len(self._sessions) >= MAX_BASH_SESSIONS:
            raise ResourceExhausted(
                f"{MAX_BASH_SESSIONS} bash sessions exist already; delete one",
                retry_after_seconds=5,
            )
        session_id = session_id or secrets.token_hex(16)
        await self._files.make_directory(self._temporary_dir)
        folder = await self._files.run(self._ensure_folder)
        directory = os.path.join(folder, session_id)
        session = BashSession(session_id, directory, cwd, is_context=is_context)
        assert session_id not in self._sessions, "ids are random, or given by the daemon"
        self._sessions[session_id] = session
        try:
            if cwd is not None:
                await self._files.make_directory(cwd)
            await self._files.make_directory(session.directory, mode=0o700)
        except BaseException:
            del self._sessions[session_id]
            raise
        return session

    async def ensure_context(self, session_id: str) -> BashSession:
        """Return the context of that id, made if missing. Raises the errors of ``create``."""
        async with self._creating:
            found = self._sessions.get(session_id)
            return found or await self.create(session_id=session_id, is_context=True)

    def run(self, session: BashSession, text: str, command: Command) -> Execution:
        """Run ``text`` as the next run of the session, after the runs before have ended.
        ``command``: everything but the program. ``command.cwd``: a directory to enter first.

        Raises NotFound if the session is deleted, ResourceExhausted if too many runs wait for their
        sessions, and the errors of ``Engine.submit``.
        """
        if "\0" in text:
            raise InvalidArgument("command: has a NUL byte; leave it out", field="command")
        if session.is_deleted:
            raise NotFound(f"the bash session {session.id!r} is deleted")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not session.runs:
            turn.set_result(None)
        elif self._waiting >= self._max_waiting:
            raise ResourceExhausted(
                f"{self._waiting} runs wait for the turns of their bash sessions; repeat the "
                "request when the run before has ended, or use another session",
                retry_after_seconds=1,
            )
        script = session_script(text, session.state_path, session.new_state_path, command.cwd)
        program = shell_program(script, self._shell)
        argv = (*program.argv, NAME_OF_BASH)
        program = msgspec.structs.replace(program, argv=argv, display=text)
        command = msgspec.structs.replace(command, program=program, cwd=session.cwd)
        run = _Run(self._run(command, turn), turn)
        session.runs.append(run)
        session.is_idle.clear()
        task = asyncio.create_task(self._finish(session, run), name="bash-session-run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run.execution

    @property
    def _waiting(self) -> int:
        """The number of runs that wait for the turns of their sessions."""
        return sum(max(0, len(one.runs) - 1) for one in self._sessions.values())

    async def end(self, session: BashSession) -> None:
        """End the runs, and forget the session with its state. Idempotent."""
        session.is_deleted = True
        self._sessions.pop(session.id, None)
        for run in session.runs:
            run.execution.end(ExitReason.CANCELED, 0.0)
        await session.is_idle.wait()
        with contextlib.suppress(NotFound):
            await self._files.remove(session.directory, recursive=True)

    def _ensure_folder(self) -> str:
        """Return the path of this daemon's folder. Raises OSError. Runs in a thread, as the user
        of the commands; a caller that is canceled meanwhile leaves the folder to the next caller.
        """
        with self._folder_guard:
            if self._folder is None:
                remove_leftovers(self._temporary_dir)
                self._folder = make_folder(self._temporary_dir)
            return self._folder.path

    async def close(self) -> None:
        """Delete all sessions. A directory that cannot be removed is left behind."""
        for session in self.list():
            with contextlib.suppress(ExecdError):
                await self.end(session)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        folder, self._folder = self._folder, None
        if folder is not None:
            with contextlib.suppress(ExecdError):
                await self._files.run(folder.remove)

    async def _finish(self, session: BashSession, run: _Run) -> None:
        """Await the end of a run, keep its state, and give the turn to the next run."""
        try:
            await run.execution.ended()
            if run.turn.done():
                with contextlib.suppress(ExecdError):  # the daemon ends, or the disk is full
                    is_there = await self._files.run(lambda: _keep_state(session))
                    if not is_there and not session.is_deleted:
                        await self._files.make_directory(session.directory, mode=0o700)
        finally:
            session.runs.remove(run)
            if not session.runs:
                session.is_idle.set()
            elif not session.runs[0].turn.done():
                session.runs[0].turn.set_result(None)


def _keep_state(session: BashSession) -> bool:
    """Let the new state take the place of the old state, if the new state is whole. Return whether
    the directory of the session is there. Runs in a thread, as the user of the commands."""
    new = session.new_state_path
    try:
        if _is_whole(new):
            os.replace(new, session.state_path)
        elif os.path.lexists(new):
            os.unlink(new)
    except OSError:
        pass  # user code has changed the directory; the state before stays
    return os.path.isdir(session.directory)


def _is_whole(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size < len(END_MARK):
            return False
        return os.pread(fd, len(END_MARK), info.st_size - len(END_MARK)) == END_MARK
    finally:
        os.close(fd)
