from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from execd.proc.process_tree import Process
from execd.warden.tree_kill import (
    EAGER_SECONDS,
    KILL,
    REPORT_SECONDS,
    TERMINATE,
    Phase,
    Send,
    TreeKill,
)

LEADER = 10


def process(pid: int, *, group: int | None = None) -> Process:
    return Process(pid, "S", 1, group if group is not None else pid, pid, 0)


def test_with_a_grace_everybody_is_terminated_first_and_continued_after_it() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    assert kill.signals == TERMINATE == (signal.SIGTERM, signal.SIGCONT)
    assert kill.record_scan(100.1, [process(LEADER), process(11)]) == Send(TERMINATE, (11,))


def test_without_a_grace_everybody_is_killed_at_once() -> None:
    kill = TreeKill(100.0, 0.0, LEADER)
    assert kill.signals == KILL
    assert kill.record_scan(100.1, [process(LEADER), process(11)]) == Send(KILL, (LEADER, 11))


def test_nobody_is_terminated_twice_and_the_leaders_group_has_its_signal_already() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    kill.record_scan(100.1, [process(11), process(12, group=LEADER)])
    assert kill.record_scan(100.2, [process(11), process(12, group=LEADER), process(13)]) == Send(
        TERMINATE, (13,)
    )


def test_without_a_leader_its_group_is_terminated_one_by_one() -> None:
    kill = TreeKill(100.0, 1.0, None)
    assert kill.record_scan(100.1, [process(12, group=LEADER)]) == Send(TERMINATE, (12,))


def test_killing_begins_at_the_end_of_the_grace_and_not_before() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    assert not kill.advance_clock(100.999)
    assert kill.signals == TERMINATE
    assert kill.advance_clock(101.0)
    assert kill.signals == KILL
    assert not kill.advance_clock(102.0), "it begins once"


def test_in_killing_every_scan_kills_all_it_finds_again() -> None:
    kill = TreeKill(100.0, 0.0, LEADER)
    for began in 100.1, 100.2, 100.3:
        assert kill.record_scan(began, [process(11)]) == Send(KILL, (11,))
    assert kill.killed == {11}


def test_one_empty_scan_is_not_the_end_two_in_a_row_are() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    assert kill.record_scan(100.1, []) == Send((), ())
    assert kill.record_scan(100.2, [process(11)]) == Send(TERMINATE, (11,))
    assert kill.record_scan(100.3, []) == Send((), ())
    assert kill.record_scan(100.4, []) is None
    assert kill.phase is Phase.DONE
    assert (kill.killed, kill.survivors) == (set(), ())


def test_a_second_request_shortens_the_grace_and_never_lengthens_it() -> None:
    kill = TreeKill(100.0, 10.0, LEADER)
    kill.shorten_grace(100.5, 60.0)
    assert kill.kill_at == 110.0
    kill.shorten_grace(101.0, 0.0)
    assert kill.kill_at == 101.0
    assert kill.advance_clock(101.0)


def test_after_two_seconds_of_killing_it_names_who_is_left_and_goes_on() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    kill.advance_clock(101.0)
    assert kill.record_scan(101.0 + REPORT_SECONDS - 0.01, [process(12), process(11)]) == Send(
        KILL, (11, 12)
    )
    assert kill.survivors == ()
    assert kill.record_scan(101.0 + REPORT_SECONDS, [process(12), process(11)]) == Send(
        KILL, (11, 12)
    )
    assert kill.survivors == (11, 12)
    assert kill.record_scan(101.0 + 50, [process(12)]) == Send(KILL, (12,))
    assert kill.survivors == (12,)
    assert (kill.record_scan(151.0, []), kill.record_scan(152.0, [])) == (Send((), ()), None)
    assert kill.survivors == ()


def test_nobody_is_named_a_survivor_who_never_had_a_kill() -> None:
    kill = TreeKill(100.0, 0.0, LEADER)
    assert kill.record_scan(100.0 + 3 * REPORT_SECONDS, [process(11)]) == Send(KILL, (11,))
    assert kill.survivors == ()


def test_it_is_eager_for_ten_seconds_and_again_when_somebody_asks_again() -> None:
    kill = TreeKill(100.0, 1.0, LEADER)
    kill.is_reported = True
    assert kill.is_eager(100.9 + EAGER_SECONDS)
    assert not kill.is_eager(101.0 + EAGER_SECONDS)
    kill.shorten_grace(200.0, 0.0)
    assert not kill.is_reported


def test_while_the_grace_lasts_nobody_is_killed() -> None:
    kill = TreeKill(100.0, 60.0, LEADER)
    assert kill.record_scan(159.0, [process(11)]) is not None
    assert kill.phase is Phase.TERMINATING


class Forest:
    """Processes for a kill: a process dies of KILL, of TERM, or of nothing, and forks until
    death."""

    def __init__(self, obedient: list[bool], immortal: set[int], forks: list[int]) -> None:
        self.obedient = dict(enumerate(obedient, LEADER))
        self.alive = set(self.obedient)
        self.immortal = immortal
        self.forks = list(forks)
        self.terms: dict[int, int] = {}

    def receive(self, numbers: tuple[signal.Signals, ...], pids: tuple[int, ...]) -> None:
        for pid in pids:
            assert pid in self.alive, "signals go only to whom the scan has just shown"
            if signal.SIGTERM in numbers:
                self.terms[pid] = self.terms.get(pid, 0) + 1
            if pid not in self.immortal and (
                signal.SIGKILL in numbers or self.obedient.get(pid, False)
            ):
                self.alive.discard(pid)

    def fork(self) -> None:
        if self.alive and self.forks:
            self.alive.add(1000 + self.forks.pop())


@given(
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.sets(st.integers(LEADER, LEADER + 7), max_size=2),
    st.lists(st.integers(0, 10_000), max_size=6, unique=True),
    st.floats(0, 3),
    st.floats(0.005, 0.5),
)
def test_any_tree_is_gone_at_the_end_or_named_in_time(
    obedient: list[bool],
    immortal: set[int],
    forks: list[int],
    grace_seconds: float,
    scan_seconds: float,
) -> None:
    forest = Forest(obedient, immortal & set(range(LEADER, LEADER + len(obedient))), forks)
    now = 100.0
    kill = TreeKill(now, grace_seconds, None)
    while True:
        now += scan_seconds
        kill.advance_clock(now)
        phase = kill.phase
        send = kill.record_scan(now, [process(pid) for pid in sorted(forest.alive)])
        if send is None or (kill.survivors and now > 100.0 + grace_seconds + EAGER_SECONDS):
            break
        assert phase is not Phase.TERMINATING or now < 100.0 + grace_seconds
        forest.receive(send.numbers, send.pids)
        forest.fork()
        assert now < 100.0 + grace_seconds + EAGER_SECONDS + 2 * scan_seconds
    assert set(kill.survivors) == forest.alive
    assert forest.alive <= forest.immortal | {1000 + number for number in forks}
    assert all(count == 1 for count in forest.terms.values())
