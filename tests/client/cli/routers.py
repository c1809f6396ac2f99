"""A router that loses requests, for ``execctl`` as a process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.client.proxies import Router, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

IDLE_SECONDS = 600.0


class LosingRouter(Router):
    """Closes the first connection whose request has ``cut`` in its path, and gives no answer to
    requests that have one of ``silent`` in their paths."""

    def __init__(self, url: str, cut: str, silent: tuple[str, ...]) -> None:
        super().__init__(url, IDLE_SECONDS)
        self._cut = cut
        self._silent = silent

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.PREFIX}"

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self._cut and self._cut in request.raw_path:
            self._cut = ""
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError
        if any(part in request.raw_path for part in self._silent):
            await asyncio.Event().wait()
        return await super()._forward(request)


@contextlib.contextmanager
def losing_router(url: str, *, cut: str = "", silent: tuple[str, ...] = ()) -> Iterator[str]:
    """The address of the router."""
    with serving(LosingRouter(url, cut, silent)) as made:
        yield made.address
