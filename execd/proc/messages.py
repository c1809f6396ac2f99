"""The warden's protocol: typed messages. Pure; standard library only; imported by the daemon and by
the warden.

``message_codec`` has the bytes of the messages. The codec checks most fields against their
annotations, so annotations here must be real types and not strings.
"""

from typing import Literal, NamedTuple

NULL_DEVICE = -1

Scope = Literal["leader", "group", "session", "tree", "cell"]


class ProtocolError(Exception):
    """The peer sent bytes outside the protocol."""


class MemfdLost(ProtocolError):
    """A long message came without its memfd, because the receiver had no free descriptor.

    The channel remains usable.
    """

    def __init__(self, tag: int) -> None:
        super().__init__("a long message was lost on the way")
        self.tag = tag


# Daemon to warden. ``tag`` is the daemon's number of the program.


class Spawn(NamedTuple):
    """Start a program.

    ``stdio`` names the program's descriptors 0, 1, 2 …: each entry is the index of a passed
    descriptor, or NULL_DEVICE.
    """

    tag: int
    program: bytes
    """See ``program_block``. May hold a program in the place of a shell that would do nothing but
    start the program."""
    stdio: list[int]
    terminal: bool
    limits: list[list[int]]
    """Lists of [resource, soft, hard], see setrlimit(2)."""
    processes: int
    """The largest number of processes of the whole tree; 0: no limit."""
    marker: str
    """A variable of the program, NAME=value: processes with the variable belong to the tree."""
    uid: int | None
    gid: int | None
    groups: list[int] | None
    memory_bytes: int = 0
    """The largest memory of the whole tree; 0: no limit. See ``memory``."""
    is_idle: bool = False
    """The program runs no user code, so the tree gets no process by elimination."""
    announce: bool = True
    """Send Spawned at once. Otherwise Spawned is sent only if the program lives for a moment."""


class Adopt(NamedTuple):
    """Treat a process, already a child of the warden, as a program; answered by Spawned or
    SpawnFailed. See ``adoption``."""

    tag: int
    mark: int
    """See ``tree_mark``; the worker sets the mark of each cell by itself. A started program has the
    mark among its limits."""
    marker: str
    """As in Spawn: the entry that the process passes on in the environment of its children."""
    pipes: list[int]
    """Inode numbers of the pipes with the process's output."""
    processes: int
    memory_bytes: int
    cpu_seconds: int
    """CPU time of each process; 0: no limit.

    The CPU time of the adopted process counts since the last count began (see Measure). Over the
    limit, a descendant gets KILL; the adopted process is left to the daemon. The warden reports
    LimitReached, but not for a descendant that is older than the counted work, and not for
    processes below such a descendant.
    """
    is_idle: bool
    """As in Spawn, until ``MarkActive``."""


class MarkActive(NamedTuple):
    """The program begins to run user code."""

    tag: int


class Signal(NamedTuple):
    """Signal a program; ``scope`` is a value of Scope.

    Leader and group get the signal at once until the leader has ended. Later the leader gets
    nothing, and the group gets the signal after a scan, as the leader's session and the tree always
    do. With the scope cell the leader gets the signal at once, and after a scan the processes that
    the cell has begun and that are in the leader's group: as from a terminal, but for what earlier
    cells have begun.
    """

    tag: int
    number: int
    scope: str
    mark: int = 0
    """With the scope cell: the cell's mark."""


class Kill(NamedTuple):
    """End the whole tree: TERM, the grace, KILL; answered by Killed."""

    tag: int
    grace_seconds: float
    unless_ended_before: float = 0.0
    """A deadline on the monotonic clock. Nothing is ended if the leader ended before the deadline
    (see Exited): Exited was on its way when the daemon sent Kill."""


class KillCell(NamedTuple):
    """End the processes that a cell has begun: the members with the mark, without the leader. TERM,
    the grace, KILL; answered by CellKilled. A second request can shorten the grace."""

    tag: int
    mark: int
    grace_seconds: float


class Measure(NamedTuple):
    """Report the resources of a tree; answered by Measured."""

    tag: int
    anew: bool
    """Also begin a new count. The first count begins with the leader."""
    work_began: float = 0.0
    """With ``anew``: when the counted work began, on the monotonic clock. The warden may hear of
    the work later. Older descendants are no part of the work: see Adopt."""


class Configure(NamedTuple):
    """The memory that the warden keeps free for the pod; the answer to Ready, before the first
    Spawn. A descriptor comes with the message: the file of ``totals_file``.

    See ``memory``.
    """

    reserve_bytes: int
    """0: no reserve."""
    pod_bytes: int
    """The pod's size; 0: all memory of the kernel, or the cgroup's limit."""
    cgroup: str = ""
    """Directory of the memory cgroup with the usage that counts; empty: the machine's usage counts.
    A path, because the warden opens the files inside its own mount namespace."""
    only_growth: bool = False
    """Further programs of the machine fill the same memory: a tree ends only for its growth since
    its start."""


class ReadWritten(NamedTuple):
    """Report what each tree has written; answered by Written with the same number."""

    sequence: int
    is_urgent: bool = False
    """A directory is nearly full: the warden scans soon, to know the newest processes."""


class Ping(NamedTuple):
    sequence: int


# Warden to daemon.


class Ready(NamedTuple):
    """``pid``: the warden's pid in its own PID namespace; 1 for the init of a namespace."""

    pid: int
    root_capabilities: list[str]
    """The capabilities of a root command (``self_process.root_capabilities``)."""


class Spawned(NamedTuple):
    """The program runs.

    Left out when the program has ended so soon that Exited carries the same facts.
    """

    tag: int
    pid: int
    spawned_at: float
    """The time of the spawn on the monotonic clock, shared with the daemon. Deadlines of the daemon
    count from this time."""
    is_direct: bool = False
    """The process runs the direct program of ``Spawn.program``."""


class SpawnFailed(NamedTuple):
    """The program could not be started; ``step`` names the failed step."""

    tag: int
    step: str
    error: int
    """errno, or 0 where no system call failed."""
    message: str


class Exited(NamedTuple):
    """The leader has been reaped. Descendants may live on."""

    tag: int
    pid: int
    spawned_at: float
    at: float
    """The time of the end: when the warden woke to reap the leader, on the monotonic clock, shared
    with the daemon."""
    wait_status: int
    user_seconds: float
    """CPU time of the leader and of children that the leader waited for, since the last count began
    (see Measure)."""
    system_seconds: float
    max_rss_bytes: int
    """The resident size of the largest process; 0: unknown. See ``own_peak`` of the warden."""
    peak_tree_bytes: int = 0
    """The largest sum of RSS over the tree in a scan since the last count began; 0: no scan came in
    time."""
    processes: int = 1
    """The number of processes of the tree in all scans."""
    spawn_seconds: float = 0.0
    """The time that the spawn took before ``spawned_at``. The program's CPU time includes its first
    steps inside the spawn, up to the exec."""
    is_direct: bool = False
    """As in Spawned."""


class Measured(NamedTuple):
    """The figures of a tree. All but ``tree_bytes`` count since the last count began.

    All figures are 0 if the tree is unknown or has lost its leader.
    """

    tag: int
    tree_bytes: int
    """The resident size at the last scan, or the leader's present size if that is larger."""
    user_seconds: float
    """CPU time of the leader and of children that the leader waited for, as in Exited; in whole
    ticks of the kernel's clock, usually 10 ms."""
    system_seconds: float
    max_rss_bytes: int
    """The resident size of the largest process in a scan, at least the leader's present size."""
    peak_tree_bytes: int
    processes: int


class StartupDone(NamedTuple):
    """The start of a young program is over: the program waits rather than computes.

    Sent once at most; see ``startup_watch``.
    """

    tag: int


class Killed(NamedTuple):
    """A kill is over. ``killed``: the number of processes with KILL. ``survivors``: pids of
    processes that lived on when the warden gave up."""

    tag: int
    killed: int
    survivors: list[int]


class CellKilled(NamedTuple):
    """The processes of a cell are ended; as in Killed."""

    tag: int
    mark: int
    killed: int
    survivors: list[int]


class LimitReached(NamedTuple):
    """The warden ends a tree that is over a limit; Killed follows.

    For the CPU time of an adopted process see Adopt.
    """

    tag: int
    limit: str
    value: int


class MemoryShort(NamedTuple):
    """Less than the reserve is left, and no tree is the cause: shared memory (tmpfs, memfd) or a
    program outside execd is."""

    left_bytes: int
    shared_bytes: int


class Written(NamedTuple):
    """The trees that run user code, living or just ended, with what they have written so far.

    The lists are of equal length. See ``written_bytes`` of the warden.
    """

    sequence: int
    tags: list[int]
    write_bytes: list[int]
    """Bytes for a disk; 0 where the kernel does not count."""
    wchar_bytes: list[int]
    """Bytes of all calls of write(2), also to pipes and sockets."""
    cpu_ms: list[int]
    """CPU time, with that of ended children that their parents waited for."""


class Pong(NamedTuple):
    sequence: int
    is_quiet: bool
    """No user code lives and no request is under way: nothing happens below the warden until the
    next request."""


class Fault(NamedTuple):
    """An error of the warden itself: the last message before its end, or an error that the warden
    survived."""

    message: str


Request = (
    Spawn | Adopt | MarkActive | Signal | Kill | KillCell | Measure | Configure | ReadWritten | Ping
)
Reply = (
    Ready
    | Spawned
    | SpawnFailed
    | Exited
    | Measured
    | StartupDone
    | Killed
    | CellKilled
    | LimitReached
    | MemoryShort
    | Written
    | Pong
    | Fault
)
Message = Request | Reply
