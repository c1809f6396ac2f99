"""The daemon samples memory itself while the warden is silent: decision, samples, a stopped
warden."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
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
    end_process,
    find_largest_process,
)
from execd.proc.messages import Configure, Exited
from execd.proc.process_tree import Process
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
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.proc.conftest import Wardens

MIB = 1 << 20


def process(pid: int, *, rss_bytes: int) -> Process:
    return Process(pid, "S", 1, pid, pid, start=1, rss_bytes=rss_bytes, virtual_bytes=rss_bytes)


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


def test_after_an_end_of_nothing_the_next_sample_decides_anew() -> None:
    last_resort = LastResort(100, may_end_all=True)
    assert last_resort.decide(60) is Action.END_LARGEST
    assert last_resort.decide(60) is Action.NOTHING
    last_resort.retract()
    assert last_resort.decide(60) is Action.END_LARGEST


class Stage:
    """A stand-in with scripted memory; notes the actions of the stand-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, configuration: Configure) -> None:
        self._monkeypatch = monkeypatch
        self.left_mib = 500
        self.shared_mib = 0
        self.lingering_mib = 0
        """Memory given back that still shows as used."""
        self.runtime_mib = 0
        self.done: list[str] = []
        self.largest = process(7, rss_bytes=300 * MIB)
        self.gives_back = False
        self.n_scans = 0
        self.during_scan: Callable[[], None] = lambda: None
        monkeypatch.setattr("execd.proc.memory_stand_in.find_largest_process", self._find_largest)
        monkeypatch.setattr("execd.proc.memory_stand_in.end_process", self._end)
        self.stand_in = MemoryStandIn(
            asyncio.get_running_loop(),
            configuration,
            warden_pid=lambda: 1,
            runtime_bytes=lambda: self.runtime_mib * MIB,
            on_killed=lambda ended: self.done.append(f"told of {ended.pid}"),
            end_all=lambda: self.done.append("all"),
        )
        meter = self.stand_in._monitor
        monkeypatch.setattr(meter, "_read", self._read)

    def sample_once(self) -> None:
        """After the next sample there is none: another scan would decide from other memory."""
        self._monkeypatch.setattr("execd.proc.memory_stand_in.SAMPLE_SECONDS", 1000.0)

    def _read(self, now: float) -> Reading:
        used_bytes = (1000 - self.left_mib) * MIB
        anonymous_bytes = used_bytes - self.lingering_mib * MIB
        reading = Reading(1000 * MIB, used_bytes, anonymous_bytes, self.shared_mib * MIB)
        self.stand_in._monitor.policy.record(now, reading)
        return reading

    def _find_largest(self, _root: int) -> tuple[Process, bool]:
        self.n_scans += 1
        self.during_scan()
        return self.largest, self.gives_back

    def _end(self, _root: int, ended: Process) -> KilledProcess:
        return KilledProcess(ended.pid, ended.rss_bytes, frozenset())


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


async def ended_nothing(stage: Stage) -> bool:
    """Begin, and return whether the stand-in has ended no process after its scan."""
    stage.stand_in.begin()
    stage.sample_once()
    await wait_until_async(lambda: stage.stand_in._ending is not None)
    assert stage.stand_in._ending is not None
    await stage.stand_in._ending
    assert stage.n_scans == 1
    return stage.done == []


async def test_memory_of_the_runtime_counts_as_used(stage: Stage) -> None:
    stage.left_mib, stage.runtime_mib = 150, 60
    assert not await ended_nothing(stage)


@pytest.mark.parametrize(("shared_mib", "ended"), [(300, False), (299, True)])
async def test_files_in_memory_are_no_process(stage: Stage, shared_mib: int, ended: bool) -> None:
    stage.left_mib, stage.shared_mib = 90, shared_mib
    assert await ended_nothing(stage) is not ended


@pytest.mark.parametrize("stage", [Configure(100 * MIB, 0, "", True)], indirect=True)
@pytest.mark.parametrize(("held_mib", "ended"), [(40, False), (41, True)])
async def test_other_programs_of_the_machine_are_no_process_of_ours(
    stage: Stage, held_mib: int, ended: bool
) -> None:
    stage.left_mib, stage.largest = 60, process(7, rss_bytes=held_mib * MIB)
    assert await ended_nothing(stage) is not ended


async def test_nobody_ends_for_memory_that_came_back_during_the_scan(stage: Stage) -> None:
    stage.left_mib = 90
    stage.during_scan = lambda: setattr(stage, "left_mib", 100)
    assert await ended_nothing(stage)


@pytest.mark.parametrize(("lingering_mib", "ended"), [(10, False), (9, True)])
async def test_memory_given_back_during_the_scan_counts_before_it_shows(
    stage: Stage, lingering_mib: int, ended: bool
) -> None:
    stage.left_mib = 90
    stage.during_scan = lambda: setattr(stage, "lingering_mib", lingering_mib)
    assert await ended_nothing(stage) is not ended


@pytest.mark.parametrize(
    ("in_gvisor", "lingering_mib", "ended"), [(True, 10, False), (True, 9, True), (False, 10, True)]
)
async def test_memory_given_back_before_the_first_sample_counts_in_gvisor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, in_gvisor: bool, lingering_mib: int, ended: bool
) -> None:
    """The warden has ended the hog and is late for a moment: the largest process left is
    innocent."""
    monkeypatch.setattr("execd.proc.memory_stand_in.is_gvisor", lambda: in_gvisor)
    stage.left_mib, stage.lingering_mib = 90, lingering_mib
    assert await ended_nothing(stage) is not ended


async def test_nobody_ends_if_the_warden_answers_during_the_scan(stage: Stage) -> None:
    stage.left_mib = 90
    loop = asyncio.get_running_loop()
    stage.during_scan = lambda: wait_for(loop, stage.stand_in.end)
    assert await ended_nothing(stage)


def wait_for(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in the loop's thread, from another thread, and wait for the end of the call."""
    is_over = threading.Event()
    loop.call_soon_threadsafe(lambda: (call(), is_over.set()))
    is_over.wait(20)


async def test_memory_on_its_way_back_is_waited_for_and_not_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.left_mib, stage.gives_back = 90, True
    monkeypatch.setattr("execd.proc.memory_stand_in.MAX_WAIT_SECONDS", 1000.0)
    stage.stand_in.begin()
    await wait_until_async(lambda: stage.n_scans > 2)
    assert stage.done == []
    stage.stand_in._waits_until = asyncio.get_running_loop().time()
    await wait_until_async(lambda: stage.done == ["told of 7"])
    # A new shortage has a time of its own.
    stage.left_mib = 100
    await wait_until_async(lambda: stage.stand_in._waits_until == 0.0)


async def test_the_reserve_of_a_pod_of_another_size_holds(stage: Stage) -> None:
    stage.stand_in.configure(Configure(200 * MIB, 900 * MIB))
    stage.left_mib = 250  # of the machine; 150 of the pod
    stage.stand_in.begin()
    await wait_until_async(lambda: "told of 7" in stage.done)


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
    async with guarded(
        wardens,
        reserve_bytes=600 * MIB,
        pod_bytes=await settled_used_bytes() + 1300 * MIB,
        ping_seconds=0.1,
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


def test_the_largest_process_below_the_warden_is_found_and_ended() -> None:
    root = subprocess.Popen(["sh", "-c", "sleep 1000 & wait $!"], start_new_session=True)
    try:
        # In the middle of an exec a process has no memory.
        wait_until(lambda: [c.name() for c in psutil.Process(root.pid).children()] == ["sleep"], 20)
        [child] = psutil.Process(root.pid).children()
        found, _ = find_largest_process(root.pid)
        assert found is not None
        assert (found.pid, found.rss_bytes > 0) == (child.pid, True)
        killed = end_process(root.pid, found)
        assert killed is not None
        assert (killed.pid, killed.rss_bytes) == (child.pid, found.rss_bytes)
        assert root.wait(20) == 128 + signal.SIGKILL
    finally:
        if root.poll() is None:
            os.killpg(root.pid, signal.SIGKILL)
            root.wait()


GIVING_BACK = process(8, rss_bytes=0)


@pytest.mark.parametrize(
    ("later", "gives_back"),
    [
        (GIVING_BACK, True),
        (GIVING_BACK._replace(virtual_bytes=4096), False),  # an exec
        (GIVING_BACK._replace(state="Z"), False),
        (GIVING_BACK._replace(start=2), False),
        (None, False),
    ],
)
def test_a_process_that_gives_its_memory_back_is_told(
    monkeypatch: pytest.MonkeyPatch, later: Process | None, gives_back: bool
) -> None:
    below = [process(7, rss_bytes=300 * MIB), GIVING_BACK]
    monkeypatch.setattr(process_tree, "descendants", lambda *_: below)
    monkeypatch.setattr(process_tree, "read_process", {8: later}.get)
    largest, found = find_largest_process(1)
    assert largest is not None
    assert (largest.pid, found) == (7, gives_back)


def test_a_process_that_took_over_the_number_of_the_largest_is_spared() -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        seen = process_tree.read_process(other.pid)
        assert seen is not None
        assert end_process(os.getpid(), seen._replace(start=seen.start - 1)) is None
        assert other.poll() is None
        other.kill()
