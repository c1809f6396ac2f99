"""Carries out plans with ``httpx.Client``."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from httpx_sse import EventSource

from execd_client import effects
from execd_client.drive_common import Episode, body_of, cut_of, reply_of, timeouts

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from execd_client.effects import Plan
    from execd_client.target import Target

T = TypeVar("T")
CHUNK_BYTES = 256 * 1024


class Driver:
    """One connection pool. ``run`` returns a plan's result, ``iterate`` its emitted values."""

    def __init__(self, target: Target, client: httpx.Client) -> None:
        self.target = target
        self._client = client
        self.episode = Episode()

    def close(self) -> None:
        self._client.close()

    def run(self, plan: Plan[T]) -> T:
        """The plan's result. The plan emits nothing."""
        work = _Work(self, self._client)
        try:
            answer, thrown = None, None
            while True:
                try:
                    effect = plan.throw(thrown) if thrown else plan.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer, thrown = work.answer(effect)
        finally:
            plan.close()
            work.close()

    def iterate(self, plan: Plan[None]) -> Generator[Any, None, None]:
        """The values that the plan emits. The iteration may end early: the connections close."""
        work = _Work(self, self._client)
        try:
            answer, thrown = None, None
            while True:
                try:
                    effect = plan.throw(thrown) if thrown else plan.send(answer)
                except StopIteration:
                    return
                if isinstance(effect, effects.Emit):
                    yield effect.value
                    answer, thrown = None, None
                else:
                    answer, thrown = work.answer(effect)
        finally:
            plan.close()
            work.close()


class _Work:
    """The open bodies of one plan, and the effects."""

    def __init__(self, driver: Driver, client: httpx.Client) -> None:
        self._driver = driver
        self._client = client
        self._responses: dict[int, httpx.Response] = {}
        self._events: dict[int, Iterator[Any]] = {}
        self._chunks: dict[int, Iterator[bytes]] = {}
        self._timers: dict[int, threading.Timer] = {}

    def close(self) -> None:
        for number in list(self._responses):
            self._close(number)

    def answer(self, effect: Any) -> tuple[Any, effects.Cut | None]:
        """The answer to an effect, or the Cut to throw into the plan."""
        try:
            return self._carry_out(effect), None
        except (httpx.TransportError, httpx.StreamError) as error:
            self._driver.target.forget()
            return None, cut_of(error)

    def _carry_out(self, effect: Any) -> Any:
        match effect:
            case effects.Send(request):
                return reply_of(self._send(request, stream=False))
            case effects.Open(request):
                return self._open(request)
            case effects.NextEvent(opened):
                return self._next_event(opened.number)
            case effects.NextChunk(opened):
                return self._next(opened.number, self._chunks)
            case effects.Close(opened):
                return self._close(opened.number)
            case effects.Sleep(seconds):
                return time.sleep(seconds)
            case effects.Local(call):
                return call()
        raise AssertionError(f"no effect: {effect!r}")

    def _send(self, request: effects.Request, *, stream: bool) -> httpx.Response:
        address = self._driver.target.resolve()
        built = self._client.build_request(
            request.method,
            address.url_of(request.path),
            headers={**self._driver.episode.headers_of(address), **request.headers},
            content=_body(request),
            timeout=timeouts(request),
        )
        response = self._client.send(built, stream=stream)
        self._driver.episode.learn(response.headers)
        return response

    def _open(self, request: effects.Request) -> effects.Opened | effects.Reply:
        response = self._send(request, stream=True)
        number = len(self._responses) + 1
        while number in self._responses:
            number += 1
        self._responses[number] = response
        if response.status_code >= 300:
            response.read()
            self._close(number)
            return reply_of(response)
        self._chunks[number] = response.iter_raw(CHUNK_BYTES)
        self._events[number] = EventSource(response).iter_sse()
        if request.body_seconds is not None:
            timer = threading.Timer(request.body_seconds, _shut, [response])
            timer.daemon = True
            self._timers[number] = timer
            timer.start()  # cancelled at the end of the body, or in _close
        return effects.Opened(response.status_code, response.headers, number)

    def _next_event(self, number: int) -> tuple[str, str, str] | None:
        event = self._next(number, self._events)
        return None if event is None else (event.event, event.id, event.data)

    def _next(self, number: int, bodies: dict[int, Iterator[Any]]) -> Any:
        found = next(bodies[number], None)
        if found is None:
            self._stop_timer(number)
        return found

    def _stop_timer(self, number: int) -> None:
        if timer := self._timers.pop(number, None):
            timer.cancel()

    def _close(self, number: int) -> None:
        if response := self._responses.pop(number, None):
            self._events.pop(number, None)
            self._chunks.pop(number, None)
            self._stop_timer(number)
            response.close()


def _shut(response: httpx.Response) -> None:
    """End the body for the thread that reads: nothing else wakes a blocking read early."""
    stream = response.extensions.get("network_stream")
    own = stream.get_extra_info("socket") if stream is not None else None
    if own is not None:
        with contextlib.suppress(OSError):
            # Not the method of SSLSocket, which changes the object that the other thread reads.
            socket.socket.shutdown(own, socket.SHUT_RDWR)


def _body(request: effects.Request) -> bytes | Iterator[bytes] | None:
    pieces = body_of(request)
    if pieces is None or isinstance(pieces, bytes):
        return pieces

    def reported() -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            if request.on_sent:
                request.on_sent(len(piece))

    return reported()
