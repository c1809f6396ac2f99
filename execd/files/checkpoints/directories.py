"""Directories below a root by their paths, never through a link.

A scan and a restore go through thousands of files in the order of their directories. The
directories on the way to the latest path stay open, so that each further path costs only the names
that differ.
"""

from __future__ import annotations

import os
from typing import Self

from execd.files.resolve import held

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Directories:
    """The directories of one root, for one thread. Owns the descriptors, which are O_PATH."""

    def __init__(self, top: int) -> None:
        """The descriptor ``top`` stays the caller's."""
        self._top = top
        self._chain: list[tuple[bytes, int]] = []
        """The names and descriptors on the way to the latest path."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, path: bytes) -> int:
        """Return the directory at ``path``, open until the next call. Raises OSError."""
        names = path.split(b"/") if path else []
        n_shared = 0
        for (name, _), wanted in zip(self._chain, names, strict=False):
            if name != wanted:
                break
            n_shared += 1
        self._cut(n_shared)
        for name in names[n_shared:]:
            fd = os.open(name, _STEP, dir_fd=self._chain[-1][1] if self._chain else self._top)
            self._chain.append((name, fd))
        return self._chain[-1][1] if self._chain else self._top

    def open_parent(self, path: bytes) -> tuple[int, bytes]:
        """Return the directory that holds ``path``, open until the next call, and the last name.
        Raises OSError."""
        parent, _, name = path.rpartition(b"/")
        return self.open(parent), name

    def close(self) -> None:
        """Close all directories; the object can be used again, and sees the present ones."""
        self._cut(0)

    def _cut(self, n_left: int) -> None:
        while len(self._chain) > n_left:
            os.close(self._chain.pop()[1])


def open_below_slash(path: str) -> int:
    """Open the directory at an absolute path in which no name is a link (O_PATH). Raises
    OSError."""
    with held(os.open("/", _STEP)) as slash, Directories(slash) as directories:
        return os.dup(directories.open(os.fsencode(path).strip(b"/")))
