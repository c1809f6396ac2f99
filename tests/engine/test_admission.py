from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from execd.engine.admission import Admission, Verdict


def test_the_first_run_the_next_wait_and_the_rest_are_sent_away() -> None:
    admission = Admission(2, 1)
    assert [admission.arrive(key) for key in "abcd"] == [Verdict.RUN, Verdict.RUN, Verdict.WAIT, Verdict.REFUSE]
    assert (admission.running, admission.queued) == (2, 1)


def test_a_place_goes_to_whoever_has_waited_longest() -> None:
    admission = Admission(1, 3)
    for key in "abcd":
        admission.arrive(key)
    assert [admission.leave(key) for key in "abcd"] == ["b", "c", "d", None]
    assert (admission.running, admission.queued) == (0, 0)


def test_giving_up_in_the_queue_gives_no_place_away() -> None:
    admission = Admission(1, 3)
    for key in "abc":
        admission.arrive(key)
    assert admission.leave("b") is None
    assert admission.leave("a") == "c"


def test_without_a_queue_whoever_finds_no_place_is_sent_away() -> None:
    admission = Admission(1, 0)
    assert [admission.arrive("a"), admission.arrive("b"), admission.leave("a"), admission.arrive("b")] == [
        Verdict.RUN, Verdict.REFUSE, None, Verdict.RUN,
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["never came", "refused", "left"])
def test_a_place_that_was_not_given_cannot_be_given_back(key: str) -> None:
    admission = Admission(1, 0)
    admission.arrive("left")
    admission.arrive("refused")
    admission.leave("left")
    with pytest.raises(KeyError):
        admission.leave(key)


class AdmissionModel(RuleBasedStateMachine):
    """Against two plain lists."""

    @initialize(max_running=st.integers(1, 4), max_queued=st.integers(0, 4))
    def begin(self, max_running: int, max_queued: int) -> None:
        self.admission = Admission(max_running, max_queued)
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.arrived = 0

    @rule()
    def arrive(self) -> None:
        self.arrived += 1
        key = str(self.arrived)
        verdict = self.admission.arrive(key)
        if len(self.running) < self.admission.max_running:
            assert verdict is Verdict.RUN
            self.running.append(key)
        elif len(self.waiting) < self.admission.max_queued:
            assert verdict is Verdict.WAIT
            self.waiting.append(key)
        else:
            assert verdict is Verdict.REFUSE

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if not self.running + self.waiting:
            return
        key = data.draw(st.sampled_from(self.running + self.waiting))
        following = self.admission.leave(key)
        if key in self.waiting:
            self.waiting.remove(key)
            assert following is None
        else:
            self.running.remove(key)
            assert following == (self.waiting[0] if self.waiting else None)
            if following is not None:
                self.running.append(self.waiting.pop(0))

    @invariant()
    def as_many_as_allowed_run_and_nobody_waits_beside_a_free_place(self) -> None:
        assert (self.admission.running, self.admission.queued) == (len(self.running), len(self.waiting))
        assert len(self.running) <= self.admission.max_running
        assert not self.waiting or len(self.running) == self.admission.max_running


TestAdmissionModel = AdmissionModel.TestCase
