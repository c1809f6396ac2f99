"""Whether orphans come to this process (prctl(2), PR_SET_CHILD_SUBREAPER): the setting outlives the
code that made the setting."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


def is_subreaper() -> bool:
    value = ctypes.c_int()
    assert _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) == 0
    return bool(value.value)


def become_subreaper(on: bool) -> None:
    assert _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the earlier parent of orphans: a warden without namespaces makes the client's process
    a subreaper for good."""
    before = is_subreaper()
    try:
        yield
    finally:
        become_subreaper(before)


def reap_orphans() -> None:
    """Reap the dead processes that ended programs have left to this process, as the warden does. A
    child that leads its group, or is of this process's group, is no orphan: whoever started the
    child must wait for the child."""
    for child in psutil.Process().children() if is_subreaper() else []:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE and os.getpgid(child.pid) not in (
                child.pid,
                os.getpgrp(),
            ):
                os.waitpid(child.pid, os.WNOHANG)
