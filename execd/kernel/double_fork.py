"""Processes with the warden as their parent: workers forked from the zygote, branches forked from a
worker.

The caller forks an intermediate process, and the intermediate process forks the worker and ends at
once. The worker is then an orphan, and the kernel gives the orphan to the init of the PID namespace
or to the subreaper: the warden. The worker greets the warden over a SEQPACKET socket. The kernel
stamps the sender's pid on the greeting (SO_PASSCRED), so the warden trusts no claim of a process.

Cost. A fork copies the page tables: 10 ms for 1 GiB in pages of 4 KiB, twice. The end of the
intermediate process frees a copy, takes nearly as long again, and the orphan waits for this end.
With huge pages the whole double fork takes 3 ms. So malloc gets blocks of 2 MiB and more in huge
pages (``zygote_process.HUGE_PAGES``; numpy does so by itself), and a double fork is cheap where the
kernel grants huge pages. Small objects, and kernels without huge pages, pay the full price.

In gVisor each copy takes 50 to 100 ms. So there the intermediate process shares the caller's memory
(``_orphan.c``: vfork, then the C library's fork), and only one copy is made. The conditions:
  * The kernel has no restartable sequences (rseq(2)), and gVisor has none. A process with shared
    memory has lost its rseq area without the library's knowledge, and so would the new process.
  * The caller has a single thread. vfork stops one thread, and the others would go on while a fork
    handler (pthread_atfork) of another process waits for them.
  * The interpreter is CPython with ctypes, and of the C library that ``_orphan.c`` was built for.
Otherwise both processes are copies.

Rejected: clone(CLONE_PARENT) past the C library. The library's fork handlers (OpenBLAS, libuv) do
not run, so BLAS hangs in the branch. Locks of malloc stay taken if another thread held them. The
thread id kept by the library is the original's, so abort and raise signal nobody. gVisor ignores
the flag.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import functools
import glob
import os
import time
from typing import NamedTuple

LIBRARIES = os.path.join(glob.escape(os.path.dirname(__file__)), "_orphan*.so")
RSEQ = {"x86_64": 334, "aarch64": 293}
"""The number of rseq(2), for which the C library has no function."""
ORPHANED_SECONDS = 10.0
"""Longest wait of a worker for the end of the intermediate process."""


class WorkerEnds(NamedTuple):
    """The descriptors of a new worker, in the order of the daemon's message."""

    protocol: int
    stdout: int
    stderr: int
    greeting: int


def fork_orphan() -> int | None:
    """Fork a process whose parent is the warden. Raises OSError if the kernel refuses.

    Returns None in the caller. Returns the pid of the intermediate process in the new process; the
    new process has a copy of the caller's memory and continues on the caller's stack.
    """
    fork = find_cheap_fork()
    if fork is not None and has_one_thread():
        return fork()
    intermediate_pid = os.fork()
    if intermediate_pid == 0:
        own = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            os._exit(min(error.errno or 255, 255))
        if child != 0:
            os._exit(0)
        return own
    try:
        _, state = os.waitpid(intermediate_pid, 0)
    except ChildProcessError:
        # User code ignores SIGCHLD, so the kernel has reaped the intermediate process. The daemon
        # notices a failed fork by the missing greeting.
        return None
    if state != 0:
        raise OSError(state >> 8, os.strerror(state >> 8))
    return None


class CheapFork:
    """``fork_orphan`` with one copy of the memory: see ``_orphan.c``."""

    def __init__(self) -> None:
        """Load the library. Raises ImportError, OSError, AttributeError, LookupError."""
        import ctypes

        self._library = ctypes.PyDLL(glob.glob(LIBRARIES)[0])  # keeps the GIL, as os.fork does
        self._hooks = [
            ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
            for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent")
        ]
        libc = ctypes.CDLL(None, use_errno=True)
        # No area has the length 0, so nothing is registered.
        libc.syscall(RSEQ[os.uname().machine], None, 0, 0, 0)
        self.kernel_has_rseq = ctypes.get_errno() != errno.ENOSYS

    def __call__(self) -> int | None:
        result: int = self._library.execd_fork_orphan(*self._hooks)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result or None


@functools.cache
def find_cheap_fork() -> CheapFork | None:
    """Return the cheap fork, if this interpreter, library and kernel allow one."""
    try:
        fork = CheapFork()
    except (ImportError, OSError, AttributeError, LookupError):
        return None
    return None if fork.kernel_has_rseq else fork


def has_one_thread() -> bool:
    """Whether this process has no thread but this: threads of C libraries count too."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def set_up_worker_process(ends: WorkerEnds, intermediate_pid: int) -> None:
    """Give the new process a session or group and its descriptors 0 to 2, wait for the warden as
    parent, and greet the warden.

    Takes over all of ``ends`` but the protocol socket. Raises OSError, TimeoutError.
    """
    assert intermediate_pid > 0
    if os.getsid(0) == os.getpgid(0):
        os.setsid()
    else:
        # In gVisor the caller leads a group in the warden's session, and so does the worker. A
        # group with a parent outside the group is no orphaned group
        # (docs/architecture/processes.md, "Fork bombs").
        os.setpgid(0, 0)
    null = os.open("/dev/null", os.O_RDWR)
    for source, target in ((null, 0), (ends.stdout, 1), (ends.stderr, 2)):
        os.dup2(source, target)
        if source > 2:
            os.close(source)
    deadline = time.monotonic() + ORPHANED_SECONDS
    while os.getppid() == intermediate_pid:
        if time.monotonic() > deadline:
            raise TimeoutError("not orphaned")
        time.sleep(0.0002)  # the kernel reports a new parent to nobody, so poll
    os.write(ends.greeting, b"\0")
    os.close(ends.greeting)
