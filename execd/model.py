"""The vocabulary of all layers: commands, limits, results and events. Plain frozen data; no I/O, no
asyncio. Pure."""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, overload

import msgspec

from execd.errors import PreconditionFailed

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


class State(StrEnum):
    """The state of an execution. QUEUED and RUNNING are never entered again."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    EXITED = "EXITED"


# The docstring of a reason is its row in docs/reference/exit-reasons.md.
class ExitReason(StrEnum):
    """The reason for the end of an execution. A closed set; the first cause wins."""

    EXITED = "exited"
    """The program ended by itself, or the cell ran to its end."""
    SIGNALED = "signaled"
    """A signal ended the program, and execd did not send the signal. Commands only."""
    TIMEOUT = "timeout"
    """The run time limit was over."""
    NO_OUTPUT_TIMEOUT = "no_output_timeout"
    """The program was silent for `no_output_timeout_seconds`. Commands only."""
    CPU_LIMIT = "cpu_limit"
    """A process, or the cell, used up its CPU time."""
    MEMORY_LIMIT = "memory_limit"
    """The tree was over its memory limit, or was the largest tree when the pod ran out of
    memory."""
    PROCESS_LIMIT = "process_limit"
    """The tree had more processes and threads than allowed."""
    DISK_LIMIT = "disk_limit"
    """The base dir or `/tmp` held nearly all of what it may hold (`--base-dir-bytes`,
    `--tmp-dir-bytes`), and the tree wrote most of late; `message` says so if the choice of the tree
    is a guess. A cell ends with its session."""
    FILE_SIZE_LIMIT = "file_size_limit"
    """The program wrote more to a file than allowed. Commands only."""
    OUTPUT_LIMIT = "output_limit"
    """A stream was over `log_bytes`, and the request had `"on_output_limit": "kill"`; or a cell
    displayed more than 10,000 items or 32 MiB."""
    CANCELED = "canceled"
    """A caller asked for the end: `kill`, or DELETE of the execution or the session."""
    CLIENT_DISCONNECTED = "client_disconnected"
    """The last reader went away before the reply, and the policy is `kill`."""
    SPAWN_FAILED = "spawn_failed"
    """The program could not be started; `message` says why. Commands only."""
    WORKER_DIED = "worker_died"
    """The interpreter ended in the middle of a cell, sent bytes that are no frame, or flooded the
    daemon with frames. Cells only."""
    INTERRUPTED = "interrupted"
    """An interrupt (`interrupt`, or the signal INT) or a restart of the session ended the cell.
    Cells only."""
    INIT_KILLED = "init_killed"
    """User code killed its own PID 1, and with it all user code of the pod; or the daemon replaced
    the warden."""
    RESET = "reset"
    """`POST /v1/reset` ended the episode. The exit code is 137, also of an execution that never
    ran."""
    SHUTDOWN = "shutdown"
    """The daemon was told to stop."""
    DAEMON_RESTARTED = "daemon_restarted"
    """The execution ran when the daemon died."""


TIMEOUTS = (ExitReason.TIMEOUT, ExitReason.NO_OUTPUT_TIMEOUT)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one execution. None means no limit of execd's (the pod's limits still hold)."""

    cpu_seconds: int | None = None
    """RLIMIT_CPU of each process: SIGXCPU at the limit, SIGKILL a second later. For a session the
    warden samples the CPU time, and the session's own process may use the limit in each cell."""
    address_space_bytes: int | None = None
    """RLIMIT_AS of each process: allocations fail with ENOMEM."""
    file_size_bytes: int | None = None
    """RLIMIT_FSIZE of each process: SIGXFSZ, or EFBIG if the signal is ignored."""
    open_files: int | None = None
    """RLIMIT_NOFILE of each process: new descriptors fail with EMFILE."""
    core_bytes: int = 0
    """RLIMIT_CORE of each process."""
    processes: int | None = None
    """Processes and threads in the execution's tree, counted by the warden: one more ends the
    tree."""
    memory_bytes: int | None = None
    """Memory of the execution's tree, sampled by the warden: more memory ends the tree."""
    reply_bytes: int | None = None
    """Output per stream in one reply. None: the daemon's setting."""
    log_bytes: int | None = None
    """Output kept on disk per stream. None: the daemon's setting."""


COLUMNS, ROWS = 80, 24
"""The size of a terminal whose size nobody knows. A real terminal without a size says 0 by 0."""
TerminalColumns = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""Width of the terminal, in characters; 0 stands for 80."""
TerminalRows = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""Height of the terminal, in characters; 0 stands for 24."""


class TerminalSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of a terminal, in characters."""

    cols: TerminalColumns = COLUMNS
    rows: TerminalRows = ROWS


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program with its arguments, or the code of a cell; checked."""

    argv: tuple[str, ...]
    """The program and its arguments, with undecodable bytes as surrogate escapes; empty for a
    cell."""
    display: str
    """The caller's command line, for logs and listings; the code of a cell."""
    script: str | None = None
    """Text too long for an argument: the program finds the text as its descriptor 3."""
    is_code: bool = False
    """``display`` is the code of a cell, and ``argv`` is empty."""


class Interpreter(msgspec.Struct, frozen=True):
    """A Python of sessions."""

    path: str
    """The program."""
    origin: Literal["image", "own", "setting"]
    """`image`: the Python of the image; `own`: that of execd; `setting`: that of `--python`."""
    reason: str
    """Why sessions run on this Python and not on another, in words."""


StartedBy = Literal["shell", "direct", "argv"]
"""How a command was started: by its shell; by execd, from a command line that needs no shell; or by
execd, from the caller's list of arguments."""

EntryType = Literal["file", "directory", "link", "fifo", "socket", "device"]
"""The type of a file in a checkpoint."""
EntryChange = Literal["created", "modified", "deleted", "type", "mode"]
"""How a file differs from a checkpoint."""
DialectName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
"""The name of a dialect in logs and metrics. A wing (``execd.dialects``) brings its own."""
OWN_DIALECTS: tuple[DialectName, ...] = ("python_runtime", "v1")
"""The dialects of port 8888."""


class Origin(msgspec.Struct, frozen=True):
    """Who asked for an execution, for the log and the counters."""

    dialect: DialectName | None = None
    request_id: str | None = None
    trace_id: str | None = None


NO_ORIGIN = Origin()


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a dialect. The engine completes the command with the daemon's own limits
    (``executions.command``) before the command is run."""

    program: Program
    session_id: str | None = None
    """The session whose cwd and environment the program gets, under the command's own."""
    env: dict[str, str] = {}
    """Variables on top of the environment of every child."""
    clears_env: bool = False
    """The program gets the variables of ``env`` alone, and the marker of its execution."""
    cwd: str | None = None
    """Relative to the base dir; ``None``: the base dir."""
    timeout_seconds: float = math.inf
    """Hard limit, counted from spawn; inf: the daemon's own limit, ``--timeout``."""
    may_exceed_timeout: bool = False
    """A limit above ``--timeout`` holds, up to ``--max-timeout``, and a limit above that is an
    error. False: ``--timeout`` cuts the limit without a word."""
    queue_seconds: float = math.inf
    """How long the execution may wait for a place; inf: the daemon's own limit."""
    total_seconds: float | None = None
    """Limit of waiting and running together; ``None``: no such limit."""
    limits: Limits = Limits()
    stdin: bytes = b""
    """The first bytes of the program's standard input. Without bytes and without ``stdin_open`` the
    standard input is /dev/null."""
    stdin_open: bool = False
    """Callers may send more input, until a caller ends the input."""
    merges_output: bool = False
    """Both outputs are one pipe, whose bytes are the stream stdout, in the order of writing."""
    terminal: TerminalSize | None = None
    """A terminal as the program's 0, 1 and 2, whose output is the stream stdout. ``stdin`` is typed
    at the start, with Ctrl-D at the end unless ``stdin_open``."""
    no_output_timeout_seconds: float | None = None
    """How long the program may be silent."""
    kill_on_output_limit: bool = False
    """A stream over its ``log_bytes`` ends the program, instead of losing the stream's middle."""
    on_disconnect: Literal["kill", "detach"] | None = None
    """The policy for the leaving of the last reader; ``None``: the daemon's setting."""
    keeps_order: bool = True
    """The streams are read from the program's first moment on, so that events show the order of
    the two streams; False: once the program has lived for a moment."""
    detached: bool = False
    """The program runs until its own end, with or without readers."""
    tag: str | None = None
    """The caller's word for the command, by which callers find the command while it runs. Several
    commands may have the same tag."""
    user: str | None = None
    """UID[:GID] to run as, for a root daemon; ``None``: the daemon's setting."""
    origin: Origin = NO_ORIGIN

    @property
    def may_be_detached(self) -> bool:
        """Whether the program is detached, or will be when its reader leaves."""
        return self.detached or self.on_disconnect == "detach"


DisplayKind = Literal["display", "result", "error", "input_request", "clear_output"]


class DisplayMessage(msgspec.Struct, frozen=True):
    """A message of a cell besides output bytes. ``fields`` are as the worker sent them, bundles as
    raw JSON: claims of the code inside, not checked facts."""

    kind: DisplayKind
    fields: dict[str, Any]


class BackgroundOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a session wrote between two cells: the newest bytes, and the size of what is lost before
    these bytes."""

    stdout: bytes
    stderr: bytes
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0


CellStatus = Literal["success", "error"]


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a cell besides its execution. None: not known yet, or never known."""

    session_id: str
    generation: int | None = None
    state_lost: bool = False
    """The cell is the first to miss the state of an earlier generation."""
    status: CellStatus | None = None
    """The outcome, after the end."""
    execution_count: int | None = None
    """The number in In [n], as the worker counts."""
    background: BackgroundOutput | None = None
    """What the session wrote before the cell, and no earlier reply has told."""


class DiskExcess(NamedTuple):
    """Why a tree ended for a directory that the tree filled."""

    setting: Literal["base_dir_bytes", "tmp_dir_bytes"]
    path: str
    used_bytes: int
    limit_bytes: int
    is_guess: bool
    """No figure of the kernel says that the tree wrote to the disk."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of the program and the children that the program waited for: rusage of wait4(2).
    For a cell, whose process lives on: resources since the cell had run for 10 ms, in ticks of the
    kernel's clock (usually 10 ms). None: not known. The defaults are those of a program that never
    ran, or ended before the first sample."""

    user_seconds: float | None = 0.0
    system_seconds: float | None = 0.0
    max_rss_bytes: int | None = None
    """Of the largest process. For a program that never was larger than the warden (about 13 MB):
    as sampled, because the kernel's figure is then the warden's own. For a cell: as
    sampled, or the maximum over the process' whole life if the process ended with the cell."""
    peak_tree_bytes: int | None = None
    """Largest sum over the tree at one time, as sampled."""
    processes: int | None = None
    """A lower bound of the number of processes, as sampled."""
    output_bytes: int = 0


UNKNOWN_USAGE = Usage(user_seconds=None, system_seconds=None)


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """The omitted part of a stream in a reply: ``omitted_bytes`` after the first ``head_bytes``."""

    total_bytes: int
    head_bytes: int
    omitted_bytes: int


NOT_FOUND_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, NO_EXIT_CODE = 127, 126, 125
"""Exit codes for a program without a code of its own, as env(1) and timeout(1) use them."""
SIGNAL_EXIT_CODE = 128  # as shells do: the signal's number is added
RESET_EXIT_CODE = SIGNAL_EXIT_CODE + 9  # of SIGKILL


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an execution."""

    exit_code: int | None
    """The number that the program passed to exit. None: a signal ended the program, or the program
    never ran, or nobody knows."""
    term_signal: int | None
    """The signal that ended the program, or None."""
    exit_reason: ExitReason
    message: str = ""
    """For people: the reason for a failed start, or another remark."""
    usage: Usage = Usage()
    duration_seconds: float = 0.0
    killed: int = 0
    """Processes that got SIGKILL from execd."""
    survivors: tuple[int, ...] = ()
    """Pids that still existed when the kill gave up."""
    stand_in_exit_code: int = NO_EXIT_CODE
    """The number in the place of ``exit_code`` if there is neither a code nor a signal."""

    @property
    def any_exit_code(self) -> int:
        """An exit code in every case. 0 only if the program, or the cell, said so."""
        assert self.exit_code is None or self.term_signal is None
        if self.term_signal is not None:
            return SIGNAL_EXIT_CODE + self.term_signal
        if self.exit_code is None:
            is_reset = self.exit_reason is ExitReason.RESET
            return RESET_EXIT_CODE if is_reset else self.stand_in_exit_code
        return self.exit_code

    @property
    def timed_out(self) -> bool:
        return self.exit_reason in TIMEOUTS


ArchiveFormat = Literal["tar", "tar.gz", "zip"]

SearchEnd = Literal["limit", "scanned", "time"]
"""Why a search ended early: as many matches, scanned names or seconds as the search may have."""

Tags = frozenset[str] | Literal["*"] | None
"""Entity tags with their quotes. "*": any tag. None: the request has no such header."""


class Precondition(msgspec.Struct, frozen=True):
    """If-Match and If-None-Match (RFC 9110 §13), for requests that change a file."""

    match: Tags = None
    none_match: Tags = None

    @property
    def is_create_only(self) -> bool:
        return self.none_match == "*"

    def check(self, etag: str | None, subject: str) -> None:
        """Check the precondition. ``etag``: the present file's tag, or None without a file. Raises
        PreconditionFailed."""
        if self.match is not None and (
            etag is None or not (self.match == "*" or etag in self.match)
        ):
            raise PreconditionFailed(
                f"{subject}: is not what If-Match names; read the file again", etag=etag
            )
        if (
            self.none_match is not None
            and etag is not None
            and (self.none_match == "*" or etag in self.none_match)
        ):
            raise PreconditionFailed(
                f"{subject}: is what If-None-Match excludes; use another path, or "
                "leave the header out",
                etag=etag,
            )


NO_PRECONDITION = Precondition()


@overload
def rfc3339(seconds: float) -> str: ...


@overload
def rfc3339(seconds: None) -> None: ...


@overload
def rfc3339(seconds: float | None) -> str | None: ...


def rfc3339(seconds: float | None) -> str | None:
    """Format a time in UTC, to the millisecond."""
    if seconds is None:
        return None
    whole_seconds, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_format_second(whole_seconds)}.{microseconds // 1000:03d}Z"


@functools.lru_cache(maxsize=16)
def _format_second(seconds: int) -> str:
    """Cached: the times in a reply are usually of the same second, and of the second of the reply
    before."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
