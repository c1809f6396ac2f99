"""The daemon samples memory itself while the warden is silent."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.proc.memory_meter import Reading
from execd.proc.memory_stand_in import MemoryStandIn
from execd.proc.messages import Configure
from tests.proc.test_memory_limits import PACED_HOG, guarded, run_python, settled_used_bytes
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.proc.conftest import Wardens

MIB = 1 << 20


class Stage:
    """A stand-in with scripted memory; counts the ends of all user code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, configuration: Configure) -> None:
        self.left_mib = 500
        self.runtime_mib = 0
        self.n_samples = 0
        self.n_ends = 0
        self.stand_in = MemoryStandIn(
            asyncio.get_running_loop(),
            configuration,
            runtime_bytes=lambda: self.runtime_mib * MIB,
            end_all=self._end_all,
        )
        monkeypatch.setattr(self.stand_in._monitor, "_read", self._read)

    def _read(self, now: float) -> Reading:
        self.n_samples += 1
        used_bytes = (1000 - self.left_mib) * MIB
        reading = Reading(1000 * MIB, used_bytes, used_bytes, 0)
        self.stand_in._monitor.policy.record(now, reading)
        return reading

    def _end_all(self) -> None:
        self.n_ends += 1

    async def sees(self, left_mib: int) -> int:
        """The ends after two samples of this memory."""
        self.left_mib = left_mib
        before = self.n_samples
        await wait_until_async(lambda: self.n_samples >= before + 2)
        return self.n_ends


@pytest.fixture
async def stage(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Stage]:
    made = Stage(monkeypatch, getattr(request, "param", Configure(100 * MIB, 0)))
    made.stand_in.start()
    yield made
    made.stand_in.close()


async def test_all_user_code_ends_when_three_quarters_of_the_reserve_are_gone(
    stage: Stage,
) -> None:
    stage.stand_in.begin()
    stage.stand_in.begin()
    assert await stage.sees(90) == 0
    assert await stage.sees(25) == 0
    assert await stage.sees(24) == 1
    assert await stage.sees(24) == 1, "memory does not shrink any more"
    assert await stage.sees(200) == 1
    stage.stand_in.end()
    assert stage.stand_in._timer is None


async def test_memory_of_the_runtime_counts_as_used(stage: Stage) -> None:
    stage.runtime_mib = 100
    stage.stand_in.begin()
    assert await stage.sees(124) == 1


async def test_a_pod_that_began_without_its_reserve_is_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, Configure(100 * MIB, 0))
    stage.left_mib = 20
    stage.stand_in.start()
    stage.stand_in.begin()
    assert await stage.sees(10) == 0
    stage.stand_in.close()


async def test_the_reserve_of_a_pod_of_another_size_holds(stage: Stage) -> None:
    stage.stand_in.configure(Configure(200 * MIB, 900 * MIB))
    stage.stand_in.begin()
    assert await stage.sees(151) == 0  # of the machine; 51 of the pod
    assert await stage.sees(149) == 1


@pytest.mark.parametrize(
    "stage",
    [Configure(0, 0), Configure(100 * MIB, 0, only_growth=True)],
    ids=["no reserve", "others fill the memory too"],
    indirect=True,
)
async def test_where_the_end_of_all_may_not_help_nobody_looks(stage: Stage) -> None:
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
async def test_hog_beside_a_stopped_warden_ends_with_the_warden(wardens: Wardens) -> None:
    async with guarded(
        wardens,
        reserve_bytes=600 * MIB,
        pod_bytes=await settled_used_bytes() + 1300 * MIB,
        ping_seconds=0.1,
    ) as client:
        hog = await run_python(wardens, client, PACED_HOG, 400)
        assert client.pid is not None
        with stopping(client.pid):
            await wait_until_async(hog.child.exited.done, 30)
        assert "survived" not in hog.text
