"""A client stays in its episode: that of its first reply, or of its own reset."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from execd_client import AsyncExecd, Conflict, EpisodeEnded, Execd
from execd_client.errors import EPISODE, EXPECTED_EPISODE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ACTIONS: dict[str, Callable[[AsyncExecd], Awaitable[Any]]] = {
    "run": lambda sandbox: sandbox.run("true"),
    "stream": lambda sandbox: anext(aiter(sandbox.stream("true"))),
    "read": lambda sandbox: sandbox.files.read("notes.txt"),
    "write": lambda sandbox: sandbox.files.write("notes.txt", "x"),
    "get_or_create": lambda sandbox: sandbox.sessions.get_or_create("notebook"),
    "terminal": lambda sandbox: sandbox.handle("x").terminal(),
    "probe": lambda sandbox: sandbox.stats(),
}


class Sandbox:
    """A scripted execd, whose other routes are not found. ``marks``: whether a refusal names the
    header, as execd does."""

    def __init__(self) -> None:
        self.episode = "state.0"
        self.marks = True
        self.expected: list[str | None] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        expected = request.headers.get(EXPECTED_EPISODE)
        self.expected.append(expected)
        headers = {EPISODE: self.episode}
        if expected not in (None, self.episode):
            details = {"field": EXPECTED_EPISODE} if self.marks else {}
            refusal = {"code": "CONFLICT", "message": "another episode", "details": details}
            return web.json_response(refusal, status=409, headers=headers)
        if request.path == "/v1/fs/mkdir":
            refusal = {"code": "CONFLICT", "message": "a file is there", "details": {}}
            return web.json_response(refusal, status=409, headers=headers)
        missing = {"code": "NOT_FOUND", "message": "nothing here", "details": {}}
        return web.json_response(missing, status=404, headers=headers)


@pytest.fixture
async def scripted(aiohttp_server: Any) -> Sandbox:
    made, app = Sandbox(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    server = await aiohttp_server(app)
    made.url = str(server.make_url(""))
    return made


@pytest.fixture
async def client(scripted: Sandbox) -> AsyncIterator[AsyncExecd]:
    async with AsyncExecd(scripted.url) as made:
        assert not await made.files.exists("anything")
        yield made


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("name", ACTIONS)
async def test_request_of_an_ended_episode_raises_episode_ended(
    name: str, marks: bool, scripted: Sandbox, client: AsyncExecd
) -> None:
    scripted.episode, scripted.marks = "state.1", marks
    with pytest.raises(EpisodeEnded) as raised:
        await ACTIONS[name](client)
    assert raised.value.http_status == 409
    assert scripted.expected == [None, "state.0"]


async def test_conflict_within_the_episode_stays_a_conflict(
    scripted: Sandbox, client: AsyncExecd
) -> None:
    with pytest.raises(Conflict):
        await client.files.mkdir("x")
    assert scripted.expected == [None, "state.0"]


async def test_blocking_client_stays_in_its_episode_too(scripted: Sandbox) -> None:
    def work() -> None:
        with Execd(scripted.url) as sandbox:
            assert not sandbox.files.exists("anything")
            scripted.episode = "state.1"
            with pytest.raises(EpisodeEnded):
                sandbox.run("true")
            with pytest.raises(EpisodeEnded):
                next(iter(sandbox.stream("true")))
        with Execd(scripted.url) as sandbox:
            assert not sandbox.files.exists("anything")

    await asyncio.to_thread(work)
    assert scripted.expected == [None, "state.0", "state.0", None]


async def test_client_of_an_execd_without_episodes_expects_none(aiohttp_server: Any) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get(EXPECTED_EPISODE))
        return web.json_response({"code": "NOT_FOUND", "message": "no"}, status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = await aiohttp_server(app)
    async with AsyncExecd(str(server.make_url(""))) as sandbox:
        assert not await sandbox.files.exists("anything")
        assert not await sandbox.files.exists("anything")
    assert seen == [None, None]
