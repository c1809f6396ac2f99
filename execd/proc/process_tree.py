"""Whose process is this: snapshots of /proc, and the attribution of every process to the job it
came from.

A job is one program the warden started, with all that descends from it. No kernel object holds such
a tree here (no usable cgroups in gVisor), so membership is worked out from what a process cannot
easily shed, strongest first:

  1. identity: the leader, and every process once found to be a member (pid and start time: a pid
     alone may be reused);
  2. session or process group named after the leader (spawn gives each one its own; the number is
     not reused while used);
  3. parenthood: children of members, to any depth;
  4. for orphans, which are the warden's children since it is init or subreaper: the marker variable
     in their environment;
  5. a pipe of the job's output among their descriptors;
  6. elimination: if only one job was there when the orphan was born, it is that one's. Those that
     run no user code do not count.

A program that sheds all six within one scan interval, while others run beside it, is nobody's: it
ends with the warden, at the latest. A process not descended from the warden is never looked at:
with the warden as init there is none.

``Scan`` does the reading, a slice at a time, because a pass over a thousand processes takes longer
than the warden may be deaf. ``attribute`` reads nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

STAT_BYTES, STATUS_BYTES = 1024, 8192
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
COMMAND_LINE_BYTES = 4096
ENVIRON_BYTES = 256 * 1024
# One look may meet it in the middle of an exec, when its environment reads as empty.
ATTRIBUTION_ATTEMPTS = 2
# A slice of a starved warden makes progress all the same.
LEAST_READS = 4
# One listing of /proc and a few reads each. A process that forks and ends at once lives longer than
# a listing takes, so the first or second new listing meets its heir.
MAX_NEW_LISTINGS = 8
DEAD_STATES = frozenset("ZXx")


class Process(NamedTuple):
    """What /proc/PID/stat says; see proc_pid_stat(5)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    """Clock ticks since boot; with the pid, an identity."""
    rss_bytes: int = 0
    """Resident memory, pages shared with others counted in full; 0 for the dead."""
    cpu_seconds: float = 0.0
    """User and system time of its own, whole ticks."""
    user_seconds: float = 0.0
    """With that of the children it waited for, whole ticks; as in the rusage of its end."""
    system_seconds: float = 0.0
    n_threads: int = 1

    @property
    def dead(self) -> bool:
        """Ended, and only not waited for yet. A process whose first thread alone has ended lives on
        in the others."""
        return self.state in DEAD_STATES and self.n_threads <= 1


def parse_stat(text: bytes) -> Process:
    """Raises ValueError. The command name may hold spaces and parentheses: the fields begin after
    the last one."""
    pid, _, rest = text.partition(b" (")
    _, closed, tail = rest.rpartition(b") ")
    fields = tail.split()
    if not closed or len(fields) < 22:
        raise ValueError("not a stat line")
    return Process(
        pid=int(pid),
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        user_seconds=(int(fields[11]) + int(fields[13])) / TICKS_PER_SECOND,
        system_seconds=(int(fields[12]) + int(fields[14])) / TICKS_PER_SECOND,
        n_threads=max(int(fields[17]), 1),  # a zombie has none left in gVisor
    )


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str, size: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # gone meanwhile, or another user's
    try:
        return os.read(fd, size)
    except OSError:
        return None  # ESRCH: it ended between open and read
    finally:
        os.close(fd)


def read_process(pid: int) -> Process | None:
    """``None`` if there is no such process (any more)."""
    text = _read(f"/proc/{pid}/stat", STAT_BYTES)
    process = parse_stat(text) if text else None
    # gVisor says pid 0 of one that is reaped while its file is open; the init, whose parent is 0,
    # would pass for its child.
    if process is None or process.pid != pid:
        return None
    if (
        process.state in DEAD_STATES
        and not process.dead
        and (folder := _folder_of_another_thread(pid))
    ):
        thread = _read(f"{folder}/stat", STAT_BYTES)
        if thread:
            return process._replace(
                state=parse_stat(thread).state, rss_bytes=parse_stat(thread).rss_bytes
            )
    return process


def _folder_of_another_thread(pid: int) -> str | None:
    """Under ``/proc``: of a thread that is not the first. A process whose first thread has ended
    shows its state, memory, environment and descriptors only there, and in gVisor nowhere."""
    try:
        return next(
            (
                f"/proc/{pid}/task/{name}"
                for name in os.listdir(f"/proc/{pid}/task")
                if name != str(pid)
            ),
            None,
        )
    except OSError:
        return None


def read_turns(pid: int) -> int:
    """How often the process' first thread has been switched from, by choice or not; 0 where the
    kernel does not say (gVisor)."""
    text = _read(f"/proc/{pid}/status", STATUS_BYTES) or b""
    return sum(int(line.split()[1]) for line in text.splitlines() if b"ctxt_switches:" in line)


def read_command_line(pid: int) -> bytes | None:
    """Arguments with a NUL after each; ``None`` if there is no such process. A process after vfork
    shows its parent's."""
    return _read(f"/proc/{pid}/cmdline", COMMAND_LINE_BYTES)


def read_environment(pid: int) -> frozenset[bytes]:
    """The entries the process was started with; none if it cannot be read."""
    text = _read(f"/proc/{pid}/environ", ENVIRON_BYTES)
    if text is None and (folder := _folder_of_another_thread(pid)):
        text = _read(f"{folder}/environ", ENVIRON_BYTES)
    return frozenset(filter(None, text.split(b"\0"))) if text else frozenset()


class Scan:
    """One pass over /proc. Not a point in time: what is forked behind its back is in the next one.

    A process that is listed and ends before it is read may leave a child that is not listed, and
    this child may do the same to the next pass. A scan that looks for ``heirs`` lists again after
    such an end, and reads what is new.

    Its cost, ``busy_seconds``, is CPU time of this thread: on a starved machine wall time says
    nothing of it.
    """

    def __init__(self, *, heirs: bool = False) -> None:
        self.processes: dict[int, Process] = {}
        self.began = time.monotonic()
        self.busy_seconds = 0.0
        found = pids()
        self.count: Final = len(found)
        self.has_lost_some = False
        """Processes of the last listing ended before they were read. Their children, if any, are
        not in this scan."""
        self._remaining = map(read_process, found)
        self._n_new_listings = MAX_NEW_LISTINGS if heirs else 0

    def advance(self, budget_seconds: float) -> bool:
        """Read on for about so long, and at the least LEAST_READS processes; whether the pass is
        complete."""
        begin, begin_busy = time.monotonic(), time.thread_time()
        n_read, is_complete = 0, False
        while not is_complete and (
            n_read < LEAST_READS or time.monotonic() - begin <= budget_seconds
        ):
            try:
                process = next(self._remaining)
            except StopIteration:
                is_complete = not self._list_again()
                continue
            n_read += 1
            if process is not None:
                self.processes[process.pid] = process
            if process is None or (process.dead and process.parent == os.getpid()):
                self.has_lost_some = True
        self.busy_seconds += time.thread_time() - begin_busy
        return is_complete

    def _list_again(self) -> bool:
        """Look for heirs of processes that the last listing showed, and nobody read. Whether there
        is more to read."""
        if not self.has_lost_some or self._n_new_listings == 0:
            return False
        self._n_new_listings -= 1
        self.has_lost_some = False
        found = [pid for pid in pids() if pid not in self.processes]
        self._remaining = map(read_process, found)
        return bool(found)

    @property
    def n_tasks(self) -> int:
        """Threads of all processes found so far."""
        return sum(process.n_threads for process in self.processes.values())


class TreeOwner(Protocol):
    """What attribution needs to know of a job, and the memory it keeps there."""

    pid: int
    start: int
    marker: bytes
    pipes: frozenset[str]
    members: dict[int, int]
    """pid -> start time of every process known to be in the tree."""
    rests: bool
    """It runs no user code (yet)."""


def by_marker(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """The job whose marker is an entry of the environment the process was started with."""
    entries = read_environment(pid)
    return next((job for job in jobs if job.marker in entries), None)


def by_pipe(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """The job one of whose pipes is among the process' descriptors."""
    held = _descriptors(f"/proc/{pid}")
    if not held and (folder := _folder_of_another_thread(pid)):
        held = _descriptors(folder)
    return next((job for job in jobs if job.pipes & held), None)


def _descriptors(folder: str) -> set[str]:
    """Their targets. None where the process is another user's, or gone: no evidence either way."""
    try:
        return {os.readlink(f"{folder}/fd/{name}") for name in os.listdir(f"{folder}/fd")}
    except OSError:
        return set()


def by_elimination(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    active = [job for job in jobs if not job.rests]
    return active[0] if len(active) == 1 else None


EVIDENCE_OF_ITS_OWN = (by_marker, by_pipe)
EVIDENCE = (*EVIDENCE_OF_ITS_OWN, by_elimination)


def attribute(
    processes: Mapping[int, Process],
    jobs: Collection[TreeOwner],
    warden_pid: int,
    unattributed: dict[tuple[int, int], int],
    evidence: Iterable[Callable[[int, Collection[TreeOwner]], TreeOwner | None]] = EVIDENCE,
) -> None:
    """Bring ``job.members`` of every job up to date with the snapshot.

    ``unattributed`` counts, by pid and start, how often all evidence failed for an orphan, so that
    its environment is not read at each scan.
    """
    # Whatever the snapshot says, the warden is in no tree: it would die of the next kill, and adopt
    # every orphan until then.
    processes = {pid: process for pid, process in processes.items() if pid != warden_pid}
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)

    owner: dict[int, TreeOwner] = {}
    by_leader = {job.pid: job for job in jobs}
    for job in jobs:
        job.members = {
            pid: start for pid, start in job.members.items() if _is_same(processes.get(pid), start)
        }
        owner.update(dict.fromkeys(job.members, job))
    for process in processes.values():
        if process.pid in owner:
            continue
        named = by_leader.get(process.session) or by_leader.get(process.group)
        if (
            named is not None
            and not _is_number_reused(processes, named)
            and process.start >= named.start
        ):
            owner[process.pid] = named
    _attribute_descendants(owner, children, list(owner))

    orphans = [
        child for child in children.get(warden_pid, ()) if child.pid not in owner and not child.dead
    ]
    for orphan in orphans:
        identity = (orphan.pid, orphan.start)
        if unattributed.get(identity, 0) >= ATTRIBUTION_ATTEMPTS:
            continue
        candidates = [job for job in jobs if job.start <= orphan.start]
        found = next(filter(None, (test(orphan.pid, candidates) for test in evidence)), None)
        if found is None:
            unattributed[identity] = unattributed.get(identity, 0) + 1
        else:
            owner[orphan.pid] = found
            _attribute_descendants(owner, children, [orphan.pid])
    for gone in unattributed.keys() - {(orphan.pid, orphan.start) for orphan in orphans}:
        del unattributed[gone]

    for pid, job in owner.items():
        job.members[pid] = processes[pid].start


def descendants(processes: Mapping[int, Process], root: int) -> list[Process]:
    """All below ``root``, by the chain of parents."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    frontier = list(children.get(root, ()))
    while frontier:
        process = frontier.pop()
        found.append(process)
        frontier.extend(children.get(process.pid, ()))
    return found


def _is_same(process: Process | None, start: int) -> bool:
    return process is not None and process.start == start


def _is_number_reused(processes: Mapping[int, Process], job: TreeOwner) -> bool:
    """The leader's pid now belongs to another process, so a session of that number may be that
    one's."""
    process = processes.get(job.pid)
    return process is not None and process.start != job.start


def _attribute_descendants(
    owner: dict[int, TreeOwner], children: Mapping[int, list[Process]], frontier: list[int]
) -> None:
    while frontier:
        pid = frontier.pop()
        for child in children.get(pid, ()):
            if child.pid not in owner:
                owner[child.pid] = owner[pid]
                frontier.append(child.pid)
