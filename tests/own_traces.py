"""A kernel of a daemon's own, as far as a reset looks at it: for daemons without namespaces, whose
resets compare the whole machine's System V objects, queues and /dev/shm. A test beside may make
some."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from tests.gvisor import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNT = "mount -t tmpfs none /dev/shm && exec"


def own_traces() -> tuple[str, ...]:
    """The command that runs the daemon's command. Empty in gVisor, where nothing runs beside."""
    if is_gvisor():
        return ()
    if os.geteuid() == 0:
        return ("unshare", "--ipc", "--mount", "sh", "-c", f'{_MOUNT} "$@"', "sh")
    # The daemon has no capabilities there, as anywhere else.
    return (
        *("unshare", "--map-current-user", "--keep-caps", "--ipc", "--mount", "sh", "-c"),
        f'{_MOUNT} setpriv --ambient-caps=-all --inh-caps=-all "$@"',
        "sh",
    )


@contextlib.contextmanager
def kept_traces() -> Iterator[tuple[str, ...]]:
    """The command for several daemons one after another, as in one container."""
    if not (begin := own_traces()):
        yield ()
        return
    command = [*begin, "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"ready\n"
        user = ("--user", "--preserve-credentials") if os.geteuid() else ()
        yield ("nsenter", f"--target={keeper.pid}", *user, "--ipc", "--mount", "--wd=.")


@contextlib.contextmanager
def kernel_for_one() -> Iterator[None]:
    """Keep out the other processes of this run that ask for the machine's kernel. For a judge who
    looks from outside."""
    with open(f"{tempfile.gettempdir()}/execd-tests-{os.geteuid()}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
