"""The table of metrics: names, units and labels by the conventions of Prometheus."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from execd import __version__
from execd.api.probes.families import Family, MetricKind, families
from execd.engine.sessions.session_state import SessionState
from execd.errors import ReplyCode
from execd.model import OWN_DIALECTS, STREAMS, CellStatus, ExitReason, State

CLOSED_SETS: dict[tuple[str, str], set[str]] = {
    ("execd_build_info", "version"): {__version__},
    ("execd_executions_total", "dialect"): {*OWN_DIALECTS, "a_wing"},
    ("execd_executions_total", "exit_reason"): {*ExitReason},
    ("execd_live_executions", "state"): {State.QUEUED, State.RUNNING},
    ("execd_output_bytes_total", "stream"): {*STREAMS},
    ("execd_resets_total", "clean"): {"true", "false"},
    ("execd_sessions", "state"): {*SessionState},
    ("execd_cells_total", "status"): {*get_args(CellStatus)},
    ("execd_error_replies_total", "error_code"): {*get_args(ReplyCode)},
    ("execd_cpu_seconds_total", "part"): {"daemon", "warden", "trees"},
    ("execd_memory_bytes", "part"): {"daemon", "warden", "zygote", "sessions", "commands"},
    ("execd_directory_used_bytes", "directory"): {"base_dir", "tmp_dir"},
    ("execd_directory_limit_bytes", "directory"): {"base_dir", "tmp_dir"},
}


def name_of(family: Family) -> str:
    return family.name


@pytest.mark.parametrize("family", families(), ids=name_of)
def test_name_follows_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"execd(_[a-z]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER)
    assert not re.search(r"_(ms|millis|mb|kb|count|sum|bucket|counter|gauge)(_|$)", family.name)
    assert family.help[0].isupper() or family.help[0].isdigit()
    assert family.help.endswith(".")
    assert "\n" not in family.help


def test_units_are_base_units_at_the_end_of_the_name() -> None:
    with_unit = {family.name for family in families() if family.unit}
    for family in families():
        has_word = bool({"bytes", "seconds"} & set(family.name.split("_")))
        assert has_word == (family.name in with_unit), family.name
    assert {family.unit for family in families() if family.kind is MetricKind.HISTOGRAM} == {
        "seconds"
    }


def test_names_differ() -> None:
    names = [family.name.removesuffix("_total") for family in families()]
    assert len(set(names)) == len(names)
