"""The C that starts a program, called as the C of the starts calls it: one request in, a pid or
``StepFailed`` out."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import spawn as c
from execd.proc.spawn import (
    GROUP_ONLY,
    KEEP_IDENTITY,
    STEP_NAMES,
    Identity,
    LimitFields,
    StepFailed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

KEEP_FD = -1
_CONTROLLING_TERMINAL = 1
_KEEP_ID = 2**32 - 1


class StartedProgram(NamedTuple):
    """A program that runs."""

    pid: int
    is_direct: bool
    """The process runs the direct program of the block."""


class _SpawnRequest(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("block", ctypes.c_char_p),
        ("block_bytes", ctypes.c_uint64),
        ("fds", ctypes.POINTER(ctypes.c_int32)),
        ("limits", ctypes.POINTER(LimitFields)),
        ("groups", ctypes.POINTER(ctypes.c_uint32)),
        ("n_fds", ctypes.c_int32),
        ("n_limits", ctypes.c_int32),
        ("n_groups", ctypes.c_int32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("nice", ctypes.c_int32),
        ("oom_score_fd", ctypes.c_int32),
        ("oom_score", ctypes.c_int32),
    )


class _SpawnResult(ctypes.Structure):
    _fields_ = (
        ("failure", c.FailureFields),
        ("was_direct", ctypes.c_int32),
    )


_library = c.load_library()
_library.execd_spawn.argtypes = [ctypes.POINTER(_SpawnRequest), ctypes.POINTER(_SpawnResult)]


def spawn(
    *,
    program: bytes,
    fds: Sequence[int],
    limits: Sequence[Sequence[int]] = (),
    identity: Identity = KEEP_IDENTITY,
    controlling_terminal: bool = False,
    nice: int = 0,
    oom_score: c.OomScore | None = None,
    leads_session: bool = True,
) -> StartedProgram:
    """Start a program with ``fds`` as its descriptors 0, 1, 2 ….

    ``program``: see ``program_block``. ``fds`` may have KEEP_FD in the place of a descriptor.
    The caller has called ``prepare``, or starts programs to which signals and privileges do not
    matter.
    """
    groups = identity.groups or ()
    request = _SpawnRequest(
        ctypes.sizeof(_SpawnRequest),
        (_CONTROLLING_TERMINAL if controlling_terminal else 0)
        | (0 if leads_session else GROUP_ONLY),
        program,
        len(program),
        (ctypes.c_int32 * len(fds))(*fds),
        (LimitFields * len(limits))(*[LimitFields(which, 0, *two) for which, *two in limits]),
        (ctypes.c_uint32 * len(groups))(*groups) if groups else None,
        len(fds),
        len(limits),
        -1 if identity.groups is None else len(groups),
        _KEEP_ID if identity.uid is None else identity.uid,
        _KEEP_ID if identity.gid is None else identity.gid,
        nice,
        -1 if oom_score is None else oom_score.fd,
        0 if oom_score is None else oom_score.value,
    )
    assert oom_score is None or oom_score.fd >= 0
    result = _SpawnResult()
    pid: int = _library.execd_spawn(request, result)
    if result.failure.step:
        step, error = STEP_NAMES[result.failure.step], result.failure.error
        raise StepFailed(step, error, pid if pid > 0 else None)
    assert pid > 0, "without a failed step there is a child"
    return StartedProgram(pid, bool(result.was_direct))
