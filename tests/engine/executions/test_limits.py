from __future__ import annotations

import math

import pytest

from execd.config import Config
from execd.engine.executions.limits import least, narrower, own_limits
from execd.errors import InvalidArgument
from execd.model import Limits


@pytest.mark.parametrize("asked", [math.nan, 0.0, -1.0, -math.inf])
def test_a_time_that_is_no_duration_is_the_callers_fault(asked: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout_seconds: must be a positive number"):
        least(asked, 10.0, "timeout_seconds")


@pytest.mark.parametrize(("asked", "expected"), [(1e-9, 1e-9), (10.5, 10.0), (math.inf, 10.0)])
def test_the_smaller_time_holds(asked: float, expected: float) -> None:
    assert least(asked, 10.0, "timeout_seconds") == expected


def test_the_smaller_of_two_limits_holds_and_none_is_no_limit() -> None:
    asked = Limits(cpu_seconds=5, open_files=100, memory_bytes=0)
    own = Limits(cpu_seconds=4, open_files=200, processes=7)
    assert narrower(asked, own) == Limits(
        cpu_seconds=4, open_files=100, processes=7, memory_bytes=0
    )
    assert narrower(Limits(), own) == own


def test_a_request_cannot_raise_the_default_limit_of_open_files() -> None:
    own = own_limits(Config(base_dir="/b", state_dir="/s"))
    assert own.open_files == 65_536
    assert narrower(Limits(open_files=10**9), own).open_files == 65_536
