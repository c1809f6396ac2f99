"""The warden's protocol: typed messages and their bytes. Pure; both processes import it; only the
standard library.

One message is one SEQPACKET datagram: a header (form, number of descriptors), then a JSON array of
the type's name and its fields. A datagram ends at about 213 kB, so a message over 64 KiB travels in
a memfd: its datagram is the header and the message's tag, and the memfd is the first descriptor.
The descriptor count is stated because gVisor drops descriptors in silence when the receiver has no
room for them: a mismatch fails that request instead of running it with the wrong files.

Neither side trusts the other's bytes: ``decode`` accepts a valid message or raises ProtocolError,
nothing else.
"""

import json
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

INLINE, IN_MEMFD = 0, 1
HEADER_BYTES = 2
MAX_INLINE_BYTES = 64 * 1024
# argv and environment together cannot pass a quarter of the stack limit, 2 MiB, at exec; JSON may
# double that.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_DESCRIPTORS = 8
NULL_DEVICE = -1

Scope = Literal["leader", "group", "session", "tree"]


class ProtocolError(Exception):
    """The peer sent what the protocol does not know."""


class MemfdLost(ProtocolError):
    """A long message came without its memfd: there was no descriptor left for it. The channel is
    sound."""

    def __init__(self, tag: int) -> None:
        super().__init__("a long message was lost on the way")
        self.tag = tag


# Daemon to warden. `tag` is the daemon's number for the process it asks for.


class Spawn(NamedTuple):
    """Start a program. ``stdio`` says what its descriptors 0, 1, 2 … are: an index of a passed one,
    or NULL_DEVICE."""

    tag: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdio: list[int]
    terminal: bool
    limits: list[list[int]]
    """[resource, soft, hard] of setrlimit(2)."""
    processes: int
    """Processes the whole tree may have; 0: any number."""
    marker: str
    """An entry of ``env``, NAME=value, that tells the tree's processes from others."""
    uid: int | None
    gid: int | None
    groups: list[int] | None
    memory_bytes: int = 0
    """Memory the whole tree may have; 0: any amount. See ``memory``."""
    rests: bool = False
    """It runs no user code, so what nobody claims is not its."""
    announce: bool = True
    """Say Spawned at once; else only if it lives for a moment."""


class Adopt(NamedTuple):
    """Take a process that is the warden's child already for a program; answered by Spawned or
    SpawnFailed. See ``adoption``."""

    tag: int
    marker: str
    """As in Spawn: what it gives its children in their environment."""
    pipes: list[int]
    """Inode numbers of the pipes that are its output."""
    processes: int
    memory_bytes: int
    cpu_seconds: int
    """CPU time of each process, of itself since the last count began (see Measure); 0: any amount.
    Over it, others get KILL; it is left to the daemon, which is told."""
    rests: bool
    """As in Spawn, until Wake."""


class Wake(NamedTuple):
    """It begins to run user code."""

    tag: int


class Signal(NamedTuple):
    """Signal a program; ``scope`` is a name of Scope.

    Leader and group get it at once, and only until the leader has ended. Session (the leader's) and
    tree get it after a scan.
    """

    tag: int
    number: int
    scope: str


class Kill(NamedTuple):
    """End the whole tree: TERM, the grace, KILL; answered by Killed."""

    tag: int
    grace_seconds: float
    unless_ended_before: float = 0.0
    """A deadline on the monotonic clock. Where the leader ended before the deadline (see Exited)
    nothing is ended: Exited was on its way when the daemon asked."""


class Measure(NamedTuple):
    """Say what a tree uses; answered by Measured."""

    tag: int
    anew: bool
    """And begin a new count. The first begins with the leader."""


class Configure(NamedTuple):
    """What the warden keeps free for the pod to live on; answer to Ready, before the first Spawn.
    See ``memory``."""

    reserve_bytes: int
    """0: nothing."""
    pod_bytes: int
    """The pod's size; 0: all that the kernel has, or the cgroup may have."""
    cgroup: str = ""
    """Directory of the memory cgroup whose usage counts; empty: the machine's does. A path,
    resolved by the warden."""
    only_growth: bool = False
    """Others fill this memory too: a tree ends only for what has grown since its start."""


class Ping(NamedTuple):
    sequence: int


# Warden to daemon.


class Ready(NamedTuple):
    """``pid`` as the warden sees itself: 1 if it is the init of a namespace."""

    pid: int
    root_capabilities: list[str]
    """What a command that runs as root gets (own_process.root_capabilities)."""


class Spawned(NamedTuple):
    """It runs. Left out when it has ended so soon that Exited says it as well."""

    tag: int
    pid: int
    at: float
    """When it was spawned, on the monotonic clock, which is the daemon's as well: its deadlines
    count from then."""


class SpawnFailed(NamedTuple):
    tag: int
    step: str
    error: int
    """errno, or 0 where no system call failed."""
    message: str


class Exited(NamedTuple):
    """The leader has been reaped. Its descendants may live on."""

    tag: int
    pid: int
    spawned_at: float
    at: float
    """When it ended: when the warden woke to reap it, on the monotonic clock, which is the daemon's
    as well."""
    wait_status: int
    user_seconds: float
    """Of the leader and the children it waited for, since the last count began (see Measure)."""
    system_seconds: float
    max_rss_bytes: int
    """Of the largest process. At least the warden's own peak, about 13 MB: a vforked child inherits
    it at exec."""
    peak_tree_bytes: int = 0
    """Largest sum of RSS over the tree that a scan found since then; 0: none came in time."""
    processes: int = 1
    """How many processes of the tree scans have found."""


class Measured(NamedTuple):
    """All but ``tree_bytes`` since the last count began. Zeros of a tree that is not there, or has
    lost its leader."""

    tag: int
    tree_bytes: int
    """The resident size at the last scan, or the leader's now if that is more."""
    user_seconds: float
    """Of the leader and the children it waited for, as in Exited; whole ticks of the kernel's
    clock, 10 ms as a rule."""
    system_seconds: float
    max_rss_bytes: int
    """Of the largest process that a scan found, at the least the leader's now."""
    peak_tree_bytes: int
    processes: int


class AtRest(NamedTuple):
    """A program that began a moment ago waits rather than computes. Said once at the most; see
    ``rest``."""

    tag: int


class Killed(NamedTuple):
    """A kill is over: ``killed`` processes got KILL, ``survivors`` were still there when it gave
    up."""

    tag: int
    killed: int
    survivors: list[int]


class LimitReached(NamedTuple):
    """The warden's watchdog is ending a tree; Killed follows. CPU time of one that was adopted: see
    Adopt."""

    tag: int
    limit: str
    value: int


class MemoryShort(NamedTuple):
    """Less than the reserve is left, and no tree is the reason: shared memory (tmpfs, memfd) or
    something outside is."""

    left_bytes: int
    shared_bytes: int


class Pong(NamedTuple):
    sequence: int


class Fault(NamedTuple):
    """The warden's own error, on its way out or in spite of which it goes on."""

    message: str


Request = Spawn | Adopt | Wake | Signal | Kill | Measure | Configure | Ping
Reply = (
    Ready
    | Spawned
    | SpawnFailed
    | Exited
    | Measured
    | AtRest
    | Killed
    | LimitReached
    | MemoryShort
    | Pong
    | Fault
)
Message = Request | Reply


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**64


def _is_number(value: object) -> bool:
    # JSON has no infinity, but 1e999 reads as one.
    return _is_int(value) or (type(value) is float and math.isfinite(value))


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_is_ints = _is_list_of(_is_int)


def _is_environment(value: object) -> bool:
    return type(value) is dict and all(map(_is_str, value.values()))


_CHECKS: dict[object, Callable[[object], bool]] = {
    int: _is_int,
    float: _is_number,
    bool: lambda value: type(value) is bool,
    str: _is_str,
    list[str]: _is_list_of(_is_str),
    list[int]: _is_ints,
    list[list[int]]: _is_list_of(lambda value: _is_ints(value) and len(value) == 3),  # type: ignore[arg-type]  # a list by then
    dict[str, str]: _is_environment,
    int | None: _or_none(_is_int),
    list[int] | None: _or_none(_is_ints),
}

_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in (*get_args(Request), *get_args(Reply))}
_FIELD_CHECKS = {
    name: [_CHECKS[cls.__annotations__[field]] for field in cls._fields]
    for name, cls in _TYPES.items()
}


def _refuse(constant: str) -> float:
    raise ValueError(constant)


# Made once: json.dumps and json.loads make new ones at each call that is not quite the default.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder(parse_constant=_refuse).decode


def encode(message: Message) -> bytes:
    """The message's payload, without header."""
    return _to_json([type(message).__name__, *message]).encode()


def header(*, in_memfd: bool, n_descriptors: int) -> bytes:
    return bytes((IN_MEMFD if in_memfd else INLINE, n_descriptors))


def encode_tag(message: Message) -> bytes:
    """What to answer to, if the memfd with the message is lost; 0: nothing."""
    return b"%d" % getattr(message, "tag", 0)


def decode_tag(text: bytes) -> int:
    """Raises ProtocolError."""
    if not text.isdigit() or len(text) > 20:
        raise ProtocolError("not a tag")
    return int(text)


def split(datagram: bytes) -> tuple[bool, int, bytes]:
    """Whether the payload is in a memfd, how many descriptors came along, the payload if it is here
    (else the tag)."""
    if len(datagram) < HEADER_BYTES:
        raise ProtocolError("a datagram without a header")
    form, n_descriptors = datagram[0], datagram[1]
    payload = datagram[HEADER_BYTES:]
    if (
        form not in (INLINE, IN_MEMFD)
        or n_descriptors > MAX_DESCRIPTORS
        or (form == IN_MEMFD and not n_descriptors)
    ):
        raise ProtocolError("a malformed header")
    return form == IN_MEMFD, n_descriptors, payload


def decode(payload: bytes) -> Message:
    """Raises ProtocolError for everything that ``encode`` does not make."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolError("a message over the size limit")
    try:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors; deep nesting is a RecursionError.
        parts = _from_json(payload.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if type(parts) is not list or not parts or type(parts[0]) is not str or parts[0] not in _TYPES:
        raise ProtocolError("an unknown message")
    name, *fields = parts
    checks = _FIELD_CHECKS[name]
    if len(fields) != len(checks) or not all(
        check(field) for check, field in zip(checks, fields, strict=True)
    ):
        raise ProtocolError(f"{name}: malformed fields")
    message: Message = _TYPES[name](*fields)
    return message
