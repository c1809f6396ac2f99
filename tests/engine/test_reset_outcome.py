from __future__ import annotations

from execd.engine.reset_outcome import MAX_DIFFERENCES, ResetDifferences, ResetStep


def test_every_step_has_its_turn_and_verification_comes_last() -> None:
    taken = list(ResetStep)
    assert taken[-1] is ResetStep.VERIFY
    assert taken.index(ResetStep.HALT) < taken.index(ResetStep.RESTORE), "user code is dead"


def test_differences_above_the_most_are_counted_and_not_named() -> None:
    differences = ResetDifferences(items=[], total=0)
    for number in range(MAX_DIFFERENCES + 5):
        differences.add("process", "lives", pid=number)
    assert (len(differences.items), differences.total) == (MAX_DIFFERENCES, MAX_DIFFERENCES + 5)
