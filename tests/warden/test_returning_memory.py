from __future__ import annotations

import pytest

from execd.proc.process_tree import Process
from execd.warden.returning_memory import RETURN_SECONDS, ReturningMemory

LIVING = Process(10, "R", 1, 10, 10, 5, rss_bytes=8192, virtual_bytes=9000)
DYING = LIVING._replace(rss_bytes=0, virtual_bytes=0)


@pytest.mark.parametrize(
    ("later", "returning_bytes"),
    [
        (DYING, 8192),
        (LIVING, 0),
        (LIVING._replace(rss_bytes=0), 0),  # the kernel's figure is rough for small processes
        (DYING._replace(state="Z"), 0),
        (DYING._replace(start=6), 0),
    ],
)
def test_memory_that_was_seen_returns_while_its_process_has_no_address_space(
    later: Process, returning_bytes: int
) -> None:
    memory = ReturningMemory()
    assert memory.record_scan([LIVING], 1.0) == 0
    assert memory.record_scan([later], 1.1) == returning_bytes


def test_each_process_returns_what_it_had() -> None:
    memory = ReturningMemory()
    other = LIVING._replace(pid=11, rss_bytes=100)
    memory.record_scan([LIVING, other], 1.0)
    assert memory.record_scan([DYING, other._replace(rss_bytes=900)], 1.1) == 8192
    assert memory.record_scan([DYING, DYING._replace(pid=11)], 1.2) == 8192 + 900
    assert memory.record_scan([DYING._replace(pid=11)], 1.3) == 900
    assert memory.record_scan([], 1.4) == 0


def test_a_process_that_lives_on_without_an_address_space_returns_nothing_for_long() -> None:
    memory = ReturningMemory()
    memory.record_scan([LIVING], 1.0)
    assert memory.record_scan([DYING], 2.0) == 8192
    assert memory.record_scan([DYING], 2.0 + RETURN_SECONDS * 0.9) == 8192
    assert memory.record_scan([DYING], 2.0 + RETURN_SECONDS) == 0
    assert memory.record_scan([DYING], 9.0) == 0
