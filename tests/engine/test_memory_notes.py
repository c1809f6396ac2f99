"""Notes of a shortage of memory, for the next daemon. A real shortage, and the death of the daemon
in the shortage, are in tests/conformance/test_executions_restart.py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from execd.engine import memory_notes
from execd.engine.memory_notes import MemoryNotes
from execd.engine.store.journal import MemoryRecovered, MemoryShortage
from execd.model import Limits
from execd.proc.memory_meter import Reading
from execd.proc.pod_memory import PodMemory
from tests.engine.conftest import running, sh
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.store.journal import Record

MIB = 1 << 20
POD = PodMemory("setting", 1000 * MIB, 100 * MIB)
GVISORS_OWN_BYTES = 30 * MIB


class Meter:
    used_bytes = 0

    def read(self) -> Reading:
        return Reading(4000 * MIB, self.used_bytes, 0, 0)

    def close(self) -> None:
        pass


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    made = Meter()
    monkeypatch.setattr(memory_notes, "open_meter", lambda _cgroup: made)
    return made


class Notes(MemoryNotes):
    def __init__(self, memory: PodMemory = POD) -> None:
        self.written: list[Record] = []
        self.n_planned = 0
        super().__init__(memory, lambda: GVISORS_OWN_BYTES, self.written.append, self._plan)

    def _plan(self) -> None:
        self.n_planned += 1

    @property
    def kinds(self) -> list[type[Record]]:
        return [type(record) for record in self.written]


def test_a_shortage_is_noted_with_its_figures_and_its_end_once(meter: Meter) -> None:
    notes = Notes()
    meter.used_bytes = 671 * MIB
    notes.look()
    [shortage] = notes.written
    assert isinstance(shortage, MemoryShortage)
    assert (shortage.left_bytes, shortage.size_bytes) == (299 * MIB, 1000 * MIB)
    assert notes.n_planned == 1
    assert notes.step() == -math.inf
    meter.used_bytes = 670 * MIB
    assert notes.step() == math.inf
    notes.close()
    assert notes.kinds == [MemoryShortage, MemoryRecovered]


def test_an_orderly_end_of_the_daemon_ends_the_shortage(meter: Meter) -> None:
    notes = Notes()
    meter.used_bytes = 2000 * MIB
    notes.look()
    notes.close()
    assert notes.kinds == [MemoryShortage, MemoryRecovered]


def test_an_end_for_a_limit_of_its_own_with_room_in_the_pod_is_no_shortage(meter: Meter) -> None:
    notes = Notes()
    notes.look()
    assert notes.step() == math.inf
    assert not notes.written


@pytest.mark.parametrize("memory", [PodMemory("off"), PodMemory("unknown")])
def test_a_pod_of_unknown_size_has_no_shortage(meter: Meter, memory: PodMemory) -> None:
    meter.used_bytes = 2000 * MIB
    notes = Notes(memory)
    notes.look()
    assert not notes.written


async def test_the_housekeeper_notes_the_end_of_a_shortage(tmp_path: Path, meter: Meter) -> None:
    """``Meter`` is the engine's meter; the program that ends for its own limit is real."""
    meter.used_bytes = 2000 * MIB
    journal = tmp_path / "state" / "journal"
    async with running(tmp_path, pod_memory_bytes=1000 * MIB) as engine:
        limits = Limits(memory_bytes=64 * MIB)
        hog = await sh(engine, "x=$(head -c 200000000 /dev/zero | tr '\\0' x)", limits=limits)
        assert hog.result.exit_reason == "memory_limit"
        await wait_until_async(lambda: b'"memory_shortage"' in journal.read_bytes(), 20)
        meter.used_bytes = 0
        await wait_until_async(lambda: b'"memory_recovered"' in journal.read_bytes(), 20)
