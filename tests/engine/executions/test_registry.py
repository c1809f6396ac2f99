from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions.registry import Registry
from execd.model import State

DAY = 86_400.0


class Output:
    def __init__(self, disk_bytes: int) -> None:
        self.disk_bytes = disk_bytes


class Run:
    """As much of an Execution as the registry looks at."""

    def __init__(
        self,
        name: str,
        *,
        memory_bytes: int = 0,
        disk_bytes: int = 0,
        key: str | None = None,
        is_kept: bool = False,
        detached: bool = False,
    ) -> None:
        self.id = name
        self.key = key
        self.is_kept = is_kept or key is not None
        self.command = SimpleNamespace(detached=detached)
        self.state = State.RUNNING
        self.is_delivered = False
        self.error: Exception | None = None
        self.ended_monotonic = 0.0
        self.memory_bytes = memory_bytes
        self.is_read = False
        self.may_have_run = False
        self.output = Output(disk_bytes)

    @property
    def has_failed(self) -> bool:
        return self.error is not None and not self.may_have_run


def registry(
    max_finished: int = 100,
    max_seconds: float = DAY,
    max_memory_bytes: int = 1 << 30,
    kept_seconds: float = DAY,
) -> Any:
    return Registry(
        max_plain=max_finished,
        max_kept=max_finished,
        max_memory_bytes=max_memory_bytes,
        plain_seconds=max_seconds,
        kept_seconds=kept_seconds,
    )


def end(book: Any, run: Run, now: float = 0.0) -> list[str]:
    run.state, run.ended_monotonic = State.EXITED, now
    return [gone.id for gone in book.finished(run, now)]


def added(book: Any, *runs: Run, key: bytes | None = None) -> None:
    for run in runs:
        book.add(run, key)


def test_an_execution_is_found_while_it_lives_and_while_it_is_remembered() -> None:
    book, run = registry(), Run("a")
    added(book, run)
    assert book.get("a") is run
    assert list(book.live) == [run]
    end(book, run)
    assert book.get("a") is run
    assert list(book.live) == []
    assert book.get("b") is None


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    book = registry(max_finished=2)
    runs = [Run(name) for name in "abcd"]
    added(book, *runs)
    assert [end(book, run) for run in runs] == [[], [], ["a"], ["b"]]
    assert book.get("a") is None
    assert book.get("d") is runs[3]


def test_what_is_too_old_goes() -> None:
    book = registry(max_seconds=10)
    first, second = Run("a"), Run("b")
    added(book, first, second)
    end(book, first, 100.0)
    end(book, second, 105.0)
    assert book.expired(110.0) == []
    assert [run.id for run in book.expired(110.1)] == ["a"]
    assert [run.id for run in book.expired(200.0)] == ["b"]


def test_what_takes_too_much_memory_goes_oldest_first() -> None:
    book = registry(max_memory_bytes=100)
    runs = [
        Run(name, memory_bytes=size) for name, size in (("a", 60), ("b", 30), ("c", 50), ("d", 200))
    ]
    added(book, *runs)
    assert [end(book, run) for run in runs] == [[], [], ["a"], ["b", "c", "d"]]


def test_one_that_never_ran_is_not_remembered() -> None:
    book, run = registry(), Run("a")
    added(book, run)
    run.error = RuntimeError()
    assert end(book, run) == []
    assert book.get("a") is None


def test_one_that_was_accepted_and_never_ran_is_remembered_without_its_key() -> None:
    book, run = registry(kept_seconds=10), Run("a", key="k", detached=True)
    added(book, run)
    run.error = RuntimeError()
    assert end(book, run) == []
    assert (book.get("a"), book.by_key("k")) == (run, None)
    assert [gone.id for gone in book.expired(10.1)] == ["a"]


def test_executions_that_expire_one_after_the_other_are_forgotten_together() -> None:
    """While nothing runs, each time to forget wakes the daemon."""
    book = registry(max_finished=3600, max_seconds=3600.0)
    for second in range(3600):
        run = Run(str(second))
        added(book, run)
        assert end(book, run, float(second)) == []
    times = []
    while (due := book.next_expiry()) < math.inf:
        times.append(due)
        assert book.expired(due)
    assert times[0] == 3900.0
    assert min(after - before for before, after in pairwise(times)) >= 300.0


def test_a_repeated_request_joins_what_is_live_or_not_delivered() -> None:
    book, run = registry(), Run("a")
    added(book, run, key=b"k")
    assert book.joinable(b"k") is run
    assert book.joinable(b"other") is None
    end(book, run)
    assert book.joinable(b"k") is run
    run.is_delivered = True
    assert book.joinable(b"k") is None


def test_a_repeated_request_does_not_join_what_could_not_run() -> None:
    book, run = registry(), Run("a")
    added(book, run, key=b"k")
    run.error, run.state = RuntimeError(), State.EXITED
    assert book.joinable(b"k") is None


def test_forgetting_an_old_run_leaves_the_key_to_the_new_one() -> None:
    book = registry(max_finished=1)
    old, new, other = Run("a"), Run("b"), Run("c")
    added(book, old, key=b"k")
    old.is_delivered = True
    end(book, old)
    added(book, new, key=b"k")
    added(book, other)
    assert end(book, other) == ["a"]
    assert book.joinable(b"k") is new


def test_disk_is_made_free_largest_first_and_nobody_is_forgotten() -> None:
    book, order = registry(), []
    sizes = {"live": 9, "a": 0, "b": 2, "c": 5, "d": 5}
    runs = [Run(name, disk_bytes=size) for name, size in sizes.items()] + [
        Run("kept", disk_bytes=7, is_kept=True)
    ]
    read = Run("read", disk_bytes=9)
    read.is_read = True
    added(book, *runs, read)
    for run in (*runs[1:], read):
        end(book, run)
    while (largest := book.largest_on_disk()) is not None:
        order.append(largest.id)
        largest.output.disk_bytes = 0
    assert order == ["c", "d", "b", "kept"]
    assert all(book.get(run.id) is run for run in runs)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 20)), max_size=30),
    st.integers(0, 5),
    st.integers(0, 100),
    st.floats(0, 30),
)
def test_what_is_remembered_is_within_every_bound_and_the_newest(
    runs: list[tuple[int, float]], max_finished: int, max_memory_bytes: int, max_seconds: float
) -> None:
    book, now, kept = registry(max_finished, max_seconds, max_memory_bytes), 0.0, []
    for number, (size, pause) in enumerate(runs):
        now += pause
        run = Run(str(number), memory_bytes=size)
        added(book, run)
        kept.append(run)
        gone = end(book, run, now)
        assert gone == [run.id for run in kept[: len(gone)]]
        kept = kept[len(gone) :]
        assert len(kept) <= max_finished
        assert sum(run.memory_bytes for run in kept) <= max_memory_bytes
        assert all(now - run.ended_monotonic <= max_seconds for run in kept)
        assert all(book.get(run.id) is run for run in kept)
