"""Metrics as text, read back by the parsers of Prometheus' own client."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from execd.api.probes.exposition import Format, choose_format, render
from execd.api.probes.families import Family, MetricKind
from execd.engine.metrics.counters import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

values = st.none() | st.integers(0, 2**62) | st.floats(0.0, 1e300) | st.booleans()


def parse(text: str, text_format: Format) -> list[Metric]:
    if text_format is Format.OPEN_METRICS:
        return list(open_metrics.text_string_to_metric_families(text))
    return list(text_string_to_metric_families(text))


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def show(families: Iterable[Family], text_format: Format) -> str:
    return render(families, None, None, text_format)  # type: ignore[arg-type]  # not read


@given(values, values, st.lists(st.floats(0.0, 1e9)), st.sampled_from(Format))
def test_both_formats_are_read_back_as_they_were_written(
    first: float | None, second: float | None, observed: list[float], text_format: Format
) -> None:
    histogram = Histogram((0.5, 2.0))
    for value in observed:
        histogram.observe(value)
    families = [
        Family(
            name="execd_things_bytes_total",
            kind=MetricKind.COUNTER,
            help="Things.",
            labels=("kind", "part"),
            read=lambda *_: {("a", "b"): first, ("", "b"): second},
        ),
        Family(name="execd_up", kind=MetricKind.GAUGE, help="Up.", read=lambda *_: {(): first}),
        Family(
            name="execd_wait_seconds",
            kind=MetricKind.HISTOGRAM,
            help="Wait.",
            read=lambda *_: histogram,
        ),
    ]
    metrics = parse(show(families, text_format), text_format)
    expected = {
        ("execd_things_bytes_total", frozenset({("kind", "a"), ("part", "b")})): first,
        ("execd_things_bytes_total", frozenset({("part", "b")})): second,
        ("execd_up", frozenset()): first,
        # Not by sum(), which rounds otherwise from Python 3.12 on.
        ("execd_wait_seconds_sum", frozenset()): functools.reduce(operator.add, observed, 0.0),
        ("execd_wait_seconds_count", frozenset()): len(observed),
        **{
            ("execd_wait_seconds_bucket", frozenset({("le", bound)})): sum(
                value <= float(bound) for value in observed
            )
            for bound in ("0.5", "2.0", "+Inf")
        },
    }
    assert samples(metrics) == {key: n for key, n in expected.items() if n is not None}
    kinds = {metric.name: (metric.type, metric.documentation) for metric in metrics}
    assert kinds.get("execd_wait_seconds") == ("histogram", "Wait.")
    if first is not None or second is not None:
        assert kinds["execd_things_bytes"] == ("counter", "Things.")


def test_only_openmetrics_names_the_unit() -> None:
    """In the older format a line with UNIT is a comment, which each scrape would pay for."""
    family = Family(
        name="execd_memory_bytes", kind=MetricKind.GAUGE, help="Memory.", read=lambda *_: {(): 1}
    )
    [metric] = parse(show([family], Format.OPEN_METRICS), Format.OPEN_METRICS)
    assert metric.unit == "bytes"
    assert "UNIT" not in show([family], Format.TEXT)


@pytest.mark.parametrize("text_format", Format)
def test_metric_without_a_value_leaves_no_line(text_format: Format) -> None:
    family = Family(name="execd_up", kind=MetricKind.GAUGE, help="Up.", read=lambda *_: {(): None})
    end = "# EOF\n" if text_format is Format.OPEN_METRICS else ""
    assert show([family], text_format) == end


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/plain", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text; version=1.0.0; q=0.0, */*", Format.TEXT),
        ("application/openmetrics-text", Format.OPEN_METRICS),
        ("application/OpenMetrics-Text; q=0.5", Format.OPEN_METRICS),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
            "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format.OPEN_METRICS,
        ),
    ],
)
def test_format_is_the_one_asked_for(accept: str, chosen: Format) -> None:
    assert choose_format(accept) is chosen
