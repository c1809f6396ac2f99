"""How often a program may stop for a tracer. ``test_main`` has real traced programs."""

from __future__ import annotations

import errno
import signal

import pytest

from execd.warden import traced_stops
from execd.warden.traced_stops import COUNT_SECONDS, MOST_STOPS, TracedStops


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(pid, signal) instead of signals to real processes."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(
        traced_stops, "send_signal", lambda pid, number: found.append((pid, number))
    )
    return found


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(
        traced_stops.spawn, "detach_traced", lambda pid, number: found.append((pid, number))
    )
    return found


def test_a_program_with_too_many_stops_is_killed_and_others_go_on(
    killed: list[tuple[int, int]], resumed: list[tuple[int, int]]
) -> None:
    stops = TracedStops()
    for _ in range(MOST_STOPS):
        stops.resume(10, signal.SIGTRAP)
    stops.resume(11, signal.SIGTRAP)
    assert killed == []
    stops.resume(10, signal.SIGTRAP)
    assert killed == [(10, signal.SIGKILL)]
    assert len(resumed) == MOST_STOPS + 2


def test_stops_of_long_ago_do_not_count(
    killed: list[tuple[int, int]],
    resumed: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(traced_stops.time, "monotonic", lambda: now)
    stops = TracedStops()
    for _ in range(3):
        for _ in range(MOST_STOPS):
            stops.resume(10, signal.SIGTRAP)
        now += COUNT_SECONDS + 0.1
    assert killed == []


def test_a_program_that_was_killed_meanwhile_is_no_error(
    killed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int, number: int) -> None:
        raise OSError(errno.ESRCH, "no such process")

    monkeypatch.setattr(traced_stops.spawn, "detach_traced", gone)
    TracedStops().resume(10, signal.SIGTRAP)
    assert killed == []
