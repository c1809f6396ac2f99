"""The names in a directory, in byte order, in bounded memory.

Theory. The kernel lists names in no order, and user code can make a directory with millions of
names. A sorted list of all names takes about 70 bytes of memory for each name, and the sort holds
the interpreter's lock, and with the lock the event loop, for a second. ``next_names`` therefore
packs sorted runs of names into bytes, and merges the runs while the caller takes names: 400,000
names of 12 bytes take 5 MB. If the runs outgrow their bound, the batch keeps only the smallest
names, and the caller reads the directory again for the next batch.

A name added or removed between two batches may be in the result or not. No name is in the result
twice: each batch begins above the last name of the batch before.
"""

from __future__ import annotations

import heapq
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Memory of one batch: two million short names, 130,000 of 255 bytes.
MAX_BATCH_BYTES = 32 << 20

# Sorting so many names holds the interpreter's lock for about 3 ms.
RUN_NAMES = 8192

# As os.fsencode, which takes three times as long.
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class Names:
    """A batch of names: an iterator in the order of bytes."""

    def __init__(self, runs: list[bytes], *, is_last: bool) -> None:
        """``runs``: sorted names, each followed by a slash. ``is_last``: no names follow this
        batch."""
        self.is_last = is_last
        self.n_bytes = sum(map(len, runs))
        """Memory held until the iterator is dropped."""
        self.last_name = b""
        """The name returned last."""
        self._merged = _merge(runs) if len(runs) > 1 else iter(_split(runs[0]))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        name = next(self._merged)
        assert name > self.last_name
        self.last_name = name
        return name


def few_names(directory: int, limit: int) -> Names | None:
    """Return all names in a directory, given by descriptor; None for more than ``limit`` names.

    Raises OSError.
    """
    with os.scandir(directory) as found:
        names = list(islice(_encoded(found), limit + 1))
    return Names([_pack(names)], is_last=True) if len(names) <= limit else None


def next_names(directory: int, after: bytes, max_bytes: int = MAX_BATCH_BYTES) -> Names:
    """Return the first names above ``after``, as many as ``max_bytes`` hold, but at least one.

    ``directory`` is a descriptor. All names are above ``b""``. Raises OSError.
    """
    assert max_bytes > 0
    runs: list[bytes] = []
    n_bytes = 0
    run: list[bytes] = []
    last: bytes | None = None
    """The largest name kept, once names were dropped. Larger names belong to a later batch."""
    with os.scandir(directory) as found:
        for name in _encoded(found):
            if name <= after or (last is not None and name > last):
                continue
            run.append(name)
            if len(run) == RUN_NAMES:
                runs.append(_pack(run))
                n_bytes += len(runs[-1])
                run.clear()
                if n_bytes > max_bytes:
                    runs, last = _keep_smallest(runs, max_bytes // 2)
                    n_bytes = sum(map(len, runs))
    runs.append(_pack(run))
    return Names(runs, is_last=last is None)


def _pack(names: list[bytes]) -> bytes:
    # No name contains a slash. The set removes duplicates: some file systems list a name twice
    # while the name is replaced.
    return b"".join(name + b"/" for name in sorted(set(names)))


def _split(run: bytes) -> list[bytes]:
    return run[:-1].split(b"/") if run else []


def _unpack(run: bytes) -> Iterator[bytes]:
    start = 0
    while (end := run.find(b"/", start)) >= 0:
        yield run[start:end]
        start = end + 1


def _merge(runs: list[bytes]) -> Iterator[bytes]:
    last = b""
    for name in heapq.merge(*map(_unpack, runs)):
        if name != last:
            yield name
        last = name


def _keep_smallest(runs: list[bytes], max_bytes: int) -> tuple[list[bytes], bytes]:
    """The smallest names of ``runs``, up to about ``max_bytes``, and the largest of these."""
    merged = _merge(runs)
    kept: list[bytes] = []
    n_bytes = 0
    last = b""
    while n_bytes < max_bytes or not kept:
        names = list(islice(merged, RUN_NAMES))
        if not names:
            break  # the file system showed names twice
        kept.append(_pack(names))
        n_bytes += len(kept[-1])
        last = names[-1]
    return kept, last


def _encoded(found: Iterator[os.DirEntry[str]]) -> Iterator[bytes]:
    return (entry.name.encode(_ENCODING, _ERRORS) for entry in found)
