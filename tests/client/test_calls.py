"""When a request is repeated, how long the client waits, and when it gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from execd_client import (
    ApiError,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unreachable,
    cells,
    executions,
    transfers,
    watching,
)
from execd_client.calls import PROBE, Patience, call
from execd_client.effects import Cut, NextEvent, Open, Opened, Reply, Request, Send
from tests.client.plays import Clock, play, reply

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = Request("GET", "/v1/stats")
BUSY = {"code": "RESOURCE_EXHAUSTED", "message": "full"}


def played(answers: list[Any], *, may_repeat: bool = True, **limits: float) -> tuple[Any, float]:
    """The reply, and the seconds that have passed."""
    clock = Clock()
    left: Iterator[Any] = iter(answers)
    plan = call(GET, Patience(clock=clock, **limits), may_repeat=may_repeat)
    found, _ = play(plan, clock, lambda _: next(left))
    return found, clock.seconds - 1000


def test_a_broken_connection_is_tried_again() -> None:
    found, waited = played([Cut("reset", was_sent=True), Cut("no", was_sent=False), reply()])
    assert found.http_status == 200
    assert 0 < waited < 1


def test_an_answer_of_a_router_that_lost_execds_answer_is_a_broken_connection() -> None:
    found, _ = played([reply(502), reply(504), reply()])
    assert found.http_status == 200
    with pytest.raises(ConnectionLost):
        played([reply(502)], may_repeat=False)


def test_a_503_of_a_router_is_a_broken_connection() -> None:
    found, _ = played([reply(503, "upstream connect error"), reply(503), reply()])
    assert found.http_status == 200
    with pytest.raises(ConnectionLost):
        played([reply(503)], may_repeat=False)


@pytest.mark.parametrize("found", [reply(302, location="/login"), reply(200, "<html>login")])
def test_an_answer_that_is_not_execds_is_said(found: Reply) -> None:
    clock = Clock()
    for plan in (
        executions.run("/x", {}, Patience(clock=clock)),
        cells.list_all(Patience(clock=clock)),
        transfers.stat("x", Patience(clock=clock)),
    ):
        with pytest.raises(ApiError, match=r"this is not execd: HTTP status [23]0"):
            play(plan, clock, lambda _: found)


def test_a_page_instead_of_a_stream_is_said_at_once() -> None:
    clock = Clock()
    page = Opened(200, {"content-type": "text/html"}, 1)
    for plan in (
        executions.follow("/x", {"id": "x"}, Patience(clock=clock)),
        transfers.chunks("x", Patience(clock=clock)),
        watching.follow_changes(".", False, None, Patience(clock=clock)),
    ):
        with pytest.raises(ApiError, match="this is not execd: HTTP status 200 text/html"):
            play(plan, clock, lambda _: page)
    assert clock.seconds == 1000


def test_parts_of_events_are_asked_of_an_older_execd_once() -> None:
    clock = Clock()
    paths: list[str] = []
    unknown = reply(400, {"code": "INVALID_ARGUMENT", "message": "unknown field parts"})
    exited = '{"exit_code":0}'

    def answer(effect: Any) -> Any:
        if isinstance(effect, Open):
            paths.append(effect.request.path)
            is_asked = "parts=true" in effect.request.path
            return unknown if is_asked else Opened(200, {"content-type": executions.SSE}, 1)
        if isinstance(effect, NextEvent):
            is_last = len(paths) == 5
            return ("exited", "2", exited) if is_last else Cut("idle", was_sent=True)
        return reply() if isinstance(effect, Send) else None

    plan = executions.follow("", {"id": "x"}, Patience(clock=clock), has_started=True, after=1)
    play(plan, clock, answer)
    assert ["parts=true" in path for path in paths] == [False, True, False, False, False]


def test_a_request_with_an_effect_each_time_is_not_sent_twice() -> None:
    with pytest.raises(ConnectionLost, match="may have carried out"):
        played([Cut("reset", was_sent=True)], may_repeat=False)
    found, _ = played([Cut("refused", was_sent=False), reply()], may_repeat=False)
    assert found.http_status == 200


def test_retry_after_is_honoured() -> None:
    found, waited = played([reply(429, BUSY, retry_after="7"), reply()], may_repeat=False)
    assert found.http_status == 200
    assert 7 <= waited < 8


def test_a_refusal_is_told_when_patience_ends() -> None:
    with pytest.raises(ResourceExhausted, match="full") as caught:
        played([reply(429, BUSY, retry_after="7")] * 9, retry_seconds=20)
    assert caught.value.retry_after_seconds == 7
    said = {"code": "UNAVAILABLE", "message": "draining"}
    with pytest.raises(Unavailable, match="draining"):
        played([reply(503, said)])


def test_nobody_there_is_unreachable_after_retry_seconds() -> None:
    clock = Clock()
    with pytest.raises(Unreachable, match="in 5 s"):
        play(call(GET, Patience(5, clock=clock)), clock, lambda _: Cut("refused", was_sent=False))
    assert 1005 < clock.seconds < 1008


def test_an_error_is_not_repeated() -> None:
    with pytest.raises(NotFound, match="gone") as caught:
        played([reply(404, {"code": "NOT_FOUND", "message": "gone"}, x_request_id="r1")])
    assert (caught.value.http_status, caught.value.request_id) == (404, "r1")


def test_the_deadline_holds_whatever_happens() -> None:
    clock = Clock()

    def silent(effect: Any) -> Cut | Reply:
        if effect.request.path == PROBE.path:
            return reply()
        clock.seconds += effect.request.silence_seconds
        return Cut("ReadTimeout", was_sent=True)

    with pytest.raises(DeadlineExceeded, match="deadline_seconds=60"):
        play(call(GET, Patience(deadline_seconds=60, clock=clock)), clock, silent)
    assert 1060 <= clock.seconds < 1061


def test_the_deadline_holds_for_the_probes_of_a_daemon_that_has_stopped() -> None:
    clock = Clock()

    def stopped(effect: Any) -> Cut:
        clock.seconds += effect.request.silence_seconds
        return Cut("ReadTimeout", was_sent=True)

    request = replace(GET, silence_seconds=1.5)
    with pytest.raises(DeadlineExceeded, match="deadline_seconds=2"):
        play(call(request, Patience(deadline_seconds=2, clock=clock)), clock, stopped)
    assert 1002 <= clock.seconds < 1002.1


def test_a_daemon_that_answers_probes_is_waited_for() -> None:
    """A router cuts the idle connection again and again; the command takes ten minutes."""
    clock = Clock()

    def cut_by_a_router(effect: Any) -> Cut | Reply:
        if effect.request.path == PROBE.path:
            return reply()
        clock.seconds += 25
        return reply() if clock.seconds > 1600 else Cut("reset", was_sent=True)

    found, asked = play(call(GET, Patience(clock=clock)), clock, cut_by_a_router)
    assert found.http_status == 200
    assert len([effect for effect in asked if isinstance(effect, Send)]) > 40


def test_a_request_that_is_cut_at_once_each_time_fails_though_probes_are_answered() -> None:
    clock = Clock()
    with pytest.raises(ConnectionLost):
        play(
            call(GET, Patience(30, clock=clock)),
            clock,
            lambda sent: reply() if sent.request is PROBE else Cut("reset", was_sent=True),
        )
    assert clock.seconds < 1040


def test_pauses_grow_to_two_seconds() -> None:
    clock = Clock()
    plan = call(GET, Patience(60, clock=clock))
    pauses: list[float] = []

    def refused(_: Any) -> Cut:
        return Cut("refused", was_sent=False)

    with pytest.raises(Unreachable):
        play(plan, clock, refused, pauses)
    assert pauses[0] <= 0.05
    assert 1 <= max(pauses) <= 2
