from __future__ import annotations

import math
import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from execd.proc.credential_socket import make_pair
from execd.proc.messages import Adopt
from execd.warden.adoption import ADOPTION_SECONDS, AdoptionFailed, PendingAdoptions

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

NOW = 100.0
ACCOUNT: Any = None


class Daemon:
    """PendingAdoptions with their poll, and the workers' ends of all pending adoptions."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.adoptions = PendingAdoptions(self.poll)
        self.ends: list[socket.socket] = []

    def expect(self, tag: int, now: float = NOW) -> socket.socket:
        wardens, workers = make_pair()
        self.ends.append(workers)
        self.adoptions.add(
            Adopt(tag, 0, "", [], 0, 0, 0, is_idle=False), wardens.detach(), ACCOUNT, now
        )
        return workers

    def ready(self) -> list[int]:
        return [fd for fd, _ in self.poll.poll(0)]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.adoptions.take_expired(math.inf)
    for end in made.ends:
        end.close()


def test_what_arrives_is_told_from_what_does_not_and_awaited_no_more(daemon: Daemon) -> None:
    first, _ = daemon.expect(1), daemon.expect(2)
    assert daemon.adoptions.take_ready(daemon.ready()) == []
    first.send(b"!")
    [adoption] = daemon.adoptions.take_ready([*daemon.ready(), 0, 12345])
    assert adoption.request.tag == 1
    assert daemon.ready() == []
    adoption.close()
    assert daemon.adoptions, "the other one is still awaited"


def test_the_kernel_says_who_greeted_and_only_a_child_that_leads_a_session_is_taken(
    daemon: Daemon,
) -> None:
    daemon.expect(1).send(b"!")
    [adoption] = daemon.adoptions.take_ready(daemon.ready())
    with pytest.raises(AdoptionFailed, match="no child of the warden"):
        adoption.receive(os.getpid())  # the sender was this process


def test_a_worker_that_ends_before_it_greets_has_not_greeted(daemon: Daemon) -> None:
    daemon.expect(1).close()
    [adoption] = daemon.adoptions.take_ready(daemon.ready())
    with pytest.raises(AdoptionFailed, match="it ended before it greeted"):
        adoption.receive(os.getpid())


def test_who_does_not_greet_in_time_is_given_up_and_the_others_are_not(daemon: Daemon) -> None:
    assert daemon.adoptions.due == math.inf
    daemon.expect(1)
    daemon.expect(2, NOW + 1)
    assert daemon.adoptions.due == NOW + ADOPTION_SECONDS
    assert daemon.adoptions.take_expired(NOW) == []
    assert [
        adoption.request.tag for adoption in daemon.adoptions.take_expired(NOW + ADOPTION_SECONDS)
    ] == [1]
    assert daemon.adoptions.due == NOW + 1 + ADOPTION_SECONDS


def test_who_is_given_up_by_name_is_closed(daemon: Daemon) -> None:
    first, second = daemon.expect(1), daemon.expect(2)
    daemon.adoptions.cancel(2)
    with pytest.raises(BrokenPipeError):
        second.send(b"!")
    first.send(b"!")
    [adoption] = daemon.adoptions.take_ready(daemon.ready())
    assert adoption.request.tag == 1
    adoption.close()


def test_giving_up_says_whether_somebody_was_awaited(daemon: Daemon) -> None:
    daemon.expect(1)
    assert [daemon.adoptions.cancel(tag) for tag in (2, 1, 1)] == [False, True, False]
