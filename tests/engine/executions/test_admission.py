from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from execd.engine.executions.admission import Admission, Decision
from tests import drawn

RUN, WAIT, REFUSE = Decision.RUN, Decision.WAIT, Decision.REFUSE
STARTING_SECONDS = 10


def places(max_running: int, max_queued: int) -> Admission:
    """As many may start as may run."""
    return Admission(max_running, max_queued, max_running, STARTING_SECONDS)


def starts(max_starting: int) -> Admission:
    """As many may run as like."""
    return Admission(100, 100, max_starting, STARTING_SECONDS)


def test_the_first_run_the_next_wait_and_the_rest_are_sent_away() -> None:
    admission = places(2, 1)
    assert [admission.arrive(key, 0) for key in "abcd"] == [RUN, RUN, WAIT, REFUSE]
    assert (admission.running, admission.queued) == (2, 1)


def test_a_place_goes_to_whoever_has_waited_longest() -> None:
    admission = places(1, 3)
    for key in "abcd":
        admission.arrive(key, 0)
    assert [admission.leave(key, 0) for key in "abcd"] == [["b"], ["c"], ["d"], []]
    assert (admission.running, admission.queued) == (0, 0)


def test_giving_up_in_the_queue_gives_no_place_away() -> None:
    admission = places(1, 3)
    for key in "abc":
        admission.arrive(key, 0)
    assert admission.leave("b", 0) == []
    assert admission.leave("a", 0) == ["c"]


def test_without_a_queue_whoever_finds_no_place_is_sent_away() -> None:
    admission = places(1, 0)
    assert [
        admission.arrive("a", 0),
        admission.arrive("b", 0),
        admission.leave("a", 0),
        admission.arrive("b", 0),
    ] == [RUN, REFUSE, [], RUN]


@pytest.mark.parametrize("key", ["never came", "refused", "left"])
def test_a_place_that_was_not_given_cannot_be_given_back(key: str) -> None:
    admission = places(1, 0)
    admission.arrive("left", 0)
    admission.arrive("refused", 0)
    admission.leave("left", 0)
    with pytest.raises(KeyError):
        admission.leave(key, 0)


def test_few_start_at_once_and_the_rest_wait_though_there_are_places() -> None:
    admission = starts(2)
    assert [admission.arrive(key, 0) for key in "abcd"] == [RUN, RUN, WAIT, WAIT]
    assert (admission.running, admission.queued) == (2, 2)


def test_one_that_ends_or_rests_lets_the_next_one_start() -> None:
    admission = starts(2)
    for key in "abcd":
        admission.arrive(key, 0)
    assert admission.leave("a", 1) == ["c"]
    assert admission.has_started("b", 1) == ["d"]
    assert (admission.running, admission.queued) == (3, 0)


def test_a_start_is_given_back_once() -> None:
    admission = starts(1)
    for key in "abcd":
        admission.arrive(key, 0)
    assert [
        admission.has_started("a", 1),
        admission.has_started("a", 1),
        admission.leave("a", 1),
    ] == [["b"], [], []]


def test_a_start_is_over_by_its_age() -> None:
    admission = starts(2)
    for key, now in zip("abcd", (0, 3, 3, 3), strict=True):
        admission.arrive(key, now)
    assert admission.next_start_over == STARTING_SECONDS
    assert admission.let_in(STARTING_SECONDS - 1) == []
    assert admission.let_in(STARTING_SECONDS) == ["c"]
    assert admission.next_start_over == STARTING_SECONDS + 3


def test_starts_that_nobody_waited_for_are_forgotten_by_their_age() -> None:
    admission = starts(1)
    admission.arrive("a", 0)
    assert admission.next_start_over is None
    assert admission.arrive("b", STARTING_SECONDS) is RUN


def test_whoever_waits_for_a_start_takes_no_place_of_the_queue() -> None:
    admission = Admission(3, 0, 1, STARTING_SECONDS)
    assert [admission.arrive(key, 0) for key in "abcd"] == [RUN, WAIT, WAIT, REFUSE]


class AdmissionModel(RuleBasedStateMachine):
    """Against plain lists, and a clock."""

    @initialize(
        max_running=st.integers(1, 4),
        max_queued=st.integers(0, 4),
        max_starting=st.integers(1, 4),
    )
    def begin(self, max_running: int, max_queued: int, max_starting: int) -> None:
        self.admission = Admission(max_running, max_queued, max_starting, STARTING_SECONDS)
        self.running: list[str] = []
        self.starting: dict[str, int] = {}
        self.waiting: list[str] = []
        self.arrived = 0
        self.now = 0

    @property
    def has_room(self) -> bool:
        bound = self.admission
        return len(self.running) < bound.max_running and len(self.starting) < bound.max_starting

    def grow_old(self) -> None:
        self.starting = {
            key: since
            for key, since in self.starting.items()
            if self.now < since + STARTING_SECONDS
        }

    def take_in(self, following: list[str]) -> None:
        """In the order of their arrival, and as many as there is room for."""
        self.grow_old()
        expected = []
        while self.waiting and self.has_room:
            expected.append(self.waiting.pop(0))
            self.running.append(expected[-1])
            self.starting[expected[-1]] = self.now
        assert following == expected

    @rule()
    def arrive(self) -> None:
        self.arrived += 1
        key = str(self.arrived)
        verdict = self.admission.arrive(key, self.now)
        if not self.waiting:
            self.grow_old()
        if self.has_room and not self.waiting:
            assert verdict is RUN
            self.running.append(key)
            self.starting[key] = self.now
        elif (
            len(self.running) + len(self.waiting)
            < self.admission.max_running + self.admission.max_queued
        ):
            assert verdict is WAIT
            self.waiting.append(key)
        else:
            assert verdict is REFUSE

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A command ends, is killed, or leaves the queue."""
        if not self.running + self.waiting:
            return
        key = data.draw(st.sampled_from(self.running + self.waiting))
        self.grow_old()
        following = self.admission.leave(key, self.now)
        if key in self.running:
            self.running.remove(key)
            self.starting.pop(key, None)
        else:
            self.waiting.remove(key)
        self.take_in(following)

    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        if not self.running:
            return
        key = data.draw(st.sampled_from(self.running))
        self.grow_old()
        following = self.admission.has_started(key, self.now)
        self.starting.pop(key, None)
        self.take_in(following)

    @rule(seconds=st.integers(1, STARTING_SECONDS))
    def time_passes(self, seconds: int) -> None:
        due = self.admission.next_start_over
        self.now += seconds
        if due is not None and due <= self.now:
            self.take_in(self.admission.let_in(self.now))

    @invariant()
    def as_many_as_allowed_run_and_nobody_waits_without_a_reason(self) -> None:
        drawn.note((self.now, self.running, self.waiting, self.starting))
        assert (self.admission.running, self.admission.queued) == (
            len(self.running),
            len(self.waiting),
        )
        assert len(self.running) <= self.admission.max_running
        assert len(self.starting) <= self.admission.max_starting
        if self.waiting and len(self.running) < self.admission.max_running:
            assert self.admission.next_start_over is not None, (
                "a time is known at which the first in the queue gets a start"
            )

    def teardown(self) -> None:
        """Every waiting command gets a turn if time passes and commands end."""
        while self.running or self.waiting:
            self.now += STARTING_SECONDS
            self.take_in(self.admission.let_in(self.now))
            if self.running:
                key = self.running.pop(0)
                self.starting.pop(key, None)
                self.take_in(self.admission.leave(key, self.now))


TestAdmissionModel = AdmissionModel.TestCase
