"""The metrics of the daemon. Pure. Most metrics are figures of ``Stats``: an annotation there names
the metric. Add a metric that is no figure here.

A metric has the words of the log and of the replies: dialects, exit reasons, states, error codes.
All label values come from sets that are closed once the ports are open, so traffic adds no series.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from execd import __version__
from execd.engine.metrics.stats import Stats
from execd.model import ExitReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from execd.engine.metrics.counters import Counters, Histogram

Rows = Mapping[tuple[str, ...], int | float | None]
"""Values by the values of the labels. An empty label value: the label is absent. None: the value
has no source here, and the series is absent."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# eq=False: a family is equal to itself only, and its hash is cheap.
@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One metric, with all its series."""

    name: str
    """The full name; a counter ends with ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    read: Callable[[Stats, Counters], Rows | Histogram]

    @property
    def unit(self) -> str:
        """The last word of the name, if that is a unit."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in ("bytes", "seconds") else ""


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all metrics. Read from the annotations at the first scrape, and not at the start."""
    return (
        Family(
            name="execd_build_info",
            kind=MetricKind.GAUGE,
            help="Always 1. The version of the daemon.",
            labels=("version",),
            read=lambda _stats, _counters: {(__version__,): 1},
        ),
        *_families_of_stats(),
        Family(
            name="execd_executions_total",
            kind=MetricKind.COUNTER,
            help="Commands and cells that have ended, by dialect of the request and exit reason.",
            labels=("dialect", "exit_reason"),
            read=lambda _, counters: _ends(counters),
        ),
        _histogram(
            "execd_execution_duration_seconds",
            "How long programs and cells ran.",
            lambda counters: counters.duration_seconds,
        ),
        _histogram(
            "execd_queue_wait_seconds",
            "How long executions waited for their turn.",
            lambda counters: counters.queue_seconds,
        ),
        _histogram(
            "execd_loop_lag_seconds",
            "How late the event loop ran its timer while user code lived.",
            lambda counters: counters.loop_lag_seconds,
        ),
        Family(
            name="execd_resets_total",
            kind=MetricKind.COUNTER,
            help="Resets, by whether everything was verified to be as before.",
            labels=("clean",),
            read=lambda _, counters: {
                (str(is_clean).lower(),): count for is_clean, count in counters.resets.items()
            },
        ),
        _histogram(
            "execd_reset_duration_seconds",
            "How long resets took.",
            lambda counters: counters.reset_seconds,
        ),
    )


def _histogram(name: str, help: str, read: Callable[[Counters], Histogram]) -> Family:
    return Family(
        name=name, kind=MetricKind.HISTOGRAM, help=help, read=lambda _, counters: read(counters)
    )


def _ends(counters: Counters) -> Rows:
    """Every request brings a dialect: only the executions of a former daemon have none."""
    return {
        (dialect or "", reason): count
        for (dialect, reason), count in counters.executions.items()
        if dialect is not None or reason is ExitReason.DAEMON_RESTARTED
    }


def _families_of_stats() -> Iterator[Family]:
    by_metric: dict[str, list[tuple[tuple[str, ...], Mapping[str, Any]]]] = {}
    for path, text, facts in _figures(Stats):
        by_metric.setdefault(facts["metric"], []).append((path, facts | {"text": text}))
    for name, figures in by_metric.items():
        _, first = figures[0]
        readers = [
            (
                operator.attrgetter(".".join(path)),
                path[-2:-1] if facts["by"] else tuple(facts["labels"].values()),
            )
            for path, facts in figures
        ]
        yield Family(
            name=name,
            kind=MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE,
            help=first["help"] or first["text"].partition(". ")[0].rstrip(".") + ".",
            labels=(first["by"],) if first["by"] else tuple(first["labels"]),
            read=functools.partial(_read, readers),
        )


def _figures(
    struct: type[msgspec.Struct], *above: str
) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield the path, the description and the metric of each figure with a metric."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _figures(hint, *above, name)
        for meta in getattr(hint, "__metadata__", ()):
            yield (*above, name), meta.description, meta.extra


def _read(
    figures: Sequence[tuple[Callable[[Stats], Any], tuple[str, ...]]], stats: Stats, _: Counters
) -> Rows:
    rows: dict[tuple[str, ...], int | float | None] = {}
    for read, row in figures:
        value = read(stats)
        if isinstance(value, dict):
            rows |= {(key,): count for key, count in value.items()}
        else:
            rows[row] = value
    return rows
