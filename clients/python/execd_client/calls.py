"""Plans of one request: when to repeat, how long to wait, when to give up."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from execd_client.effects import Cut, Open, Opened, Reply, Request, Send, Sleep
from execd_client.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Unreachable,
    error_of,
    not_execd,
    retry_after_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd_client.effects import Plan

T = TypeVar("T")
RETRY_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
SHORT_ATTEMPT_SECONDS = 1.0
"""A daemon that answers probes and cuts a request sooner than this fails the request."""
REFUSED_FOR_NOW = (429, 503)
"""execd has not carried out the request."""
BY_A_ROUTER = (502, 504)
"""A router has lost execd's answer: the same as a broken connection."""
LEAST_SECONDS = 0.001
"""The least time limit of a request: a limit of zero would make the socket non-blocking."""
PROBE = Request("GET", "/healthz", silence_seconds=10.0)


class Patience:
    """How long an operation goes on without success. ``retry_seconds`` count from the last sign of
    life; ``deadline_seconds`` from the start of the operation, whatever happens."""

    def __init__(
        self,
        retry_seconds: float = RETRY_SECONDS,
        deadline_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._deadline = None if deadline_seconds is None else clock() + deadline_seconds
        self._deadline_seconds = deadline_seconds
        self._last_life = self._attempt_began = clock()
        self._pauses = 0

    def check(self) -> None:
        """Raises DeadlineExceeded."""
        if (left := self._seconds_left()) is not None and left <= 0:
            raise DeadlineExceeded(f"not done after deadline_seconds={self._deadline_seconds:g}")

    def alive(self) -> None:
        """The operation has made progress. Raises DeadlineExceeded: also an operation that makes
        progress all the time ends."""
        self.check()
        self._last_life = self._clock()
        self._pauses = 0

    def bounded(self, request: Request) -> Request:
        """The request of the next attempt. Raises DeadlineExceeded."""
        self._attempt_began = self._clock()
        if self._pauses == 0:
            self._last_life = max(self._last_life, self._attempt_began)
        self.check()
        return self._within_deadline(request)

    def _within_deadline(self, request: Request) -> Request:
        left = self._seconds_left()
        if left is None:
            return request
        left = max(left, LEAST_SECONDS)
        return replace(
            request, silence_seconds=min(request.silence_seconds, left), body_seconds=left
        )

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._clock()

    def after_cut(self, cut: Cut) -> Plan[None]:
        """Wait before the next attempt. Raises Unreachable, ConnectionLost, DeadlineExceeded."""
        self.check()
        lasted = self._clock() - self._attempt_began
        if cut.was_sent and lasted >= SHORT_ATTEMPT_SECONDS and (yield from self._answers()):
            # An idle connection was cut, or a router has given up; execd itself lives.
            self.alive()
        if self._clock() - self._last_life > self._retry_seconds:
            lost = ConnectionLost if cut.was_sent else Unreachable
            raise lost(f"no answer from execd in {self._retry_seconds:g} s: {cut}") from cut
        yield from self._pause(None)

    def after_refusal(self, reply: Reply) -> Plan[None]:
        """Wait as long as a 429 or 503 says. Raises the reply's error when patience ends."""
        wished = retry_after_seconds(reply.headers)
        waited = self._clock() - self._last_life + (wished or 0.0)
        if wished is None or waited > self._retry_seconds:
            raise error_of(reply.http_status, reply.headers, reply.body)
        yield from self._pause(wished)

    def _answers(self) -> Plan[bool]:
        try:
            reply: Reply = yield Send(self._within_deadline(PROBE))
        except Cut:
            return False
        return reply.http_status < 500

    def _pause(self, wished_seconds: float | None) -> Plan[None]:
        self._pauses += 1
        longest = min(FIRST_PAUSE_SECONDS * 2 ** (self._pauses - 1), LONGEST_PAUSE_SECONDS)
        seconds = random.uniform(longest / 2, longest)
        if wished_seconds is not None:
            seconds += wished_seconds
        if (left := self._seconds_left()) is not None:
            seconds = min(seconds, max(0.0, left))
        yield Sleep(seconds)


def call(request: Request, patience: Patience, *, may_repeat: bool = True) -> Plan[Reply]:
    """The reply to a request, whose status is below 400.

    ``may_repeat``: the request has the same effect when execd gets it twice. Raises ApiError,
    Unreachable, DeadlineExceeded; without ``may_repeat`` also ConnectionLost.
    """
    while True:
        try:
            reply: Reply = yield Send(patience.bounded(request))
            _raise_if_lost(reply)
        except Cut as cut:
            yield from _after_cut(cut, patience, may_repeat)
            continue
        if reply.http_status in REFUSED_FOR_NOW:
            yield from patience.after_refusal(reply)
            continue
        if reply.http_status >= 400:
            raise error_of(reply.http_status, reply.headers, reply.body)
        if reply.http_status >= 300:
            raise not_execd(reply.http_status, reply.headers, reply.body)
        return reply


def opened(request: Request, patience: Patience, content_type: str = "") -> Plan[Opened]:
    """A reply whose body is still to come, of this type. The request may be repeated. Raises like
    ``call``."""
    while True:
        try:
            reply: Opened | Reply = yield Open(patience.bounded(request))
            _raise_if_lost(reply)
        except Cut as cut:
            yield from patience.after_cut(cut)
            continue
        if isinstance(reply, Opened):
            found = reply.headers.get("content-type", "")
            if reply.http_status != 204 and not found.startswith(content_type):
                raise not_execd(reply.http_status, reply.headers)
            return reply
        if reply.http_status in REFUSED_FOR_NOW:
            yield from patience.after_refusal(reply)
            continue
        raise error_of(reply.http_status, reply.headers, reply.body)


def _raise_if_lost(reply: Opened | Reply) -> None:
    """Raises Cut where a router has lost execd's answer. A 503 of execd's own says when to come
    again, or has a code."""
    is_routers = reply.http_status in BY_A_ROUTER or (
        isinstance(reply, Reply)
        and reply.http_status == 503
        and "retry-after" not in reply.headers
        and b'"code"' not in reply.body
    )
    if is_routers:
        raise Cut(f"HTTP status {reply.http_status}", was_sent=True)


def _after_cut(cut: Cut, patience: Patience, may_repeat: bool) -> Plan[None]:
    if cut.was_sent and not may_repeat:
        raise ConnectionLost(
            f"the connection broke while execd had the request ({cut}); execd may have carried out "
            "the request, and the request has an effect each time"
        ) from cut
    yield from patience.after_cut(cut)


def json_request(method: str, path: str, body: dict[str, Any], **headers: str) -> Request:
    """A request with a JSON body. Fields that are None are left out."""
    said = {name: value for name, value in body.items() if value is not None}
    request = Request(method, path, {"Content-Type": "application/json"}, msgspec.json.encode(said))
    return request.with_headers(**headers)


def decoded(reply: Reply, kind: type[T]) -> T:
    """The body as a model. Raises ApiError for a body that is not execd's."""
    return understood(reply, msgspec.json.Decoder(kind).decode)


def understood(reply: Reply, reader: Callable[[bytes], T]) -> T:
    try:
        return reader(reply.body)
    except (msgspec.MsgspecError, TypeError, ValueError):
        raise not_execd(reply.http_status, reply.headers, reply.body) from None
