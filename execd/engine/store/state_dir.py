"""The state dir as a service for the event loop: spools of output, the journal, the disk budget.

``state_folder`` finds, opens and keeps the folder. This module runs all disk work in threads, so
that a hung disk stops logs and not the loop:

* SPOOL_THREADS threads read and write the spools (``spool``).
* One thread writes the journal (``journal``). The records stay in order, and no log delays them.

A write of the journal has a deadline of DISK_SECONDS. A thread that waits for a disk cannot be
called back, so the write goes on after its deadline. Until the disk answers, later writes wait in
the thread's queue, and their callers get an answer at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from execd.engine.store.journal import Journal
from execd.engine.store.spool import DISK_SECONDS, Spool
from execd.engine.store.state_folder import StateFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.engine.store.journal import Record
    from execd.proc.namespaces import View

logger = logging.getLogger(__name__)

SPOOL_THREADS = 4
NO_SPACE = os.strerror(errno.ENOSPC)


class StateDirError(Exception):
    """The state dir cannot be used. The message names the directory and the reason."""


class StateDir:
    """Own the folder, the journal, the threads and the disk budget. ``close`` releases them."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        links: Mapping[str, str],
        is_uncovered: Callable[[], bool] = lambda: True,
        *,
        commands_uid: int | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the state dir at ``path`` and read the journal. Raises StateDirError.

        ``max_bytes`` bounds all spools together. ``links``, ``is_uncovered`` and ``commands_uid``:
        see ``StateFolder``. ``on_failure`` is called when the journal cannot be written, and should
        lead to a ``repair``.
        """
        self.bin_dir = os.path.join(path, "bin")
        self.logs_dir = os.path.join(path, "logs")
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self._path = path
        self._on_failure = on_failure
        self._last_failure: str | None = None
        """The failure logged last: a failure is logged once, not at each write."""
        self._hung_write: asyncio.Future[str | None] | None = None
        """The write of the journal under way after the deadline."""
        with contextlib.ExitStack() as undo:
            try:
                self.folder = undo.enter_context(
                    contextlib.closing(
                        StateFolder(path, links, is_uncovered, commands_uid=commands_uid)
                    )
                )
                self.journal = Journal("journal", self.folder.dir_fd)
                undo.callback(self.journal.close)
                self.former_executions = self.journal.load()
                self.former_shortage = self.journal.shortage
                if self.journal.damaged_bytes:
                    extra = {"path": path, "damaged_bytes": self.journal.damaged_bytes}
                    logger.error("the journal is damaged", extra=extra)
                self.folder.remove_logs(except_of=self.former_executions)
            except BlockingIOError:
                raise StateDirError(f"--state-dir: {path} is in use by another execd") from None
            except OSError as error:
                where = "" if error.filename in (None, path) else f" ({error.filename})"
                raise StateDirError(f"--state-dir: {path}: {error.strerror}{where}") from error
            undo.pop_all()
        self.threads = ThreadPoolExecutor(SPOOL_THREADS, thread_name_prefix="spool")
        self._journal_thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    @property
    def anchor(self) -> str:
        """See ``StateFolder.anchor``."""
        return self.folder.anchor

    def view(self) -> View:
        """See ``StateFolder.view``."""
        return self.folder.view()

    # The journal.

    async def write_journal(self, record: Record) -> str | None:
        """Append a record. Return None, or the reason why the record may not survive a restart.

        Waits DISK_SECONDS at most; returns at once while an earlier write hangs.
        """
        return await self._run_in_journal_thread(functools.partial(self._append, record))

    async def repair(self) -> str | None:
        """Make removed files again, and write refused records. Return the failure."""
        if self.is_hung:
            return None
        failure = await self._run_in_journal_thread(self._repair)
        if failure is None and not self.is_hung:
            self._last_failure = None
        return failure

    @property
    def has_failed(self) -> bool:
        """Whether the latest work on the journal failed, so that a repair is due."""
        return self._last_failure is not None or self.is_hung

    @property
    def is_hung(self) -> bool:
        """Whether a write of the journal has passed its deadline and still waits for the disk."""
        return self._hung_write is not None

    def _append(self, record: Record) -> None:
        try:
            self.journal.append(record)
        except OSError:
            if self.journal.is_in_place:
                raise
        # A write into a removed file succeeds, so the place is checked after the write. The journal
        # has noted the record by now, and the repair writes the record to the new file.
        if not self.journal.is_in_place:
            self._repair()

    def _repair(self) -> None:
        self.folder.ensure()
        self.journal.repair()

    async def _run_in_journal_thread(self, work: Callable[[], None]) -> str | None:
        """Run ``work`` after all earlier work. Return the failure, as far as known at the deadline.

        ``work`` runs even if no caller waits any more.
        """
        doing = asyncio.get_running_loop().run_in_executor(self._journal_thread, _failure_of, work)
        if not self.is_hung:
            await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if doing.done():
            failure = doing.result()
        else:
            failure = f"the disk did not answer for {DISK_SECONDS:g} s"
            if not self.is_hung:
                self._hung_write = doing
                doing.add_done_callback(self._on_answer)
        if failure is not None:
            self._on_failure()
        if failure is not None and failure != self._last_failure:
            self._last_failure = failure
            extra = {"path": self._path, "error": failure}
            if self.is_hung:  # a busy machine delays writes by seconds
                logger.warning("the state dir does not answer", extra=extra)
            else:
                logger.error("the state dir cannot be used", extra=extra)
        return failure

    def _on_answer(self, _: asyncio.Future[str | None]) -> None:
        self._hung_write = None

    # Spools.

    def spool(self, name: str, max_bytes: int) -> Spool:
        """Make the spool of one stream. The first write makes the file ``logs/<name>``."""
        return Spool(self, os.path.join("logs", name), max_bytes)

    def reserve(self, wanted_bytes: int) -> int:
        """Take up to ``wanted_bytes`` of the disk budget. Return the number of bytes granted."""
        assert wanted_bytes >= 0
        granted_bytes = max(0, min(wanted_bytes, self.max_bytes - self.used_bytes))
        self.used_bytes += granted_bytes
        return granted_bytes

    def release(self, size_bytes: int) -> None:
        """Return granted bytes to the disk budget."""
        assert 0 <= size_bytes <= self.used_bytes, "more is returned than was granted"
        self.used_bytes -= size_bytes

    def close(self, within_seconds: float = DISK_SECONDS) -> None:
        """Close everything. Wait ``within_seconds`` at most for the journal's last records."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        # The journal is closed in the journal's thread, after the records in the queue.
        closing = self._journal_thread.submit(self.journal.close)
        self._journal_thread.shutdown(wait=False)
        if not self.is_hung:
            concurrent.futures.wait((closing,), min(DISK_SECONDS, within_seconds))
        self.folder.close()


def _failure_of(work: Callable[[], None]) -> str | None:
    try:
        work()
    except OSError as error:
        return error.strerror or "input/output error"
    return None
