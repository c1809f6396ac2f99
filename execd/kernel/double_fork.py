"""Processes whose parent is the warden: how a worker comes from the zygote, and a branch from a
worker.

Forked twice; the process between ends at once, so the grandchild is an orphan and goes to the init
of the PID namespace or the subreaper: the warden. It greets the warden over a SEQPACKET socket on
which the kernel stamps its pid (SO_PASSCRED): nobody's word is taken for it.

What it costs. A fork copies the page tables: of 1 GiB in pages of 4 KiB some 10 ms each time, and
nearly as much again when the process between ends and gives its copy back, which the orphan has to
wait for. In huge pages all of that together is 3 ms. So blocks of 2 MiB and more are asked for in
those (``boot.HUGE_PAGES``; numpy does it by itself), and to fork twice is cheap where the kernel
grants them. Small objects, and kernels that have huge pages switched off, pay the full price.
Rejected, as ways to copy once:
  * clone(CLONE_PARENT) past the C library. Its handlers (pthread_atfork: OpenBLAS, libuv) do not
    run, so BLAS hangs in the branch; locks of malloc stay taken if another thread had them; and the
    thread id that the library keeps is the original's, so abort and raise signal nobody. With one
    thread only the second of these is gone.
  * A process between that shares the original's memory (CLONE_VM | CLONE_VFORK) and forks properly.
    It needs a stack of its own, and so does all of the branch's life after it, beyond the bounds of
    the main thread's that Python 3.14 and others know. To get back (swapcontext) is not in every C
    library, and the branch would have lost its rseq(2) area without the library knowing.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

ORPHANED_SECONDS = 10.0


class WorkerEnds(NamedTuple):
    """The descriptors of a worker to be, in the order in which the daemon sends them."""

    protocol: int
    stdout: int
    stderr: int
    greeting: int


def fork_orphan() -> int | None:
    """Returns None in the caller, and in the new process the pid of the one between. Raises OSError
    if there can be none.

    The new process has everything of the caller's, its stack included.
    """
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
        # user code has SIGCHLD ignored: the kernel reaped it, and the missing greeting tells of a
        # failure
        return None
    if state != 0:
        raise OSError(state >> 8, os.strerror(state >> 8))
    return None


def set_up_worker_process(ends: WorkerEnds, intermediate_pid: int) -> None:
    """Make the new process itself: its session or group, its descriptors 0 to 2, its parent. Greets
    at the end. Raises OSError.

    Consumes all of ``ends`` but the protocol.
    """
    if os.getsid(0) == os.getpgid(0):
        os.setsid()
    else:  # its original has a group only, so that no group is an orphan: see warden._leads_session
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
        time.sleep(0.0002)  # a kernel's moment, and there is nothing to wait on for it
    os.write(ends.greeting, b"\0")
    os.close(ends.greeting)
