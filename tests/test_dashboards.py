"""docs/operating against the table of metrics: the dashboard, the alerts, and the actions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
import yaml

from execd.api.probes.families import MetricKind, families
from execd.engine.metrics.counters import Counters, Histogram
from execd.errors import ErrorCode
from execd.model import ExitReason
from tests.api.probes.test_families import CLOSED_SETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.engine.metrics.stats import Stats

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "operating"
PAGE = (ROOT / "docs" / "operating.md").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SERIES = {
    f"{family.name}{end}"
    for family in families()
    for end in (("_bucket", "_sum", "_count") if family.kind is MetricKind.HISTOGRAM else ("",))
}
PANELS = DASHBOARD["panels"]
SELECTOR = re.compile(r"\b(execd_\w+|up\b)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=|!=|!~)"([^"]*)"')
FROM_SCRAPING = {"pod"}
OF_PROMETHEUS = "up"
UNITS = {"bytes": "bytes", "Bps": "bytes", "s": "seconds"}


def expressions_of_the_dashboard() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", ())]


EXPRESSIONS = [*expressions_of_the_dashboard(), *(rule["expr"] for rule in RULES)]


def promtool(*words: str, text: str | None = None) -> str:
    if not shutil.which("promtool"):
        pytest.skip("no promtool on this machine")
    done = subprocess.run(
        ["promtool", *words],
        cwd=FOLDER,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_names_existing_series_and_label_values(expression: str) -> None:
    found = SELECTOR.findall(expression)
    assert found
    for name, matchers in found:
        if name == OF_PROMETHEUS:
            continue
        assert name in SERIES
        family = next(one for one in families() if name.startswith(one.name))
        for label, operator, value in MATCHER.findall(matchers):
            if label in FROM_SCRAPING:
                continue
            assert label in family.labels, (name, label)
            allowed = CLOSED_SETS[family.name, label]
            if operator in ("=~", "!~"):
                for alternative in value.split("|"):
                    assert any(re.fullmatch(alternative, one) for one in allowed), alternative
            else:
                assert value in allowed


def test_metrics_of_the_dashboard_are_all_metrics() -> None:
    shown = {name for text in expressions_of_the_dashboard() for name, _ in SELECTOR.findall(text)}
    plain = {re.sub("_bucket$", "", name) for name in shown}
    assert plain == {family.name for family in families()}


def test_dashboard_has_the_form_that_grafana_loads() -> None:
    assert DASHBOARD["title"] == "execd"
    assert DASHBOARD["schemaVersion"] >= 36
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "pod",
    }
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["title"]
            assert panel["description"]
            assert [target["refId"] for target in panel["targets"]] == sorted(
                {target["refId"] for target in panel["targets"]}
            )


def test_axis_with_a_unit_shows_metrics_of_this_unit() -> None:
    checked = 0
    for panel in PANELS:
        unit = UNITS.get(panel.get("fieldConfig", {}).get("defaults", {}).get("unit"))
        for target in panel.get("targets", ()) if unit else ():
            for name, _ in SELECTOR.findall(target["expr"]):
                assert re.search(f"_{unit}(_total|_bucket)?$", name), (panel["title"], name)
                checked += 1
    assert checked > 5


def test_threshold_of_a_quantile_is_a_bound_of_the_histogram() -> None:
    """Between two bounds a quantile is a guess."""
    found = {rule["expr"] for rule in RULES if "histogram_quantile" in rule["expr"]}
    for expression in found:
        (name,) = {name.removesuffix("_bucket") for name, _ in SELECTOR.findall(expression)}
        family = next(family for family in families() if family.name == name)
        histogram = family.read(cast("Stats", None), Counters())
        assert isinstance(histogram, Histogram)
        assert float(expression.rpartition(">")[2]) in histogram.bounds
    assert found


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_promtool_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"dashboard:{number}",
            "expr": text.replace("$pod", ".*").replace("$__rate_interval", "5m"),
        }
        for number, text in enumerate(expressions_of_the_dashboard())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


def test_promtool_finds_no_fault_in_the_alerts() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", "alerts.yml")


def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def alert_tests() -> Iterator[dict[str, Any]]:
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    for one in tests:
        yield from one["alert_rule_test"]


def test_each_alert_is_tested_to_fire() -> None:
    fired = {test["alertname"] for test in alert_tests() if test.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in RULES}


def section() -> str:
    return PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]


def test_metrics_of_the_page_exist() -> None:
    assert set(re.findall(r"`(execd_\w+)`", PAGE)) <= {family.name for family in families()}
    words = set(re.findall(r"`([A-Z_]{5,})`", section())) - {"QUEUED"}
    assert words <= set(get_args(ErrorCode))
    reasons = set(re.findall(r"`(\w+_(?:limit|killed|restarted))`", section()))
    assert reasons <= set(ExitReason)


def test_each_alert_has_an_action_of_a_metric_that_it_watches() -> None:
    rows = dict(re.findall(r"^\| `(Execd\w+)` \| as for `(execd_\w+|up)`", section(), re.MULTILINE))
    assert rows.keys() == {rule["alert"] for rule in RULES}
    actions = set(re.findall(r"^\| `(execd_\w+|up)` \| .+ \| .+\.? \|$", section(), re.MULTILINE))
    for rule in RULES:
        assert rows[rule["alert"]] in actions
        watched = {re.sub("_bucket$", "", name) for name, _ in SELECTOR.findall(rule["expr"])}
        assert rows[rule["alert"]] in watched
