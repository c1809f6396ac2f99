from __future__ import annotations

import pytest

from execd.warden.sentry_memory import (
    BASE_BYTES,
    LEAVING_PROCESSES_OF_2024,
    LEFT_BYTES,
    RELEASE_OF_2024,
    TASK_BYTES,
    SentryMemory,
)


@pytest.fixture
def sentry() -> SentryMemory:
    return SentryMemory(RELEASE_OF_2024)


def test_the_moment_with_the_most_tasks_counts_for_good(sentry: SentryMemory) -> None:
    assert sentry.used_bytes == BASE_BYTES
    for n_tasks in (3, 200, 7):
        sentry.record_count(n_tasks)
    assert sentry.used_bytes == BASE_BYTES + 200 * TASK_BYTES


def test_each_process_leaves_something_in_a_release_of_2024(sentry: SentryMemory) -> None:
    for newest_pid in (40, 500, 450):  # a scan may miss a process that ended
        sentry.record_pid(newest_pid)
    assert sentry.used_bytes == BASE_BYTES + 500 * LEFT_BYTES


def test_after_the_first_thousand_processes_leave_nothing(sentry: SentryMemory) -> None:
    for newest_pid in (30_000, 32_000, 90, 100):  # the pids have begun anew
        sentry.record_pid(newest_pid)
    assert sentry.used_bytes == BASE_BYTES + LEAVING_PROCESSES_OF_2024 * LEFT_BYTES


def test_in_a_later_release_the_first_hundred_processes_leave_something() -> None:
    sentry = SentryMemory("4.19.0-gvisor")
    sentry.record_pid(5000)
    assert sentry.used_bytes == BASE_BYTES + 100 * LEFT_BYTES


@pytest.mark.parametrize(
    ("newest_pid", "most_tasks", "measured_mib"),
    [(73, 16, 27), (327, 25, 55), (532, 230, 136), (8000, 20, 190)],
)
def test_the_estimate_covers_what_was_measured(
    sentry: SentryMemory, newest_pid: int, most_tasks: int, measured_mib: int
) -> None:
    """Sentry, gofer and kernel memory of a sandbox that had begun so many processes."""
    sentry.record_pid(newest_pid)
    sentry.record_count(most_tasks)
    assert measured_mib << 20 <= sentry.used_bytes < 2 * (measured_mib << 20)
