"""The tree of a process: snapshots of /proc, and the attribution of each process to a job.

A job is a program started by the warden, with all descendants. No kernel object holds such a tree
here (gVisor has no usable cgroups), so membership follows from facts that a process cannot easily
shed, strongest first:

  1. identity: the leader, and every process once found to be a member (pid and start time, because
     the kernel reuses a pid);
  2. session or process group named after the leader (spawn gives each leader its own; the kernel
     does not reuse the number while a process has it);
  3. parenthood: children of members, to any depth;
  4. for orphans, children of the warden because the warden is init or subreaper: the mark of the
     tree (``tree_mark``), which each process inherits;
  5. the marker variable in the environment;
  6. a pipe of the job's output among the descriptors;
  7. elimination: if only one job existed when the orphan was born, the orphan belongs to that job.
     Jobs that run no user code do not count, and a mark of another tree rules elimination out.

A program that sheds all seven within the time between two scans, while further jobs run, belongs to
no job: it ends with the warden at the latest. The scan ignores processes outside the warden's
descent; with the warden as init there are none.

``Scan`` reads, a slice at a time, because a pass over a thousand processes takes longer than the
warden may neglect its socket. ``attribute`` reads only the evidence of orphans.

What can race. A pid may be reused between two reads: an identity is a pid with a start time.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from execd.proc import tree_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

STAT_BYTES, STATUS_BYTES = 1024, 8192
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
COMMAND_LINE_BYTES = 4096
ENVIRON_BYTES = 256 * 1024
# The first attempt may fail: in the middle of an exec the environment reads as empty.
ATTRIBUTION_ATTEMPTS = 2
# The minimum of a slice, so that a starved warden makes progress.
LEAST_READS = 4
# The cost is a listing of /proc and a few reads each. A process that forks and ends at once lives
# longer than a listing takes, so the first or second new listing contains the heir.
MAX_NEW_LISTINGS = 8
DEAD_STATES = frozenset("ZXx")


class Process(NamedTuple):
    """The figures of /proc/PID/stat, see proc_pid_stat(5)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    """Clock ticks since boot; together with the pid an identity."""
    rss_bytes: int = 0
    """Resident memory with shared pages in full; 0 for a dead process."""
    cpu_seconds: float = 0.0
    """User and system time of the process alone, in whole ticks."""
    user_seconds: float = 0.0
    """Includes the time of children that the process waited for, as in the rusage of its end; in
    whole ticks."""
    system_seconds: float = 0.0
    n_threads: int = 1
    virtual_bytes: int = 0
    """Size of the address space. A living process without an address space is about to end, and
    gives its memory back; in gVisor a process whose first thread has ended shows none either, nor
    does a process in the middle of an exec."""

    @property
    def gives_memory_back(self) -> bool:
        """Whether the process has no address space, and is not dead yet."""
        return not self.virtual_bytes and not self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended and only its parent's wait is missing.

        A process lives on in its threads when the first thread has ended.
        """
        return self.state in DEAD_STATES and self.n_threads <= 1


def ticks_since_boot(at: float) -> int:
    """Return the time ``at`` of the monotonic clock as ``Process.start`` counts time.

    The monotonic clock stands still while the machine is suspended, the clock since boot does not.
    """
    suspended_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return int((at + suspended_seconds) * TICKS_PER_SECOND)


def parse_stat(text: bytes) -> Process:
    """Parse a line of /proc/PID/stat. Raises ValueError.

    The command name may hold spaces and parentheses: the fields begin after the last parenthesis.
    """
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
        n_threads=max(int(fields[17]), 1),  # A zombie has no thread left in gVisor.
        virtual_bytes=int(fields[20]),
    )


def pids() -> list[int]:
    """Return the pids in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str, size: int) -> bytes | None:
    """Return the first ``size`` bytes of the file, or None if the file cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # ended meanwhile, or of a different user
    try:
        return os.read(fd, size)
    except OSError:
        return None  # ESRCH: the process ended between open and read
    finally:
        os.close(fd)


def read_process(pid: int) -> Process | None:
    """Return the process, or None if the process has ended."""
    text = _read(f"/proc/{pid}/stat", STAT_BYTES)
    process = parse_stat(text) if text else None
    # gVisor shows pid 0 for a process that is reaped while its file is open. Such a process would
    # pass for a child of the init, whose own parent is 0.
    if process is None or process.pid != pid:
        return None
    if (
        process.state in DEAD_STATES
        and not process.is_dead
        and (folder := _folder_of_another_thread(pid))
    ):
        thread = _read(f"{folder}/stat", STAT_BYTES)
        if thread:
            shown = parse_stat(thread)
            return process._replace(
                state=shown.state, rss_bytes=shown.rss_bytes, virtual_bytes=shown.virtual_bytes
            )
    return process


def _folder_of_another_thread(pid: int) -> str | None:
    """Return the /proc folder of a thread other than the first, or None.

    A process without its first thread shows state, memory, environment and descriptors only there;
    in gVisor not even there.
    """
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


def read_thread_states(pid: int) -> set[str]:
    """Return the states of all threads of the process; empty if the process has ended."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    texts = (_read(f"/proc/{pid}/task/{name}/stat", STAT_BYTES) for name in names)
    return {parse_stat(text).state for text in texts if text}


def read_turns(pid: int) -> int:
    """Return a figure that grows while the process runs: the context switches of the first thread,
    the reads and writes with their bytes, and the ticks of CPU time.

    gVisor 20240729 does not count switches, and 20260905 counts those of sched_yield(2) alone.
    There a process that has neither read nor written, and has computed for less than a tick, seems
    not to have run.
    """
    text = b"".join(_read(f"/proc/{pid}/{name}", STATUS_BYTES) or b"" for name in ("status", "io"))
    process = read_process(pid)
    ticks = round(process.cpu_seconds * TICKS_PER_SECOND) if process else 0
    return ticks + sum(
        int(line.split()[1])
        for line in text.splitlines()
        if b"ctxt_switches:" in line or b"char:" in line
    )


def read_command_line(pid: int) -> bytes | None:
    """Return the arguments with a NUL after each, or None if there is no such process.

    Between vfork and exec a process shows the arguments of its parent.
    """
    return _read(f"/proc/{pid}/cmdline", COMMAND_LINE_BYTES)


def read_environment(pid: int) -> frozenset[bytes]:
    """Return the environment entries at the start of the process; empty if they cannot be read."""
    text = _read(f"/proc/{pid}/environ", ENVIRON_BYTES)
    if text is None and (folder := _folder_of_another_thread(pid)):
        text = _read(f"{folder}/environ", ENVIRON_BYTES)
    return frozenset(filter(None, text.split(b"\0"))) if text else frozenset()


class Scan:
    """A pass over /proc, not a snapshot: a process forked behind the pass is in the next scan.

    A process that is listed and ends before the read may leave a child that is not listed, and the
    child may do the same in the next pass. With ``heirs`` the scan lists again after such an end,
    and reads the new processes.

    ``busy_seconds`` is CPU time of this thread: on a starved machine the wall time says nothing
    about the cost.
    """

    def __init__(self, *, heirs: bool = False) -> None:
        self.processes: dict[int, Process] = {}
        self.began = time.monotonic()
        self.busy_seconds = 0.0
        found = pids()
        self.count: Final = len(found)
        self.lost: set[int] = set()
        """Processes of the last listing that ended before the read. Their children, if any, are not
        in this scan."""
        self._remaining = iter(found)
        self._n_new_listings = MAX_NEW_LISTINGS if heirs else 0

    def advance(self, budget_seconds: float) -> bool:
        """Read for about ``budget_seconds``; return whether the pass is complete.

        Reads at least LEAST_READS processes.
        """
        begin, begin_busy = time.monotonic(), time.thread_time()
        n_read, is_complete = 0, False
        while not is_complete and (
            n_read < LEAST_READS or time.monotonic() - begin <= budget_seconds
        ):
            try:
                pid = next(self._remaining)
            except StopIteration:
                is_complete = not self._list_again()
                continue
            n_read += 1
            process = read_process(pid)
            if process is not None:
                self.processes[pid] = process
            if process is None or (process.is_dead and process.parent == os.getpid()):
                self.lost.add(pid)
        self.busy_seconds += time.thread_time() - begin_busy
        return is_complete

    def _list_again(self) -> bool:
        """List heirs of processes that ended before the read; return whether there is more to
        read."""
        if not self.lost or self._n_new_listings == 0:
            return False
        self._n_new_listings -= 1
        self.lost.clear()
        found = [pid for pid in pids() if pid not in self.processes]
        self._remaining = iter(found)
        return bool(found)

    @property
    def n_tasks(self) -> int:
        """Threads of all processes found so far."""
        return sum(process.n_threads for process in self.processes.values())


class TreeOwner(Protocol):
    """The part of a job that attribution needs, and the members that attribution stores."""

    pid: int
    start: int
    mark: int
    """See ``tree_mark``; 0: the tree has none."""
    marker: bytes
    pipes: frozenset[str]
    members: dict[int, int]
    """pid -> start time of every known process of the tree."""
    is_idle: bool
    """The job runs no user code (yet)."""


def by_mark(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """Return the job with the process's mark."""
    mark = tree_mark.of_process(pid)
    return next((job for job in jobs if tree_mark.is_of_tree(mark, job.mark)), None)


def by_marker(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """Return the job with its marker among the process's environment entries."""
    entries = read_environment(pid)
    return next((job for job in jobs if job.marker in entries), None)


def by_pipe(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """Return the job with a pipe among the process's descriptors."""
    held = _descriptors(f"/proc/{pid}")
    if not held and (folder := _folder_of_another_thread(pid)):
        held = _descriptors(folder)
    return next((job for job in jobs if job.pipes & held), None)


def _descriptors(folder: str) -> set[str]:
    """Return the targets of the descriptors; empty, and no evidence, for a process of a different
    user or an ended process."""
    held: set[str] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{folder}/fd"):
            # The process may have closed this descriptor meanwhile, and holds the others.
            with contextlib.suppress(FileNotFoundError):
                held.add(os.readlink(f"{folder}/fd/{name}"))
    return held


def by_elimination(pid: int, jobs: Collection[TreeOwner]) -> TreeOwner | None:
    """Return the only job that runs user code, if there is exactly one, unless the process has the
    mark of another tree."""
    active = [job for job in jobs if not job.is_idle]
    if len(active) != 1 or (active[0].mark and tree_mark.of_process(pid)):
        return None
    return active[0]


DIRECT_EVIDENCE = (by_mark, by_marker, by_pipe)
EVIDENCE = (*DIRECT_EVIDENCE, by_elimination)


def attribute(
    processes: Mapping[int, Process],
    jobs: Collection[TreeOwner],
    warden_pid: int,
    unattributed: dict[tuple[int, int], int],
    evidence: Iterable[Callable[[int, Collection[TreeOwner]], TreeOwner | None]] = EVIDENCE,
) -> None:
    """Update ``job.members`` of every job from the snapshot.

    ``unattributed`` counts, by pid and start, how often all evidence failed for an orphan, so that
    the scan does not read the environment of the orphan each time.
    """
    # The warden is in no tree, whatever the snapshot says. As a member the warden would die of the
    # next kill, and the job would get every orphan until then.
    processes = {pid: process for pid, process in processes.items() if pid != warden_pid}
    children = _by_parent(processes.values())
    owner = _owners_by_leader(processes, jobs)
    _attribute_descendants(owner, children, list(owner))

    orphans = [
        child
        for child in children.get(warden_pid, ())
        if child.pid not in owner and not child.is_dead
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

    assert warden_pid not in owner, "the warden is in no tree"
    for pid, job in owner.items():
        job.members[pid] = processes[pid].start


def descendants(processes: Mapping[int, Process], root: int) -> list[Process]:
    """Return all processes below ``root``, by the chain of parents."""
    children = _by_parent(processes.values())
    found: list[Process] = []
    frontier = list(children.get(root, ()))
    while frontier:
        process = frontier.pop()
        found.append(process)
        frontier.extend(children.get(process.pid, ()))
    return found


def _by_parent(processes: Iterable[Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    return children


def _owners_by_leader(
    processes: Mapping[int, Process], jobs: Collection[TreeOwner]
) -> dict[int, TreeOwner]:
    """Reduce ``job.members`` to living members; return the owner of each member and of each process
    in the session or group of a leader."""
    owner: dict[int, TreeOwner] = {}
    for job in jobs:
        job.members = {
            pid: start
            for pid, start in job.members.items()
            if pid in processes and processes[pid].start == start
        }
        owner.update(dict.fromkeys(job.members, job))
    by_leader = {job.pid: job for job in jobs}
    for process in processes.values():
        named = by_leader.get(process.session) or by_leader.get(process.group)
        if (
            process.pid not in owner
            and named is not None
            and not _is_number_reused(processes, named)
            and process.start >= named.start
        ):
            owner[process.pid] = named
    return owner


def _is_number_reused(processes: Mapping[int, Process], job: TreeOwner) -> bool:
    """Return whether the leader's pid belongs to a new process.

    Then a session of that number may be the new process's session.
    """
    process = processes.get(job.pid)
    return process is not None and process.start != job.start


def _attribute_descendants(
    owner: dict[int, TreeOwner], children: Mapping[int, list[Process]], frontier: list[int]
) -> None:
    """Give the descendants of the processes in ``frontier`` to the owner of their parent."""
    while frontier:
        pid = frontier.pop()
        for child in children.get(pid, ()):
            if child.pid not in owner:
                owner[child.pid] = owner[pid]
                frontier.append(child.pid)
