"""GET /metrics of a real engine."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from execd.api.probes.exposition import Format, render
from execd.api.probes.families import MetricKind, families
from execd.engine.metrics.counters import Histogram
from tests.api.conftest import JSON, wait_until
from tests.api.probes.test_exposition import samples
from tests.api.probes.test_families import CLOSED_SETS
from tests.gvisor import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

Series = tuple[str, frozenset[tuple[str, str]]]
OPEN_METRICS = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"}
MIXED = [
    {"command": "true"},
    {"command": "exit 3"},
    {"command": "kill -9 $$"},
    {"command": "/no/such/program"},
    {"argv": ["/no/such/program"]},
    {"argv": ["echo", "a"]},
    {"command": "echo $RANDOM $$ >&2"},
    {"command": "sleep 60", "timeout_seconds": 0.01},
    {"command": "yes", "limits": {"log_bytes": 1000}, "on_output_limit": "kill"},
    {"command": 5},
]
N_EXECUTIONS, AT_ONCE = 1000, 8


async def scrape(wire: Wire) -> dict[Series, float]:
    answer = await wire.request("GET", "/metrics")
    assert answer.http_status == 200
    return samples(text_string_to_metric_families(answer.body.decode()))


def value(found: dict[Series, float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def test_text_and_openmetrics_have_the_same_series(wire: Wire) -> None:
    await wait_until(wire.engine.warden.read_totals, "the warden has written its figures")
    text = await scrape(wire)
    answer = await wire.request("GET", "/metrics", headers=OPEN_METRICS)
    assert answer.headers["Content-Type"] == Format.OPEN_METRICS.content_type
    found = list(open_metrics.text_string_to_metric_families(answer.body.decode()))
    assert samples(found).keys() == text.keys()
    assert {metric.name: metric.unit for metric in found} == {
        family.name.removesuffix("_total"): family.unit
        for family in families()
        if family.name.removesuffix("_total") in {metric.name for metric in found}
    }


async def test_head_of_metrics_is_get_without_the_body(wire: Wire) -> None:
    got, head = await wire.request("GET", "/metrics"), await wire.request("HEAD", "/metrics")
    assert (got.http_status, head.http_status) == (200, 200)
    assert head.headers["Content-Type"] == got.headers["Content-Type"]
    assert got.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_promtool_finds_no_fault(wire: Wire) -> None:
    if not shutil.which("promtool"):
        pytest.skip("no promtool on this machine")
    answer = await wire.request("GET", "/metrics")
    done = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=answer.body,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert (done.returncode, done.stdout.decode()) == (0, "")


async def test_label_values_are_of_closed_sets(wire: Wire) -> None:
    await run_mixed(wire, len(MIXED))
    found = await scrape(wire)
    for name, labels in found:
        for label, text in labels:
            if label != "le":
                assert text in CLOSED_SETS[name, label], (name, label, text)


async def run_mixed(wire: Wire, count: int) -> None:
    """Run executions of all kinds, over both dialects."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            body = MIXED[number % len(MIXED)]
            path = "/execute" if number % 3 == 0 and "argv" not in body else "/v1/executions"
            if path == "/execute":
                body = {key: body[key] for key in body.keys() & {"command", "timeout_seconds"}}
                if body["command"] == "yes":
                    body = {"command": "false"}
            await wire.request("POST", path, msgspec.json.encode(body), JSON)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def test_a_thousand_mixed_executions_add_no_series(own_wire: Wire) -> None:
    await wait_until(own_wire.engine.warden.read_totals, "the warden has written its figures")
    before = await scrape(own_wire)
    await run_mixed(own_wire, N_EXECUTIONS)
    await own_wire.request("POST", "/v1/code", b'{"code": "1 / 0"}', JSON)
    await own_wire.request("GET", "/v1/executions/nothing")
    after = await scrape(own_wire)
    assert after.keys() == before.keys()
    ended = sum(n for (name, _), n in after.items() if name == "execd_executions_total")
    assert ended == N_EXECUTIONS * 9 / 10 + 1
    seen = {labels for (name, labels), n in after.items() if name == "execd_executions_total" and n}
    assert len(seen) >= 8
    assert value(after, "execd_cells_total", status="error") == 1
    assert value(after, "execd_error_replies_total", error_code="NOT_FOUND") == 1


async def test_histograms_and_counters_tell_the_same_number_of_runs(own_wire: Wire) -> None:
    for command in ("true", "sleep 0.03"):
        await own_wire.execute(command)
    found = await scrape(own_wire)
    assert value(found, "execd_execution_duration_seconds_count") == 2
    assert value(found, "execd_queue_wait_seconds_count") == 2
    assert value(found, "execd_execution_duration_seconds_sum") >= 0.03
    name, labels = "execd_executions_total", {"dialect": "python_runtime", "exit_reason": "exited"}
    assert value(found, name, **labels) == 2


async def test_figure_without_a_source_is_null_in_stats_and_absent_in_metrics(
    own_wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_wire.engine.warden, "read_totals", lambda: None)
    stats = (await own_wire.request("GET", "/v1/stats")).json()
    assert stats["cpu"]["trees_seconds"] is stats["memory"]["commands_bytes"] is None
    assert stats["disk"]["base_dir"] == {"used_bytes": None, "limit_bytes": None}
    assert (stats["cpu"]["load_1m"] is None) == is_gvisor()
    found = await scrape(own_wire)
    names = {name for name, _ in found}
    assert "execd_processes" not in names
    assert "execd_directory_limit_bytes" not in names
    parts = {dict(labels)["part"] for name, labels in found if name == "execd_memory_bytes"}
    assert parts == {"daemon", "warden"}
    parts = {dict(labels)["part"] for name, labels in found if name == "execd_cpu_seconds_total"}
    assert parts == {"daemon", "warden"}
    assert value(found, "execd_memory_bytes", part="daemon") > 0


async def test_rows_are_all_values_of_closed_sets(own_wire: Wire) -> None:
    counters, stats = own_wire.engine.counters, own_wire.engine.stats()
    counters.add_dialect("a_wing")
    for family in families():
        rows = family.read(stats, counters)
        if isinstance(rows, Histogram):
            assert not family.labels
            continue
        assert {len(row) for row in rows} == {len(family.labels)}
        for n, label in enumerate(family.labels):
            found = {row[n] for row in rows} - {""}
            assert found == CLOSED_SETS[family.name, label], (family.name, label)
    labels = {(family.name, label) for family in families() for label in family.labels}
    assert labels == CLOSED_SETS.keys()


async def test_every_series_has_its_figure_of_stats(own_wire: Wire) -> None:
    """A reader that reads the wrong figure would pass all other tests."""
    engine = own_wire.engine
    stats = engine.stats()
    numbers = iter(range(1000, 10_000))
    planted = plant(msgspec.to_builtins(stats), numbers)
    unique = msgspec.convert(planted, type(stats), strict=False)
    found = samples(
        text_string_to_metric_families(render(families(), unique, engine.counters, Format.TEXT))
    )
    plain = {
        (name, labels): n
        for (name, labels), n in found.items()
        if not name.startswith(("execd_executions_total", "execd_build_info"))
        and not any(
            name.startswith(family.name)
            for family in families()
            if family.kind is MetricKind.HISTOGRAM
        )
    }
    shown = [n for n in plain.values() if n >= 1000]
    assert len(set(shown)) == len(shown), "a figure is shown twice"
    assert value(found, "execd_memory_bytes", part="warden") == planted["memory"]["warden_bytes"]
    assert value(found, "execd_live_executions", state="QUEUED") == planted["executions"]["queued"]
    assert value(found, "execd_http_sent_bytes_total") == planted["traffic"]["sent_bytes"]
    # Not metrics: the load is the machine's, the ends by reason have the dialect too, and the log
    # warns when held pipes become many.
    executions = planted["executions"]
    hidden = {
        planted["cpu"]["load_1m"],
        executions["held_pipes"],
        *executions["ended"].values(),
    }
    assert all_numbers(planted) - set(shown) == hidden


def plant(figures: dict[str, Any], numbers: Any) -> dict[str, Any]:
    """Put another number in the place of each figure."""
    return {
        name: plant(figure, numbers)
        if isinstance(figure, dict)
        else figure
        if isinstance(figure, bool | str)
        else next(numbers)
        for name, figure in figures.items()
    }


def all_numbers(figures: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for figure in figures.values():
        if isinstance(figure, dict):
            found |= all_numbers(figure)
        elif not isinstance(figure, bool | str):
            found.add(figure)
    return found


async def test_metrics_need_the_token(serve: Callable[..., Awaitable[Wire]]) -> None:
    wire = await serve(token_sha256="0" * 64)
    for path in ("/metrics", "/v1/stats"):
        assert (await wire.request("GET", path)).http_status == 401
