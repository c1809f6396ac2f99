"""Direct execution: a command line of plain words starts its program without a shell.

The program must find what the shell would have passed on. So the shell itself is asked, once for
each set of names of variables, by a line that prints the status and the environment of its program:

* in which order the shell passes the variables on, which variables the shell adds (PWD; in bash
  also SHLVL and ``_``), and which it drops (dash drops names that are not names of variables);
* whether the shell waits for its last command as a parent, or has become the command. dash waits,
  and turns a death by a signal into an exit code and a line on standard error
  (``exit_status.as_reported_by_dash``).

Only known shells are asked, by the name of the file behind /bin/sh. busybox is not among these: it
starts a program with SIGQUIT ignored.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from execd.engine.executions.command import SHELL, is_argv
from execd.engine.executions.plain_words import plain_words
from execd.engine.output.pump import Pump
from execd.proc.client import SpawnError, WardenLost
from execd.proc.messages import NULL_DEVICE, Exited, Spawn
from execd.proc.program_block import DirectProgram, pack
from execd.proc.rlimits import rlimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from execd.engine.executions.environment import ChildEnvironment
    from execd.model import Command, Limits
    from execd.proc.client import WardenClient
    from execd.proc.spawn import Identity

T = TypeVar("T")
Names = tuple[str, ...]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN_SHELLS = frozenset(("bash", "dash"))

CAT = "/bin/cat"
QUESTION = f"{CAT} /proc/self/stat /proc/self/environ"
ANSWER_SECONDS = 5.0
START_SECONDS = 1.0
"""How long ``start`` waits for the answer: 2 ms natively, 20 ms in gVisor."""
MAX_FAILURES = 3
"""So many questions in a row without an answer, and the shell is no longer asked."""
MAX_ANSWER_BYTES = 1 << 20
QUESTION_ID = "direct-exec"

MAX_LAYOUTS = 128
"""Sets of names whose layout is remembered, and as many that were seen once."""
MAX_VARIABLES = 256
MAX_PATH_ENTRIES = 64

VARIABLES_OF_SHELLS = _words(
    """
    _ BASHOPTS CDPATH COLUMNS COMP_WORDBREAKS COPROC DIRSTACK ENV EPOCHREALTIME EPOCHSECONDS EUID
    EXECIGNORE FCEDIT FIGNORE FUNCNAME FUNCNEST GLOBIGNORE GROUPS HOSTFILE HOSTTYPE IFS
    IGNOREEOF INPUTRC INSIDE_EMACS LINENO LINES LOCPATH MACHTYPE MAIL MAILCHECK MAILPATH MAPFILE
    NLSPATH OLDPWD OPTARG OPTERR OPTIND OSTYPE PIPESTATUS POSIXLY_CORRECT POSIX_PEDANTIC PPID
    PROMPT_COMMAND PROMPT_DIRTRIM PS0 PS1 PS2 PS3 PS4 PWD RANDOM READLINE_ARGUMENT READLINE_LINE
    READLINE_MARK READLINE_POINT REPLY SECONDS SHELL SHELLOPTS SHLVL SRANDOM TEXTDOMAIN
    TEXTDOMAINDIR TIMEFORMAT TMOUT UID auto_resume histchars
    """
)
"""Variables that dash or bash read, set or treat in a way of their own."""
FAMILIES_OF_SHELLS = ("BASH", "COMP_", "HIST", "GLIBC_", "LD_", "MALLOC_")
"""The last three change how the shell itself is loaded (ld.so(8)), and may lead to warnings."""
LOCALE = re.compile(r"LANG|LANGUAGE|LC_.*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Layout(NamedTuple):
    """How a shell passes an environment on: which variables, in which order."""

    entries: list[str]
    """See ``program_block.DirectProgram``."""
    forks: bool
    """The shell waits for its last command as the command's parent."""
    locale: tuple[tuple[str, str], ...]
    """The values for which the layout holds: bash warns about a locale that does not exist."""


class DirectStart(NamedTuple):
    """How a command is started without a shell."""

    program: DirectProgram
    shell_forks: bool


class DirectExec:
    """Decides for each command. ``start`` asks the shell about the environment without variables of
    callers; ``close`` ends a question that is still under way."""

    def __init__(
        self,
        warden: WardenClient,
        environment: ChildEnvironment,
        identity: Identity,
        limits: Limits,
        *,
        is_on: bool,
        shell: str = SHELL[0],
    ) -> None:
        """``limits``: of the questions."""
        self._warden = warden
        self._environment = environment
        self._identity = identity
        self._limits = limits
        self._is_on = is_on
        self._shell = shell
        self._shell_file: tuple[int, ...] = ()
        """The identity of the shell's file when the shell was last recognized."""
        self._is_known = False
        self._layouts: dict[Names, Layout | None] = {}
        """By the names of variables, in order; None: the shell is needed."""
        self._seen: dict[Names, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._n_failures = 0
        """Questions without an answer, since the last answer."""

    async def start(self) -> None:
        if self._is_on and self._recognize_shell():
            self._ask_about(self._environment.build(QUESTION_ID, {})[0])
        if self._asking is not None:
            await asyncio.wait((self._asking,), timeout=START_SECONDS)

    async def close(self) -> None:
        self._is_on = False
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def find(self, command: Command, env: Mapping[str, str]) -> DirectStart | None:
        """Return the start of a command that needs no shell; None for any other command. ``env``:
        the command's whole environment."""
        program = command.program
        if (
            not self._is_on
            or program.script is not None
            # A terminal's keys signal the shell too, and its end hangs up the shell.
            or command.terminal is not None
            or program.argv[:-1] != SHELL
            or is_argv(program)
        ):
            return None
        words = plain_words(program.argv[-1])
        if words is None or not self._recognize_shell():
            return None
        layout = self._layout(env)
        if layout is None or not is_plain_search_path(env.get("PATH", "")):
            return None
        if any(env[name] != value for name, value in layout.locale):
            return None
        return DirectStart(DirectProgram(words, layout.entries), layout.forks)

    # The shell.

    def _recognize_shell(self) -> bool:
        """Whether the shell is known. Root in the sandbox may replace the shell at any time."""
        try:
            found = os.stat(self._shell)
            file = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
            if file != self._shell_file:
                self._layouts.clear()
                self._seen.clear()
                name = os.path.basename(os.path.realpath(self._shell))
                self._is_known, self._shell_file = name in KNOWN_SHELLS, file
        except OSError:
            return False
        return self._is_known

    def _layout(self, env: Mapping[str, str]) -> Layout | None:
        """Return the layout if the shell has been asked. A set of names that comes for the second
        time is worth a question."""
        names = tuple(env)
        try:
            return self._layouts[names]
        except KeyError:
            pass
        if names in self._seen:
            if self._asking is None:
                self._ask_about(env)
        else:
            _remember(self._seen, names, None)
        return None

    def _ask_about(self, env: Mapping[str, str]) -> None:
        """Ask in the background; commands take the shell meanwhile."""
        names = tuple(env)
        if not is_plain_environment(names):
            _remember(self._layouts, names, None)
            return
        self._asking = asyncio.create_task(self._learn(names, _example(self._environment, env)))

    async def _learn(self, names: Names, example: dict[str, str]) -> None:
        file = self._shell_file
        try:
            answer = await self._ask(example)
            if file == self._shell_file:
                _remember(self._layouts, names, parse_answer(answer, example))
            self._n_failures = 0
        except (OSError, SpawnError, WardenLost):
            # The next command of these names leads to the next question.
            self._n_failures += 1
            if self._n_failures >= MAX_FAILURES:
                _remember(self._layouts, names, None)
        finally:
            self._asking = None

    async def _ask(self, env: dict[str, str]) -> bytes:
        """Return what the line printed. Raises OSError (also for a line that failed), SpawnError,
        WardenLost."""
        answer = bytearray()

        def append(data: bytes) -> None:
            if len(answer) <= MAX_ANSWER_BYTES:
                answer.extend(data)

        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        pump = Pump(read_end, append)
        try:
            child = await self._warden.launch(
                self._question(env), [write_end], lambda _limit, _value: None
            )
            try:
                pump.start()
                done, _ = await asyncio.wait((child.exited,), timeout=ANSWER_SECONDS)
                if not done:
                    raise TimeoutError
                ended = child.exited.result()
                if not isinstance(ended, Exited):
                    raise WardenLost
                if ended.wait_status != 0:
                    raise ChildProcessError
            finally:
                if not child.exited.done():
                    child.kill(0.0)
                child.release()
            pump.drain_now()
        finally:
            pump.close()
        return bytes(answer)

    def _question(self, env: dict[str, str]) -> Spawn:
        identity = self._identity
        return Spawn(
            tag=self._warden.new_tag(),
            program=pack([self._shell, "-c", QUESTION], env, "/"),
            # Warnings of the shell spoil the answer, as they should.
            stdio=[NULL_DEVICE, 0, 0],
            terminal=False,
            limits=rlimits(self._limits, in_namespace=self._warden.has_namespace),
            processes=self._limits.processes or 0,
            marker="=".join(next(iter(env.items()))),
            uid=identity.uid,
            gid=identity.gid,
            groups=None if identity.groups is None else list(identity.groups),
            announce=False,
        )


def is_plain_environment(names: Sequence[str]) -> bool:
    """Whether no shell has a rule for one of the names."""
    return len(names) <= MAX_VARIABLES and not any(
        name in VARIABLES_OF_SHELLS or name.startswith(FAMILIES_OF_SHELLS) for name in names
    )


@functools.lru_cache(maxsize=64)
def is_plain_search_path(path: str) -> bool:
    """Whether execd can look for a program as shells do. dash has a meaning for "%" in PATH, bash
    for "~", and a program in a directory that is not absolute has several names."""
    entries = path.split(":")
    return len(entries) <= MAX_PATH_ENTRIES and all(
        entry.startswith("/") and "%" not in entry and "~" not in entry for entry in entries
    )


def parse_answer(answer: bytes, env: Mapping[str, str]) -> Layout | None:
    """Return the layout that the answer to QUESTION shows; None if the answer shows anything that
    is not understood. ``env``: the environment of the question."""
    status, _, environment = answer.partition(b"\n")
    try:
        pid, (_, _, group, *_) = int(status.split()[0]), status.rpartition(b")")[2].split()
        forks = pid != int(group)
    except (ValueError, IndexError):
        return None
    entries = []
    for item in environment.removesuffix(b"\0").split(b"\0"):
        name, _, value = os.fsdecode(item).partition("=")
        if env.get(name) == value or (name, value) in (("PWD", "/"), ("_", CAT)):
            entries.append(name)
        elif (name, value) == ("SHLVL", "0"):
            entries.append(f"{name}={value}")
        else:
            return None
    dropped = env.keys() - set(entries)
    if len(set(entries)) < len(entries) or any(map(IDENTIFIER.fullmatch, dropped)):
        return None
    is_bash = "_" in entries
    locale = tuple(item for item in env.items() if is_bash and LOCALE.fullmatch(item[0]))
    return Layout(entries, forks, locale)


def _example(environment: ChildEnvironment, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment of the same names. The values of a caller are for its command alone, so
    only a locale comes from ``env``."""
    own = environment.build(QUESTION_ID, {})[0]
    return {
        name: value if LOCALE.fullmatch(name) else own.get(name, name)
        for name, value in env.items()
    }


def _remember(found: dict[Names, T], names: Names, value: T) -> None:
    if len(found) >= MAX_LAYOUTS:
        del found[next(iter(found))]
    found[names] = value
