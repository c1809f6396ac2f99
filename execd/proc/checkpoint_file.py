"""``/proc/gvisor/checkpoint``, with which a gVisor of 2026 tells of each restore from a checkpoint.

The file is a device that becomes readable once for each opening: with ``resume`` after a checkpoint
that leaves the sandbox running, with ``error`` after a checkpoint that failed, with ``restore`` in
each restored sandbox. Measured with runsc 20260905: everybody may read; an opening lives through
checkpoint and restore; poll(2) waits for the file, and epoll_ctl(2) refuses the file with EPERM. So
the event loop cannot watch the file, and a thread does, which costs no wake-up.

gVisor lets the processes go on first, and then tells: a caller that must know whether a pause was a
restore gives the thread TELL_SECONDS. A checkpoint between a reading and the next opening would go
unnoticed: a few microseconds, or longer while the limit of open files refuses the opening.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

CHECKPOINT_FILE = "/proc/gvisor/checkpoint"
TELL_SECONDS = 0.1
"""Ten times the longest time measured on a busy machine, in which the processes mostly had nothing
to wait for."""
RETRY_SECONDS = 1.0
MAX_WORD_BYTES = 64


class CheckpointFile:
    """Calls ``on_restored`` in the thread after each restore. ``close`` ends the thread."""

    def __init__(self, on_restored: Callable[[], object], path: str = CHECKPOINT_FILE) -> None:
        """Raises OSError: this kernel has no such file."""
        self._path = path
        self._file = io.FileIO(path)
        try:
            self._end = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            self._file.close()
            raise
        self._on_restored = on_restored
        self._has_told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-file", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._end, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()
        os.close(self._end)

    def was_restored(self, is_expected: bool) -> bool:
        """Return whether there was a restore since the last True. ``is_expected``: the process was
        held up, so wait TELL_SECONDS for the word. The event loop stands still meanwhile: nothing
        may be judged before the word, and the loop stood still for seconds already."""
        if not self._has_told.wait(TELL_SECONDS if is_expected else 0.0):
            return False
        self._has_told.clear()
        return True

    def _run(self) -> None:
        while not self._is_ended(self._file):
            if self._file.read(MAX_WORD_BYTES) == b"restore\n":
                self._has_told.set()
                self._on_restored()
            self._file.close()
            if not self._open_again():
                return

    def _open_again(self) -> bool:
        """Return whether the file is open; not if ``close`` comes first."""
        was_refused = False
        while True:
            try:
                self._file = io.FileIO(self._path)
            except OSError as error:
                if not was_refused:
                    log.warning("cannot hear of restores for now", extra={"reason": str(error)})
                was_refused = True
            else:
                return True
            if self._is_ended():
                return False

    def _is_ended(self, file: io.FileIO | None = None) -> bool:
        """Wait for ``close`` and for the file; without a file for at most RETRY_SECONDS."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if file is not None:
            poll.register(file, select.POLLIN)
        found = poll.poll(RETRY_SECONDS * 1000 if file is None else None)
        return any(descriptor == self._end for descriptor, _ in found)
