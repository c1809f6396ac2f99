"""A channel in the event loop: messages, loss, breaches of the protocol."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from execd.proc.channel import Channel
from execd.proc.loop_channel import LoopChannel
from execd.proc.messages import Fault, Message, Ping, Pong, ProtocolError
from tests.patience import patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Ends:
    """A LoopChannel, and the warden's end of the pair."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.messages: list[Message] = []
        self.warden = Channel(theirs)
        self.channel = LoopChannel(asyncio.get_running_loop(), ours, self._take)

    def _take(self, message: Message) -> None:
        if isinstance(message, Ping):
            raise ProtocolError("Ping is not for the daemon")
        self.messages.append(message)

    async def lost(self) -> None:
        await asyncio.wait_for(self.channel.lost.wait(), patience.seconds(5))


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.channel.close()
    made.warden.close()


async def test_messages_come_in_order_and_their_descriptors_are_closed(ends: Ends) -> None:
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    ends.warden.send(Pong(1, is_quiet=True), [null])
    ends.warden.send(Pong(2, is_quiet=True))
    ends.warden.close()
    await ends.lost()
    assert ends.messages == [Pong(1, is_quiet=True), Pong(2, is_quiet=True)]
    assert ends.channel.has_received


async def test_a_message_that_the_warden_must_not_send_is_a_loss(ends: Ends) -> None:
    ends.warden.send(Ping(1))
    ends.warden.send(Pong(2, is_quiet=True))
    await ends.lost()
    assert ends.messages == []


async def test_a_message_after_the_loss_is_dropped(ends: Ends) -> None:
    ends.warden.close()
    ends.channel.send(Ping(1))
    await ends.lost()
    ends.channel.send(Ping(2))


async def test_messages_that_the_socket_does_not_take_follow_when_the_peer_reads(
    ends: Ends,
) -> None:
    sent = [Fault("x" * 50_000) for _ in range(100)]
    for message in sent:
        ends.channel.send(message)
    received: list[Message] = []
    async with asyncio.timeout(10):
        while len(received) < len(sent):
            while (found := ends.warden.receive()) is not None:
                received.append(found[0])
            await asyncio.sleep(0)
    assert received == sent


async def test_waiting_for_an_event_ends_with_the_event_or_with_the_loss(ends: Ends) -> None:
    event = asyncio.Event()
    event.set()
    await asyncio.wait_for(ends.channel.wait_for(event), patience.seconds(5))
    ends.warden.close()
    await asyncio.wait_for(ends.channel.wait_for(asyncio.Event()), patience.seconds(5))
    assert ends.channel.lost.is_set()
