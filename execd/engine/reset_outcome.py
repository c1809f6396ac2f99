"""What a reset did and found: the reply of ``POST /v1/reset``, and the steps. Pure.

The steps are a chain: each begins when the one before has ended, well or not. A step that fails
leaves a difference, and the chain goes on, because a sandbox in the middle of a reset serves
nobody. Only what VERIFY and the ends of the other steps saw makes ``clean`` true; no step is
believed because it returned.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from execd.engine.executions.command import ID_PATTERN

MAX_DIFFERENCES = 1000
"""Differences that a reply names. The total counts all."""
_SURROGATES = re.compile("[\ud800-\udfff]")
DifferenceKind = Literal[
    "step",
    "request",
    "execution",
    "process",
    "socket",
    "object",
    "mount",
    "shm",
    "warden",
    "session",
    "file",
    "entrypoint",
    "journal",
]


class ResetStep(StrEnum):
    """In the order of their run."""

    END = "end"
    """Answer everybody who waits, and end requests, sessions, shells, terminals and watches."""
    HALT = "halt"
    """End the warden, and every process with the warden."""
    RESTORE = "restore"
    """Make the files as in the checkpoint."""
    FORGET = "forget"
    """Forget records, keys, sessions and shells."""
    START = "start"
    """Start the next warden."""
    VERIFY = "verify"
    """Look for what is not as before."""


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to reset to."""

    checkpoint: Annotated[str, msgspec.Meta(pattern=rf"^{ID_PATTERN.pattern}$")] = "start"
    """The id of the checkpoint."""
    verify: Literal["auto", "content", "stat"] = "auto"
    """How files are compared at the end. `content`: by SHA-256. `stat`: by inode, size and ctime;
    writes through `mmap` may escape on tmpfs, and contents that two files exchange on ext4 and XFS.
    `auto`: `content` there, `stat` elsewhere."""
    keep_records: bool = False
    """Keep the records of executions. Their idempotency keys are forgotten all the same."""


class ResetDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is not as before, or could not be verified."""

    kind: DifferenceKind
    """`file`: in a root or a watched directory. `socket`: somebody listens. `object`: of System V,
    a POSIX queue, or a key in the user's keyrings. `shm`: a name in /dev/shm. `entrypoint`: the
    image's own program cannot start again. `step`: a step of the reset failed."""
    message: str
    """What differs, in words."""
    path: str | None = None
    """Where, if the difference has a path."""
    pid: int | None = None
    """Of a process that lives, as the daemon sees the process."""
    port: int | None = None
    """Of a listening socket."""


class ResetDifferences(msgspec.Struct, kw_only=True):
    """Everything that is not as before."""

    items: list[ResetDifference]
    """At most 1,000."""
    total: int
    """The number of all differences."""

    def add(
        self, kind: DifferenceKind, message: str, *, path: str | None = None, pid: int | None = None
    ) -> None:
        self.append(ResetDifference(kind=kind, message=message, path=path, pid=pid))

    def append(self, difference: ResetDifference) -> None:
        self.total += 1
        if len(self.items) < MAX_DIFFERENCES:
            path = None if difference.path is None else without_surrogates(difference.path)
            message = without_surrogates(difference.message)
            self.items.append(msgspec.structs.replace(difference, path=path, message=message))


class EndedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What lived when the reset began."""

    executions: int
    """Commands and cells, those that waited included."""
    sessions: int
    """Sessions of Python, with and without an interpreter."""
    shells: int
    """Bash sessions and named terminals."""
    processes: int
    """All processes below the warden, waiting interpreters included."""


class ResetFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the roots."""

    restored: int
    """Made as before."""
    removed: int
    """Created since the checkpoint."""
    unchanged: int
    """As before already."""


class StepDuration(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step took."""

    name: ResetStep
    """`end`, `halt`, `restore`, `forget`, `start`, `verify`, in this order."""
    duration_seconds: float
    """Of this step alone."""


class ResetScope(msgspec.Struct, frozen=True, kw_only=True):
    """What `clean` speaks of."""

    processes: Literal["namespace", "sweep"]
    """`namespace`: the kernel ended the PID namespace of user code. `sweep`: there are no
    namespaces, and execd ended each process that it found."""
    checkpoint: str
    """The id."""
    checkpoint_created_at: str | None
    """When the checkpoint was made. Another time than the caller's: somebody has deleted the
    caller's checkpoint, and made another one under the id."""
    roots: list[str]
    """Directories whose files were compared."""
    watched: list[str]
    """Directories of which the manifest was compared."""


class ResetReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a reset."""

    clean: bool
    """Whether everything in the scope was verified to be as before."""
    episode: str
    """The episode that begins with this answer, as in `X-Execd-Episode`."""
    verified_by: str
    """How files were compared: `content` or `stat`; empty: they could not be."""
    ended: EndedCounts
    """What lived when the reset began."""
    files: ResetFiles
    """Files of the roots."""
    differences: ResetDifferences
    """Everything that is not as before; empty if `clean`."""
    scope: ResetScope
    """What `clean` speaks of."""
    steps: list[StepDuration]
    """The steps of the reset, in their order."""


def without_surrogates(text: str) -> str:
    """Replace each byte of a path that is not UTF-8: JSON cannot hold them."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
