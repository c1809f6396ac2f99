"""An upper bound of the number of tasks, at the cost of a system call."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from execd.proc.task_meter import TaskMeter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def meter() -> Iterator[TaskMeter]:
    meter = TaskMeter()
    yield meter
    os.close(meter._loadavg)  # the warden never closes the descriptor


def end_a_child() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)


def test_tasks_created_since_a_scan_count_on_top_of_those_that_the_scan_found(
    meter: TaskMeter,
) -> None:
    if meter.is_exact:
        pytest.skip("here the kernel counts the living: there is nothing to add")
    meter.mark()
    meter.reset(10)
    before = meter.max_tasks()
    end_a_child()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert meter.max_tasks() >= before + 2
    assert meter.read()[1] > 0


def test_tasks_created_during_a_scan_count_twice_rather_than_never(meter: TaskMeter) -> None:
    if meter.is_exact:
        pytest.skip("here the kernel counts the living: there is nothing to add")
    meter.mark()
    end_a_child()
    meter.reset(10)
    assert meter.max_tasks() >= 11


def test_past_the_largest_pid_the_count_goes_on(
    meter: TaskMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = iter([32_000, 40])
    monkeypatch.setattr(meter, "is_exact", False)
    monkeypatch.setattr(meter, "_newest_pid", lambda: next(newest))
    meter.mark()
    meter.reset(10)
    assert meter.max_tasks() == 50


def test_a_forgotten_task_counts_no_longer_and_the_tasks_before_it_do(
    meter: TaskMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = [100]
    monkeypatch.setattr(meter, "is_exact", False)
    monkeypatch.setattr(meter, "_newest_pid", lambda: newest[0])
    meter.mark()
    meter.reset(10)
    for pid in range(101, 801):  # more than a bomb makes
        newest[0] = pid
        meter.forget(1, pid)
        assert meter.max_tasks() == 10
    newest[0] = 803
    meter.forget(1, 803)
    assert meter.max_tasks() == 12
    newest[0] = 5  # past the largest pid
    meter.forget(1, 5)
    assert meter.read() == (16, 5)
