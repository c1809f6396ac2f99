"""Metrics as text: the text format of Prometheus, and OpenMetrics. Pure.

execd writes both formats without the package prometheus-client. The formats are a few lines each,
and the package made a scrape several times as expensive (docs/benchmarks.md). The tests read the
text with the package's parsers and with promtool.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import TYPE_CHECKING

from execd.api.probes.families import MetricKind
from execd.engine.metrics.counters import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from execd.api.probes.families import Family
    from execd.engine.metrics.counters import Counters
    from execd.engine.metrics.stats import Stats


class Format(StrEnum):
    """The formats, by their media types."""

    TEXT = "text/plain"
    OPEN_METRICS = "application/openmetrics-text"

    @property
    def content_type(self) -> str:
        version = "1.0.0" if self is Format.OPEN_METRICS else "0.0.4"
        return f"{self}; version={version}; charset=utf-8"


def choose_format(accept: str) -> Format:
    """Return the format for an Accept header. Prometheus names OpenMetrics among its wishes."""
    for entry in accept.lower().split(","):
        media_type, *parameters = (word.strip() for word in entry.split(";"))
        is_refused = any(
            name.strip() == "q" and not value.strip(" 0.")
            for name, _, value in (parameter.partition("=") for parameter in parameters)
        )
        if media_type == Format.OPEN_METRICS and not is_refused:
            return Format.OPEN_METRICS
    return Format.TEXT


def render(
    families: Iterable[Family], stats: Stats, counters: Counters, text_format: Format
) -> str:
    """Return all series that have a value."""
    lines: list[str] = []
    for family in families:
        found = family.read(stats, counters)
        if isinstance(found, Histogram):
            lines += _head(family, text_format)
            _add_histogram(lines, family.name, found)
            continue
        lines_of_family = [
            # Braces and not str(): an f-string is the fastest way. A bool is an integer here.
            f"{_series(family, row)}{int(value) if value is True or value is False else value}"
            for row, value in found.items()
            if value is not None
        ]
        if lines_of_family:
            lines += _head(family, text_format)
            lines += lines_of_family
    if text_format is Format.OPEN_METRICS:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines)


@functools.cache
def _head(family: Family, text_format: Format) -> tuple[str, ...]:
    name = family.name
    if text_format is Format.OPEN_METRICS and family.kind is MetricKind.COUNTER:
        name = name.removesuffix("_total")
    unit = (f"# UNIT {name} {family.unit}",)
    return (
        f"# HELP {name} {family.help}",
        f"# TYPE {name} {family.kind}",
        *(unit if family.unit and text_format is Format.OPEN_METRICS else ()),
    )


@functools.cache
def _series(family: Family, row: tuple[str, ...]) -> str:
    """Return the beginning of a line. Label values need no escapes: they are words of closed
    sets."""
    pairs = [f'{label}="{value}"' for label, value in zip(family.labels, row, strict=True) if value]
    return f"{family.name}{{{','.join(pairs)}}} " if pairs else f"{family.name} "


def _add_histogram(lines: list[str], name: str, histogram: Histogram) -> None:
    count = 0
    for bound, count in histogram.cumulated():
        lines.append(f"{_bucket(name, bound)}{count}")
    lines.append(f"{name}_sum {histogram.total}")
    lines.append(f"{name}_count {count}")


@functools.cache
def _bucket(name: str, bound: float) -> str:
    le = "+Inf" if bound == float("inf") else repr(bound)
    return f'{name}_bucket{{le="{le}"}} '
