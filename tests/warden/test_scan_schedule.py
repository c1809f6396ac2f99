"""The schedule of scans: their share of a CPU, and early scans for young jobs."""

from __future__ import annotations

import pytest

from execd.warden.scan_schedule import (
    FIRST_WATCH_SECONDS,
    KILL_SCAN_SECONDS,
    QUIET_SCAN_SECONDS,
    WATCH_SCAN_FACTOR,
    WATCH_SCAN_SECONDS,
    Schedule,
)

NOW = 1000.0
COUNT_SECONDS = 0.02
OLD_SECONDS = 3600.0


@pytest.fixture
def schedule() -> Schedule:
    schedule = Schedule(COUNT_SECONDS)
    schedule.record_job(NOW, is_only=True)
    return schedule


def test_a_young_job_is_looked_at_soon_and_an_old_one_seldom(schedule: Schedule) -> None:
    assert schedule.next_scan_due(kills=False) == NOW + FIRST_WATCH_SECONDS
    schedule.record_scan(NOW, 0.001, 5, youngest_seconds=0.4)
    assert schedule.next_scan_due(kills=False) == pytest.approx(NOW + 0.1)
    schedule.record_scan(NOW, 0.001, 5, OLD_SECONDS)
    assert schedule.next_scan_due(kills=False) == NOW + WATCH_SCAN_SECONDS[0]


def test_slow_scans_are_made_seldom_even_for_a_young_job(schedule: Schedule) -> None:
    schedule.record_scan(NOW, 0.06, 5000, OLD_SECONDS)
    earliest = NOW + 0.06 * WATCH_SCAN_FACTOR
    assert schedule.next_scan_due(kills=False) == pytest.approx(earliest)
    schedule.record_job(NOW, is_only=False)
    assert schedule.next_scan_due(kills=False) == pytest.approx(earliest)


def test_a_kill_is_scanned_for_at_once_and_only_while_there_is_one(schedule: Schedule) -> None:
    schedule.record_scan(NOW, 0.001, 5, OLD_SECONDS)
    schedule.record_kill(NOW + 0.1)
    assert schedule.next_scan_due(kills=True) == NOW + 0.1 + KILL_SCAN_SECONDS[0]
    assert schedule.next_scan_due(kills=False) == NOW + WATCH_SCAN_SECONDS[0]
    schedule.record_scan(NOW, 60.0, 5000, OLD_SECONDS)
    assert schedule.next_scan_due(kills=True) == NOW + KILL_SCAN_SECONDS[1]


def test_scans_are_a_minute_apart_without_user_code_and_come_soon_with_it(
    schedule: Schedule,
) -> None:
    schedule.record_scan(NOW, 0.001, 5, OLD_SECONDS)
    schedule.record_quiet(NOW)
    assert schedule.next_scan_due(kills=False) == NOW + QUIET_SCAN_SECONDS
    schedule.record_change(NOW + 10.0)
    assert schedule.next_scan_due(kills=False) == NOW + 10.0 + FIRST_WATCH_SECONDS


def test_a_crowd_that_stands_still_is_not_scanned_again_and_again(schedule: Schedule) -> None:
    schedule.record_scan(NOW, 0.02, 600, OLD_SECONDS)
    assert not schedule.is_worth_a_scan(600, 50, NOW + 0.1)
    assert schedule.is_worth_a_scan(750, 50, NOW + 0.1)
    assert schedule.is_worth_a_scan(600, 50, NOW + 0.02 * WATCH_SCAN_FACTOR)


def test_the_next_look_is_the_first_of_all_that_are_due(schedule: Schedule) -> None:
    schedule.record_scan(NOW, 0.001, 5, OLD_SECONDS)
    schedule.record_count(NOW + 0.001)
    assert (
        schedule.next_due(kills=False, counts=True)
        == schedule.next_count
        == NOW + 0.001 + COUNT_SECONDS
    )
    schedule.record_count(NOW + 60.0)
    assert schedule.next_due(kills=False, counts=True) == NOW + WATCH_SCAN_SECONDS[0]
    assert schedule.next_due(kills=True, counts=True) == NOW + KILL_SCAN_SECONDS[0]
