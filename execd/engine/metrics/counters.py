"""The counters of the engine: plain numbers in memory, for ``GET /metrics`` and ``GET /v1/stats``.
Pure.

Each row exists from the start, and its labels come from closed sets: dialects, exit reasons, error
codes, streams. So no number of executions adds a series. The dialects' words are those of the log
line of an execution, and of the replies.

Counters begin at zero with the daemon. One thread updates them, the thread of the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import get_args

from execd.errors import ReplyCode
from execd.model import OWN_DIALECTS, STREAMS, CellStatus, DialectName, ExitReason

# Upper bounds in seconds. A small command takes 2 ms natively and 10 ms in gVisor; the default
# timeout is minutes.
DURATION_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)
QUEUE_SECONDS = (0.001, 0.01, 0.1, 0.5, 2.0, 10.0, 30.0)
# The clock of the event loop counts whole milliseconds. 0.5 s is the bound of an alert.
LAG_SECONDS = (0.002, 0.01, 0.05, 0.2, 0.5, 1.0, 5.0)
RESET_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Histogram:
    """How many values were at most as large as each bound, and the sum of all values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values up to each bound and above the bound before; at the end, values above all
        bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[tuple[float, int]]:
        """Return for each bound the number of values up to the bound; infinity is the last
        bound."""
        found, count = [], 0
        for bound, more in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += more
            found.append((bound, count))
        return found


class Counters:
    """One object per engine. Callers add to the fields."""

    def __init__(self) -> None:
        self.executions: dict[tuple[DialectName | None, ExitReason], int] = {}
        """Ends, by dialect and reason. The dialect None: executions of a former daemon."""
        for dialect in (*OWN_DIALECTS, None):
            self.add_dialect(dialect)
        self.refused_executions = 0
        """Executions that ended with an error, and no reason: no program was started."""
        self.cells: dict[CellStatus, int] = dict.fromkeys(get_args(CellStatus), 0)
        self.branches = 0
        """Branches of sessions that were made."""
        self.output_bytes = dict.fromkeys(STREAMS, 0)
        """Output of the executions that have ended, as the programs wrote the output."""
        self.received_bytes = 0
        """All bytes from HTTP callers."""
        self.sent_bytes = 0
        """Bytes of the replies that are over, headers included."""
        self.error_replies: dict[ReplyCode, int] = dict.fromkeys(get_args(ReplyCode), 0)
        self.duration_seconds = Histogram(DURATION_SECONDS)
        """Run times of programs and cells."""
        self.queue_seconds = Histogram(QUEUE_SECONDS)
        """From the request of an execution to its turn."""
        self.loop_lag_seconds = Histogram(LAG_SECONDS)
        """How late the event loop ran a timer."""

        self.resets: dict[bool, int] = {True: 0, False: 0}
        """By whether the reset was clean."""
        self.reset_seconds = Histogram(RESET_SECONDS)

    def record_reset(self, *, is_clean: bool, duration_seconds: float) -> None:
        self.resets[is_clean] += 1
        self.reset_seconds.observe(duration_seconds)

    def add_dialect(self, dialect: DialectName | None) -> None:
        """Count the executions of this dialect too. Until the first end the counters are 0: a
        series that begins with a 1 has no increase."""
        for reason in ExitReason:
            self.executions.setdefault((dialect, reason), 0)

    def record_end(
        self,
        dialect: DialectName | None,
        reason: ExitReason | None,
        duration_seconds: float | None,
        output_bytes: tuple[int, int],
        cell_status: CellStatus | None,
    ) -> None:
        """Count the end of an execution. ``reason`` None: no program was started, for an error.
        ``duration_seconds`` None: no program ran, or nobody knows for how long. ``output_bytes``:
        of ``STREAMS``. ``cell_status`` None: no cell, or a cell that never ran."""
        if reason is None:
            self.refused_executions += 1
        else:
            if (dialect, reason) not in self.executions:
                self.add_dialect(dialect)
            self.executions[dialect, reason] += 1
        if duration_seconds is not None:
            self.duration_seconds.observe(duration_seconds)
        for stream, n_bytes in zip(STREAMS, output_bytes, strict=True):
            self.output_bytes[stream] += n_bytes
        if cell_status is not None:
            self.cells[cell_status] += 1
