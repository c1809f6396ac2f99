from __future__ import annotations

import math
import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from execd.proc.credential_socket import make_pair
from execd.proc.messages import Adopt
from execd.warden.adoption import GREETING_SECONDS, Greetings, NotGreeted

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

NOW = 100.0
ACCOUNT: Any = None


class Hall:
    """Greetings, the poll that they register with, and the workers' ends of all that are
    expected."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.greetings = Greetings(self.poll)
        self.ends: list[socket.socket] = []

    def expect(self, tag: int, now: float = NOW) -> socket.socket:
        wardens, workers = make_pair()
        self.ends.append(workers)
        self.greetings.expect(
            Adopt(tag, "", [], 0, 0, 0, rests=False), wardens.detach(), ACCOUNT, now
        )
        return workers

    def ready(self) -> list[int]:
        return [fd for fd, _ in self.poll.poll(0)]


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.greetings.expired(math.inf)
    for end in made.ends:
        end.close()


def test_what_arrives_is_told_from_what_does_not_and_awaited_no_more(hall: Hall) -> None:
    first, _ = hall.expect(1), hall.expect(2)
    assert hall.greetings.arrived(hall.ready()) == []
    first.send(b"!")
    [greeting] = hall.greetings.arrived([*hall.ready(), 0, 12345])
    assert greeting.request.tag == 1
    assert hall.ready() == []
    greeting.close()
    assert hall.greetings, "the other one is still awaited"


def test_the_kernel_says_who_greeted_and_only_a_child_that_leads_a_session_is_taken(
    hall: Hall,
) -> None:
    hall.expect(1).send(b"!")
    [greeting] = hall.greetings.arrived(hall.ready())
    with pytest.raises(NotGreeted, match="no child of the warden"):
        greeting.receive(os.getpid())  # it was this process itself


def test_a_worker_that_ends_before_it_greets_has_not_greeted(hall: Hall) -> None:
    hall.expect(1).close()
    [greeting] = hall.greetings.arrived(hall.ready())
    with pytest.raises(NotGreeted):
        greeting.receive(os.getpid())


def test_who_does_not_greet_in_time_is_given_up_and_the_others_are_not(hall: Hall) -> None:
    assert hall.greetings.due == math.inf
    hall.expect(1)
    hall.expect(2, NOW + 1)
    assert hall.greetings.due == NOW + GREETING_SECONDS
    assert hall.greetings.expired(NOW) == []
    assert [
        greeting.request.tag for greeting in hall.greetings.expired(NOW + GREETING_SECONDS)
    ] == [1]
    assert hall.greetings.due == NOW + 1 + GREETING_SECONDS


def test_who_is_given_up_by_name_is_closed(hall: Hall) -> None:
    first, second = hall.expect(1), hall.expect(2)
    hall.greetings.give_up(2)
    with pytest.raises(BrokenPipeError):
        second.send(b"!")
    first.send(b"!")
    [greeting] = hall.greetings.arrived(hall.ready())
    assert greeting.request.tag == 1
    greeting.close()


def test_giving_up_says_whether_somebody_was_awaited(hall: Hall) -> None:
    hall.expect(1)
    assert [hall.greetings.give_up(tag) for tag in (2, 1, 1)] == [False, True, False]
