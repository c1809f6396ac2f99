"""The daemon samples memory itself while the warden is silent: decision, samples, a stopped
warden."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.proc import process_tree
from execd.proc.memory_meter import Reading
from execd.proc.memory_stand_in import (
    Action,
    KilledProcess,
    LastResort,
    MemoryStandIn,
    end_largest_process,
)
from execd.proc.messages import Configure, Exited
from tests.proc.test_memory_limits import (
    HOLD,
    PACED_HOG,
    assert_untouched,
    guarded,
    run_python,
    settled_used_bytes,
)
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.proc.conftest import Wardens

MIB = 1 << 20


def decisions(*left: int, may_end_all: bool = True) -> list[str]:
    last_resort = LastResort(100, may_end_all=may_end_all)
    return [last_resort.decide(each).name for each in left]


def test_nothing_is_done_while_the_reserve_is_whole() -> None:
    assert decisions(1000, 100) == ["NOTHING", "NOTHING"]


def test_the_largest_ends_at_the_reserve_and_the_next_when_half_of_the_rest_is_gone() -> None:
    assert decisions(99, 60, 48, 30, 23) == [
        "END_LARGEST",
        "NOTHING",
        "END_LARGEST",
        "NOTHING",
        "END_ALL",
    ]


def test_memory_that_comes_back_ends_nobody_else() -> None:
    assert decisions(60, 40, 70, 100, 99) == [
        "END_LARGEST",
        "NOTHING",
        "NOTHING",
        "NOTHING",
        "END_LARGEST",
    ]


def test_everything_never_ends_for_memory_that_others_fill_too() -> None:
    assert decisions(20, 9, 4, may_end_all=False) == ["END_LARGEST"] * 3
    assert Action.END_ALL.name not in decisions(3, 0, -5, -50, may_end_all=False)


class Stage:
    """A stand-in with scripted memory; notes the actions of the stand-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, configuration: Configure) -> None:
        self.left_mib = 500
        self.shared_mib = 0
        self.done: list[str] = []
        self.least_bytes: list[int] = []
        self.largest = KilledProcess(7, 300 * MIB, frozenset())
        monkeypatch.setattr("execd.proc.memory_stand_in.end_largest_process", self._end_largest)
        self.stand_in = MemoryStandIn(
            asyncio.get_running_loop(),
            configuration,
            warden_pid=lambda: 1,
            on_killed=lambda ended: self.done.append(f"told of {ended.pid}"),
            end_all=lambda: self.done.append("all"),
        )
        meter = self.stand_in._monitor
        monkeypatch.setattr(meter, "_read", self._read)

    def _read(self, now: float) -> Reading:
        reading = Reading(1000 * MIB, (1000 - self.left_mib) * MIB, 0, self.shared_mib * MIB)
        self.stand_in._monitor.policy.record(now, reading)
        return reading

    def _end_largest(self, _root: int, least_bytes: int) -> KilledProcess | None:
        self.least_bytes.append(least_bytes)
        return self.largest if self.largest.rss_bytes > least_bytes else None


@pytest.fixture
async def stage(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Stage]:
    made = Stage(monkeypatch, getattr(request, "param", Configure(100 * MIB, 0)))
    made.stand_in.start()
    yield made
    await made.stand_in.close()


async def test_a_silent_warden_is_stood_in_for_until_it_answers(stage: Stage) -> None:
    stage.left_mib = 90
    stage.stand_in.begin()
    stage.stand_in.begin()
    await wait_until_async(lambda: stage.done == ["told of 7"])
    stage.left_mib = 20
    await wait_until_async(lambda: "all" in stage.done)
    stage.stand_in.end()
    assert stage.stand_in._timer is None


async def test_files_in_memory_are_no_process(stage: Stage) -> None:
    stage.left_mib, stage.shared_mib = 90, 400
    stage.stand_in.begin()
    await wait_until_async(lambda: stage.least_bytes == [400 * MIB])
    stage.left_mib = 200
    assert stage.done == []


@pytest.mark.parametrize("stage", [Configure(100 * MIB, 0, "", True)], indirect=True)
async def test_other_programs_of_the_machine_are_no_process_of_ours(stage: Stage) -> None:
    stage.left_mib = 60
    stage.stand_in.begin()
    await wait_until_async(lambda: stage.least_bytes == [40 * MIB])


@pytest.mark.parametrize("stage", [Configure(0, 0)], indirect=True)
async def test_without_a_reserve_nobody_looks(stage: Stage) -> None:
    stage.stand_in.begin()
    assert stage.stand_in._timer is None


STOPPER = (
    "import os, sys, time\nwhile True:\n    os.kill(int(sys.argv[1]), 19)\n    time.sleep(0.0005)"
)


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Stop the process again and again, as ``kill -STOP 1`` in a loop does in gVisor."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", STOPPER, str(pid)]) as stopper:
        try:
            yield
        finally:
            stopper.kill()


@pytest.mark.alone
async def test_hog_beside_a_stopped_warden_ends_for_memory_and_its_neighbour_does_not(
    wardens: Wardens,
) -> None:
    # A silent warden is not replaced, however long the silence: all user code would end with the
    # warden.
    async with guarded(
        wardens,
        reserve_bytes=600 * MIB,
        pod_bytes=await settled_used_bytes() + 1300 * MIB,
        dead_seconds=60.0,
    ) as client:
        beside = await run_python(wardens, client, HOLD, 60)
        await beside.says("holding")
        hog = await run_python(wardens, client, PACED_HOG, 400)
        assert client.pid is not None
        with stopping(client.pid):
            await wait_until_async(lambda: bool(hog.limits_reached), 30)
        ended = await asyncio.wait_for(hog.child.exited, 30)
        assert isinstance(ended, Exited)
        assert hog.limits_reached[0][0] == "memory"
        assert "survived" not in hog.text
        assert_untouched(beside)


@pytest.mark.parametrize("least_bytes", [0, 1 << 50])
def test_the_largest_process_ends_if_it_is_large_enough(least_bytes: int) -> None:
    root = subprocess.Popen(["sh", "-c", "sleep 1000 & wait $!"], start_new_session=True)
    try:
        # In the middle of an exec a process has no memory.
        wait_until(lambda: [c.name() for c in psutil.Process(root.pid).children()] == ["sleep"], 20)
        [child] = psutil.Process(root.pid).children()
        killed = end_largest_process(root.pid, least_bytes)
        if least_bytes:
            assert killed is None
            assert child.is_running()
            # The shell must reap its child: an orphan would come to pytest where pytest is PID 1.
            child.kill()
        else:
            assert killed is not None
            assert killed.pid == child.pid
        assert root.wait(20) == 128 + signal.SIGKILL
    finally:
        if root.poll() is None:
            os.killpg(root.pid, signal.SIGKILL)
            root.wait()


def test_a_process_that_took_over_the_number_of_the_largest_is_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        seen = process_tree.read_process(other.pid)
        assert seen is not None
        monkeypatch.setattr(
            process_tree, "descendants", lambda *_: [seen._replace(start=seen.start - 1)]
        )
        assert end_largest_process(os.getpid(), 0) is None
        assert other.poll() is None
        other.kill()
