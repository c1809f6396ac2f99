"""Logs: one JSON object per line on stderr or on ``--log-fd``, through stdlib logging. ``extra``
fields become fields of the object.

No code passes bodies, environment values or headers to the log. Access tokens are redacted here as
well, since the text of an exception may quote a peer's bytes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import re
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_QUEUED_RECORDS = 10_000
FLUSH_SECONDS = 1.0
BATCH_SECONDS = 0.05

_TOKEN = re.compile(r"(?i)(\bbearer +|execd\.bearer\.|access-token\W{1,8})[\w.~+/=-]+")
_TOKEN_WORDS = ("bearer", "access-token")
"""Each match of _TOKEN has one of these, in some case."""
_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_RecordQueue = queue.SimpleQueue[logging.LogRecord | threading.Event]
"""Records, and events to set when all earlier records are written."""


class JsonFormatter(logging.Formatter):
    """Format ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, the extra fields, and
    ``exception`` if the record has one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {
            name: value for name, value in vars(record).items() if name not in _RECORD_FIELDS
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return redact(_encode(fields))


def redact(line: str) -> str:
    """Replace access tokens in a line."""
    if line.isascii():  # beyond ASCII, ``lower`` and IGNORECASE differ
        lower = line.lower()
        # The pattern alone takes longer than the rest of the formatting.
        if not any(word in lower for word in _TOKEN_WORDS):
            return line
    return _TOKEN.sub(r"\1[redacted]", line)


def _encode(fields: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except (UnicodeEncodeError, TypeError):
        # A file name that is not UTF-8, or keys that JSON does not have.
        return msgspec.json.encode({name: ascii(value) for name, value in fields.items()}).decode()


class _MalformedRequestFilter(logging.Filter):
    """Shorten aiohttp's reports of malformed requests: errors with a traceback that quotes the
    request, headers included."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None and kind.__module__ == "aiohttp.http_exceptions":
            record.msg, record.args = "malformed request: %s", (kind.__name__,)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


class _QueueHandler(logging.Handler):
    """Pass records to the writer's thread. When the reader of stderr stalls, log lines are lost and
    no code waits.

    Not logging.handlers.QueueHandler, which prepares records for a pipe to another process.
    """

    def __init__(self, records: _RecordQueue) -> None:
        super().__init__()
        self._records = records

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record, without the lock of ``Handler.handle``: the queue has a lock of its own.
        The handler has no filters."""
        if self._records.qsize() < MAX_QUEUED_RECORDS:
            self._records.put(record)
        return True


class _BatchHandler(logging.StreamHandler[TextIO]):
    """Write the lines of a batch at once: one system call per line would cost more than everything
    else."""

    def write(self, records: list[logging.LogRecord]) -> None:
        """Write the records. Raises nothing, since an exception would end the only thread that
        writes."""
        lines = []
        for record in records:
            try:
                lines.append(self.format(record) + "\n")
            except Exception as error:  # a record that cannot be formatted
                lines.append(
                    _encode(
                        {
                            "level": "error",
                            "logger": record.name,
                            "message": f"not logged: {type(error).__name__}",
                        }
                    )
                    + "\n"
                )
        try:
            self.stream.write("".join(lines))
            self.flush()
        except Exception:
            # stderr is closed, or memory is short: nobody is left to inform
            pass


def setup(level: str, fd: int | None = None) -> Callable[[], None]:
    """Send everything of ``level`` and above to the descriptor ``fd``, or to stderr, from a thread.
    Call once, at start.

    Returns a function that waits until the lines so far are written, one second at most. Afterwards
    end the process with ``os._exit``: the interpreter's own exit would wait for a stalled reader.
    """
    stream = sys.stderr
    if fd is not None:
        stream = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="backslashreplace")
    handler = _BatchHandler(stream)
    handler.setFormatter(JsonFormatter())
    records: _RecordQueue = queue.SimpleQueue()
    writer = threading.Thread(
        target=_write_batches, args=(records, handler), name="log-writer", daemon=True
    )
    writer.start()
    # No line shows these fields, so logging need not look them up
    # (https://docs.python.org/3/howto/logging.html#optimization).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[_QueueHandler(records)], force=True)
    logging.getLogger("aiohttp.server").addFilter(_MalformedRequestFilter())
    return functools.partial(_flush, records)


def _write_batches(records: _RecordQueue, handler: _BatchHandler) -> None:
    """Write in batches: waking the thread for each line would cost every request two thread
    switches."""
    while True:
        batch = [records.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(records.get_nowait())
        assert batch, "get() waits for the first"
        handler.write([record for record in batch if isinstance(record, logging.LogRecord)])
        for mark in batch:
            if isinstance(mark, threading.Event):
                mark.set()
        time.sleep(BATCH_SECONDS)


def _flush(records: _RecordQueue) -> None:
    """Wait briefly for the last lines. The reader of stderr may have stopped, so no longer."""
    written = threading.Event()
    records.put(written)
    written.wait(FLUSH_SECONDS)
