from __future__ import annotations

from execd.proc.messages import Exited


def test_an_end_without_a_number_of_processes_is_that_of_the_leader_alone() -> None:
    required = [name for name in Exited._fields if name not in Exited._field_defaults]
    assert Exited(*([0] * len(required))).processes == 1
