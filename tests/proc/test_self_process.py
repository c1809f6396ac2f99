"""The sweep: no descendant is left, whatever a scan of a changing /proc has missed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from execd.proc import process_tree, self_process

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


def test_sweep_goes_on_after_scans_that_have_lost_a_process(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[process_tree.Scan] = []

    class LossyScan(process_tree.Scan):
        """Misses the child in the first scans, as if a parent in between had just ended."""

        def advance(self, budget_seconds: float) -> bool:
            is_complete = super().advance(budget_seconds)
            scans.append(self)
            if len(scans) <= self_process.QUIET_WHOLE_SCANS:
                del self.processes[child.pid]
            return is_complete

    monkeypatch.setattr(process_tree, "Scan", LossyScan)
    spared = frozenset(item.pid for item in self_process.descendants(60.0)) - {child.pid}
    scans.clear()
    assert self_process.sweep(60.0, spared) == ()
    assert process_tree.read_process(child.pid) is None
    assert len(scans) > self_process.QUIET_WHOLE_SCANS


def test_sweep_ends_only_after_enough_whole_scans_without_a_descendant(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whole scan may miss a process whose parent has just ended, also right after a kill."""
    whole_scans: list[bool] = []
    """Whether the child was in the scan, for each whole scan."""

    class NotingScan(process_tree.Scan):
        def advance(self, budget_seconds: float) -> bool:
            is_complete = super().advance(budget_seconds)
            if is_complete and len(self.processes) == self.count:
                whole_scans.append(child.pid in self.processes)
            return is_complete

    spared = frozenset(item.pid for item in self_process.descendants(60.0)) - {child.pid}
    monkeypatch.setattr(process_tree, "Scan", NotingScan)
    # Beside tests that end processes all the time, whole scans may be rare.
    monkeypatch.setattr(self_process, "QUIET_SCANS", 100_000)
    assert self_process.sweep(60.0, spared) == ()
    assert whole_scans[-self_process.QUIET_WHOLE_SCANS :] == [False] * (
        self_process.QUIET_WHOLE_SCANS
    )


def test_sweep_ends_where_no_scan_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[process_tree.Scan] = []

    class TornScan(process_tree.Scan):
        def advance(self, budget_seconds: float) -> bool:
            super().advance(budget_seconds)
            scans.append(self)
            return False

    spared = frozenset(item.pid for item in self_process.descendants(60.0))
    monkeypatch.setattr(process_tree, "Scan", TornScan)
    assert self_process.sweep(60.0, spared) == ()
    assert len(scans) == self_process.QUIET_SCANS
