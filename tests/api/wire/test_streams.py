from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from execd.api.wire.streams import (
    BYTES_PER_TURN,
    StallDetector,
    Turn,
    cancel_and_wait,
    unacknowledged_bytes,
)
from tests.api.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Peers = tuple[asyncio.Transport, socket.socket]


async def test_ended_waits_for_what_it_cancels_and_swallows_how_it_ended() -> None:
    async def fail() -> None:
        raise ValueError

    tasks = asyncio.ensure_future(fail()), asyncio.ensure_future(asyncio.Event().wait())
    await cancel_and_wait(*tasks)
    assert [task.done() for task in tasks] == [True, True]


@pytest.mark.parametrize(("size_bytes", "n_in_a_turn"), [(BYTES_PER_TURN, 1), (40_000, 2), (0, 64)])
async def test_senders_take_turns(size_bytes: int, n_in_a_turn: int) -> None:
    order: list[str] = []

    async def send(name: str) -> None:
        turn = Turn()
        for _ in range(2 * n_in_a_turn):
            order.append(name)
            await turn.count_sent(size_bytes)

    await asyncio.gather(send("a"), send("b"))
    assert "".join(order) == ("a" * n_in_a_turn + "b" * n_in_a_turn) * 2


async def test_the_end_of_a_turn_lets_each_other_task_run_once() -> None:
    n_turns, n_steps = 5, 0

    async def step() -> None:
        nonlocal n_steps
        while True:
            n_steps += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(step())
    turn = Turn()
    for _ in range(n_turns):
        await turn.count_sent(BYTES_PER_TURN)
    await cancel_and_wait(other)
    assert n_steps == n_turns


@pytest_asyncio.fixture(loop_scope="session")
async def peers() -> AsyncIterator[Peers]:
    """A transport and the socket of the peer, on real TCP with small buffers. The peer reads only
    when a test reads."""
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            accepted.set_result(transport)

    server = await asyncio.get_running_loop().create_server(Accepting, "127.0.0.1", 0)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, server.sockets[0].getsockname())
    transport = await accepted
    yield transport, peer
    peer.close()
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_bytes_that_the_peer_has_not_taken_are_counted_in_all_buffers(peers: Peers) -> None:
    transport, peer = peers
    assert unacknowledged_bytes(transport) == 0
    transport.write(b"x" * 4_000_000)
    assert transport.get_write_buffer_size() < 4_000_000
    in_peer = 4_000_000 - unacknowledged_bytes(transport)
    assert 0 <= in_peer < 1_000_000
    left = 4_000_000
    while left:
        left -= len(await asyncio.get_running_loop().sock_recv(peer, 1 << 20))
    await wait_until(lambda: unacknowledged_bytes(transport) == 0, "everything is taken")


async def test_peer_that_takes_nothing_is_noticed_once(peers: Peers) -> None:
    transport, _ = peers
    transport.write(b"x" * 4_000_000)
    calls: list[None] = []
    pace = StallDetector(transport, 0.1, lambda: 4_000_000, lambda: calls.append(None))
    await wait_until(lambda: calls, "the stall is noticed")
    assert len(calls) == 1
    pace.stop()


async def test_slow_peer_is_not_a_stalled_one(peers: Peers) -> None:
    transport, peer = peers
    size = 1_000_000
    calls: list[None] = []
    transport.write(b"x" * size)
    loop = asyncio.get_running_loop()
    pace = StallDetector(transport, 0.4, lambda: size, lambda: calls.append(None))
    began, left = loop.time(), size
    while left and loop.time() < began + 1.2:
        left -= len(await loop.sock_recv(peer, 16_384))
        await asyncio.sleep(0.01)  # slow down the peer
    assert left, "it took everything before the time was over"
    assert not calls
    pace.stop()


async def test_peer_that_has_taken_everything_may_be_silent(peers: Peers) -> None:
    transport, _ = peers
    transport.write(b"x")
    looks: list[int] = []
    pace = StallDetector(transport, 0.04, lambda: looks.append(1) or 1, lambda: looks.append(-1))
    await wait_until(lambda: len(looks) > 12, "it has looked for three times as long")
    assert -1 not in looks
    pace.stop()
