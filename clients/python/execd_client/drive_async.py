"""Carries out plans with ``httpx.AsyncClient``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from httpx_sse import EventSource

from execd_client import effects
from execd_client.drive_common import Episode, body_of, cut_of, reply_of, timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from execd_client.effects import Plan
    from execd_client.target import AsyncTarget

T = TypeVar("T")
CHUNK_BYTES = 256 * 1024


class AsyncDriver:
    """One connection pool. ``run`` returns a plan's result, ``iterate`` its emitted values."""

    def __init__(self, target: AsyncTarget, client: httpx.AsyncClient) -> None:
        self.target = target
        self._client = client
        self.episode = Episode()

    async def close(self) -> None:
        await self._client.aclose()

    async def run(self, plan: Plan[T]) -> T:
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
                answer, thrown = await work.answer(effect)
        finally:
            plan.close()
            await work.close()

    async def iterate(self, plan: Plan[None]) -> AsyncGenerator[Any, None]:
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
                    answer, thrown = await work.answer(effect)
        finally:
            plan.close()
            await work.close()


class _Work:
    """The open bodies of one plan, and the effects."""

    def __init__(self, driver: AsyncDriver, client: httpx.AsyncClient) -> None:
        self._driver = driver
        self._client = client
        self._responses: dict[int, httpx.Response] = {}
        self._events: dict[int, AsyncIterator[Any]] = {}
        self._chunks: dict[int, AsyncIterator[bytes]] = {}
        self._deadlines: dict[int, float | None] = {}
        """When a body is cut, on the clock of the event loop."""

    async def close(self) -> None:
        for number in list(self._responses):
            await self._close(number)

    async def answer(self, effect: Any) -> tuple[Any, effects.Cut | None]:
        """The answer to an effect, or the Cut to throw into the plan."""
        try:
            return await self._carry_out(effect), None
        except (httpx.TransportError, httpx.StreamError) as error:
            await self._driver.target.forget()
            return None, cut_of(error)

    async def _carry_out(self, effect: Any) -> Any:
        match effect:
            case effects.Send(request):
                return reply_of(await self._send(request, stream=False))
            case effects.Open(request):
                return await self._open(request)
            case effects.NextEvent(opened):
                return await self._next_event(opened.number)
            case effects.NextChunk(opened):
                return await self._next(opened.number, self._chunks)
            case effects.Close(opened):
                return await self._close(opened.number)
            case effects.Sleep(seconds):
                return await _asyncio().sleep(seconds)
            case effects.Local(call):
                return await _asyncio().to_thread(call)
        raise AssertionError(f"no effect: {effect!r}")

    async def _send(self, request: effects.Request, *, stream: bool) -> httpx.Response:
        address = await self._driver.target.resolve()
        built = self._client.build_request(
            request.method,
            address.url_of(request.path),
            headers={**self._driver.episode.headers_of(address), **request.headers},
            content=_body(request),
            timeout=timeouts(request),
        )
        response = await self._client.send(built, stream=stream)
        self._driver.episode.learn(response.headers)
        return response

    async def _open(self, request: effects.Request) -> effects.Opened | effects.Reply:
        response = await self._send(request, stream=True)
        number = len(self._responses) + 1
        while number in self._responses:
            number += 1
        self._responses[number] = response
        if response.status_code >= 300:
            await response.aread()
            await self._close(number)
            return reply_of(response)
        self._chunks[number] = response.aiter_raw(CHUNK_BYTES)
        self._events[number] = EventSource(response).aiter_sse()
        self._deadlines[number] = (
            None
            if request.body_seconds is None
            else _asyncio().get_running_loop().time() + request.body_seconds
        )
        return effects.Opened(response.status_code, response.headers, number)

    async def _next_event(self, number: int) -> tuple[str, str, str] | None:
        event = await self._next(number, self._events)
        return None if event is None else (event.event, event.id, event.data)

    async def _next(self, number: int, bodies: dict[int, AsyncIterator[Any]]) -> Any:
        try:
            async with _asyncio().timeout_at(self._deadlines[number]):
                return await anext(bodies[number], None)
        except TimeoutError:
            raise httpx.ReadTimeout("the deadline has passed") from None

    async def _close(self, number: int) -> None:
        if response := self._responses.pop(number, None):
            self._events.pop(number, None)
            self._chunks.pop(number, None)
            self._deadlines.pop(number, None)
            await response.aclose()


def _asyncio() -> Any:
    """Loaded already. The blocking client does not need asyncio's 38 modules."""
    import asyncio

    return asyncio


def _body(request: effects.Request) -> bytes | AsyncIterator[bytes] | None:
    pieces = body_of(request)
    if pieces is None or isinstance(pieces, bytes):
        return pieces

    async def in_thread() -> AsyncIterator[bytes]:
        while (piece := await _asyncio().to_thread(next, pieces, None)) is not None:
            yield piece
            if request.on_sent:
                request.on_sent(len(piece))

    return in_thread()
