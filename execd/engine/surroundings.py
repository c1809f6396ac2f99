"""What a reset compares beside files: processes, and what user code leaves in the kernel.

``look`` runs before any user code. After user code has ended, ``wait_gone`` finds the processes
that live, and ``compare`` finds the traces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions.environment import MARKER
from execd.engine.reset_outcome import ResetDifference
from execd.proc import kernel_keys, kernel_traces, process_tree, self_process
from execd.proc.spawn import KEEP_IDENTITY, act_as

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from execd.proc.client import WardenClient
    from execd.proc.kernel_traces import KernelTraces
    from execd.proc.spawn import Identity

SCAN_SECONDS = 2.0
# The kernel may take a moment to end the processes of a namespace, and the warden of a dead daemon
# to notice. A warden without namespaces ends its processes first, so it may end by itself.
GONE_SECONDS, PATIENT_SECONDS = 5.0, 2.0
PAUSE_SECONDS = 0.01

ProcessIdentity = tuple[int, int]
"""Pid and start time of a process."""
NOBODY: ProcessIdentity = (0, 0)


class Surroundings(NamedTuple):
    """Everything as it was before any user code ran."""

    traces: KernelTraces
    processes: frozenset[ProcessIdentity]
    """The descendants of the daemon."""
    keys: frozenset[str] = frozenset()
    """See ``kernel_keys``."""
    may_have_strays: bool = False
    """See ``TracesRecorded``."""

    def wait_gone(self, former_warden: ProcessIdentity, *, is_in_namespace: bool) -> list[int]:
        """Return the processes of user code that still live after GONE_SECONDS. ``former_warden``:
        the warden of a dead daemon, which is killed. Blocking.

        Where no namespace has ended the processes, an empty answer is that of a scan that has read
        all of them, or of as many scans as end a sweep. Raises TimeoutError: there was none.
        """
        began, n_quiet = time.monotonic(), 0
        while True:
            found, is_whole = self_process.look(SCAN_SECONDS)
            living = [
                process.pid
                for process in found
                if not process.is_dead and (process.pid, process.start) not in self.processes
            ]
            waited_seconds = time.monotonic() - began
            if _lives(former_warden):
                living.append(former_warden[0])
                if waited_seconds > PATIENT_SECONDS or is_in_namespace:
                    with contextlib.suppress(OSError):
                        os.kill(former_warden[0], signal.SIGKILL)
            if not is_in_namespace:
                living += kernel_traces.orphans_of_daemons(MARKER, SCAN_SECONDS)
            n_quiet = 0 if living else n_quiet + 1
            if n_quiet and (is_in_namespace or is_whole or n_quiet == self_process.QUIET_SCANS):
                return living
            if waited_seconds > GONE_SECONDS:
                if not living:
                    raise TimeoutError("not all processes could be read")
                return living
            time.sleep(PAUSE_SECONDS)

    def compare_keys(self, identity: Identity) -> Iterator[ResetDifference]:
        """Yield what differs in the user's keyrings, and what cannot be read. Blocking."""
        now = _read_keys(identity)
        unreadable = {words for words in now if kernel_keys.UNREADABLE in words}
        for words in sorted((now ^ self.keys) | unreadable):
            ended = "" if words in unreadable else f": {_since(words in now)}"
            yield ResetDifference(kind="object", message=words + ended)

    def compare(
        self, identity: Identity, living: Collection[int], warden: WardenClient
    ) -> Iterator[ResetDifference]:
        """Yield what differs. ``living``: the processes of user code that live. ``warden``: the new
        one. Blocking."""
        before, now = self.traces, kernel_traces.read()
        user_uid = os.geteuid() if identity.uid is None else identity.uid
        for socket in kernel_traces.without_foreign(
            now.sockets - before.sockets, user_uid=user_uid, living=living
        ):
            where = socket.address or "an abstract address"
            yield ResetDifference(
                kind="socket",
                message=f"{socket.protocol} {where}: somebody listens",
                path=socket.address if socket.address.startswith("/") else None,
                port=socket.port or None,
            )
        for line in sorted(now.mounts ^ before.mounts):
            message = _since(line in now.mounts)
            yield ResetDifference(kind="mount", message=message, path=line.split()[4])
        if not warden.has_namespace:
            for name in sorted(now.objects ^ before.objects):
                message = f"{name}: {_since(name in now.objects)}"
                yield ResetDifference(kind="object", message=message)
            queues: frozenset[str] | None = frozenset()
            may_raise = "SYS_RESOURCE" in warden.root_capabilities  # setrlimit(2)
            if not now.has_queues and (may_raise or kernel_traces.may_make_queues(warden.pid)):
                queues = kernel_traces.list_hidden_queues()
            if queues is None:
                message = "POSIX queues cannot be listed: mount /dev/mqueue into the container"
                yield ResetDifference(kind="object", message=message)
            for name in sorted(queues or ()):
                yield ResetDifference(kind="object", message=f"POSIX queue /{name}")
        if warden.started is None or not warden.started.has_own_shm:
            for name in sorted(now.shm ^ before.shm):
                path, message = f"{kernel_traces.SHM}/{name}", _since(name in now.shm)
                yield ResetDifference(kind="shm", message=message, path=path)


def look(identity: Identity) -> Surroundings:
    """``identity``: of user code. Blocking."""
    found = self_process.descendants(SCAN_SECONDS)
    processes = frozenset((process.pid, process.start) for process in found)
    return Surroundings(kernel_traces.read(), processes, _read_keys(identity))


def _read_keys(identity: Identity) -> frozenset[str]:
    import hashlib  # noqa: F401  # now: the user may not be able to read the modules of Python

    def read() -> frozenset[str]:
        if identity != KEEP_IDENTITY:
            act_as(identity)
        return kernel_keys.read_keys(os.geteuid())

    with ThreadPoolExecutor(1) as thread:  # a thread that ends: its ids change
        return thread.submit(read).result()


def identity(pid: int | None) -> ProcessIdentity:
    """Return NOBODY if there is no such process."""
    process = None if pid is None else process_tree.read_process(pid)
    return NOBODY if process is None else (process.pid, process.start)


def count_below(pid: int | None) -> int:
    """Return the number of living descendants of the process. Blocking."""
    scan = process_tree.Scan()
    scan.advance(SCAN_SECONDS)
    found = [] if pid is None else process_tree.descendants(scan.processes, pid)
    return sum(not process.is_dead for process in found)


def _lives(of_process: ProcessIdentity) -> bool:
    process = process_tree.read_process(of_process[0]) if of_process[0] else None
    return process is not None and process.start == of_process[1] and not process.is_dead


def _since(is_new: bool) -> str:
    return "new since the start of execd" if is_new else "gone since the start of execd"
