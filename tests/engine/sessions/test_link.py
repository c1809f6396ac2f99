"""The daemon's end of a conversation, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.in_flight import InFlight
from execd.engine.sessions import link
from execd.engine.sessions.link import (
    FRAME_COST_BYTES,
    IGNORED_BYTES,
    IGNORED_FRAMES,
    LOOP_SHARE,
    SMALL_READ_BYTES,
    Link,
    LinkTurns,
)
from execd.kernel import frames
from tests.kernel.worker_frames import FROM_WORKER
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator


class Conversation:
    def __init__(self, budget: InFlight | None = None) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(10)
        self.heard: list[tuple[dict[str, Any], int]] = []
        self.losses = 0
        self.changes = True
        """Whether a received frame changes anything."""
        decode = frames.FrameDecoder(FROM_WORKER).decode
        self.link = Link(
            ours, decode, LinkTurns((budget or InFlight()).lease), self._on_frame, self._on_lost
        )

    def _on_frame(self, frame: dict[str, Any], size_bytes: int) -> bool:
        self.heard.append((frame, size_bytes))
        return self.changes

    def _on_lost(self) -> None:
        self.losses += 1


@pytest.fixture
async def conversation() -> Iterator[Conversation]:
    made = Conversation()
    yield made
    made.link.close()
    made.peer.close()


DONE = {"type": "done", "id": 1, "status": "success", "execution_count": 1, "exit": None}


async def test_frames_come_in_order_with_their_size(conversation: Conversation) -> None:
    display = {
        "type": "display",
        "id": 1,
        "data": {"text/plain": "x" * 1_000_000},
        "metadata": {},
        "display_id": None,
        "update": False,
    }
    await asyncio.to_thread(conversation.peer.sendall, frames.encode(display) + frames.encode(DONE))
    await wait_until_async(lambda: len(conversation.heard) == 2)
    assert [frame for frame, _ in conversation.heard] == [display, DONE]
    assert sum(size for _, size in conversation.heard) >= 1_000_000


@pytest.mark.parametrize(
    "noise", [b"\xff" * 8, b"\0\0\0\2{}", b"\0\0\0\5hello", frames.encode({"type": "configure"})]
)
async def test_a_broken_frame_is_the_end_of_it(conversation: Conversation, noise: bytes) -> None:
    conversation.peer.sendall(frames.encode(DONE) + noise + frames.encode(DONE))
    await wait_until_async(lambda: conversation.losses == 1)
    assert len(conversation.heard) <= 1
    assert conversation.peer.recv(1) == b""


@pytest.mark.parametrize(
    "text", ["plain", "ünï\u2028\U0001f600", "lone \udcff and \ud800", '\0\x7f"\\']
)
async def test_whatever_text_a_frame_holds_arrives_as_it_was_sent(
    conversation: Conversation, text: str
) -> None:
    frame = {
        "type": "execute",
        "id": 2**62,
        "code": text,
        "allow_input": False,
        "store_history": True,
    }
    conversation.link.send(frame)
    decoder = frames.FrameDecoder(frames.TO_WORKER)
    assert decoder.feed(conversation.peer.recv(1 << 16)) == [frame]


async def test_a_frame_that_is_too_long_is_refused_and_nothing_of_it_is_sent(
    conversation: Conversation,
) -> None:
    with pytest.raises(frames.FrameError):
        conversation.link.send({"type": "execute", "code": "x" * frames.FRAME_BYTES})
    conversation.link.send({"type": "variables", "id": 1, "limit": 1})
    assert len(frames.FrameDecoder(frames.TO_WORKER).feed(conversation.peer.recv(1 << 16))) == 1


async def test_tiny_frames_are_read_a_few_at_a_time_and_none_is_lost(
    conversation: Conversation,
) -> None:
    n_frames = 20_000
    sending = asyncio.create_task(
        asyncio.to_thread(
            conversation.peer.sendall, frames.encode({"type": "configured"}) * n_frames
        )
    )
    most = 0
    while len(conversation.heard) < n_frames:
        before = len(conversation.heard)
        await asyncio.sleep(0)
        most = max(most, len(conversation.heard) - before)
    await sending
    assert (
        0 < most <= 2 * LOOP_SHARE // FRAME_COST_BYTES
    )  # half of them in the callback of the socket
    assert conversation.losses == 0


async def test_a_large_frame_is_read_in_large_pieces(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    feed = frames.Splitter.feed

    def note(self: frames.Splitter, data: bytes | memoryview) -> list[bytes]:
        reads.append(len(data))
        return feed(self, data)

    monkeypatch.setattr(frames.Splitter, "feed", note)
    frame = {**DONE, "type": "failed", "message": "x" * 1_000_000}
    del frame["id"], frame["status"], frame["execution_count"], frame["exit"]
    await asyncio.to_thread(conversation.peer.sendall, frames.encode(frame) + frames.encode(DONE))
    await wait_until_async(lambda: len(conversation.heard) == 2)
    assert max(reads) > 16 * SMALL_READ_BYTES


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_peer_that_says_too_much_that_changes_nothing_is_lost_and_the_fault_is_named(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # A busy machine may need more than a second for as many bytes. Not 100 seconds: the clock of a
    # young sandbox of gVisor may pass them in the middle.
    monkeypatch.setattr(link, "IGNORED_SECONDS", math.inf)
    conversation.changes = False
    frame = frames.encode({"type": "failed", "message": "x" * size})

    def send() -> None:
        with contextlib.suppress(OSError):
            conversation.peer.sendall(frame * 2000)

    await asyncio.to_thread(send)
    await wait_until_async(lambda: conversation.losses == 1)
    assert len(conversation.heard) <= min(IGNORED_FRAMES, IGNORED_BYTES // size) + 1
    assert "change nothing" in str(conversation.link.fault)


async def test_a_peer_may_say_a_little_that_changes_nothing(conversation: Conversation) -> None:
    conversation.changes = False
    await asyncio.to_thread(conversation.peer.sendall, frames.encode(DONE) * IGNORED_FRAMES)
    await wait_until_async(lambda: len(conversation.heard) == IGNORED_FRAMES)
    assert (conversation.losses, conversation.link.fault) == (0, None)


async def test_what_a_peer_said_before_its_end_is_read_to_the_end(
    conversation: Conversation,
) -> None:
    n_frames = 1000  # several shares
    conversation.peer.sendall(frames.encode(DONE) * n_frames)
    conversation.peer.close()
    await conversation.link.read_rest()
    assert (len(conversation.heard), conversation.losses) == (n_frames, 1)


async def test_a_peer_that_hangs_up_is_told_once(conversation: Conversation) -> None:
    conversation.peer.close()
    await wait_until_async(lambda: conversation.losses == 1)
    conversation.link.send({"type": "variables", "id": 1, "limit": 1})
    await conversation.link.read_rest()
    assert conversation.losses == 1


async def test_a_peer_that_reads_nothing_holds_up_nobody_and_gets_everything_later(
    conversation: Conversation,
) -> None:
    sent = [{"type": "input", "id": number, "text": "x" * 200_000} for number in range(20)]
    for frame in sent:
        conversation.link.send(frame)
    decoder, heard = frames.FrameDecoder(frames.TO_WORKER), []
    while len(heard) < len(sent):
        heard += decoder.feed(await asyncio.to_thread(conversation.peer.recv, 1 << 20))
    assert heard == sent


async def test_descriptors_travel_with_their_frame_and_are_closed_here(
    conversation: Conversation,
) -> None:
    first, second = os.memfd_create("first"), os.memfd_create("second")
    os.write(second, b"here")
    conversation.link.send({"type": "fork", "id": 1, "count": 1}, [first, second])
    data, descriptors, _, _ = socket.recv_fds(conversation.peer, 1 << 16, 8)
    assert frames.FrameDecoder(frames.TO_WORKER).feed(data) == [
        {"type": "fork", "id": 1, "count": 1}
    ]
    assert os.pread(descriptors[1], 10, 0) == b"here"
    for fd in descriptors:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


@pytest.mark.not_root
@pytest.mark.linux_only("gVisor has no limit of descriptors in flight")
async def test_with_too_many_descriptors_in_flight_a_frame_goes_without_descriptors(
    conversation: Conversation,
) -> None:
    frame = {"type": "fork", "id": 1, "count": 1}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first, second = socket.socketpair()
    with first, second:
        socket.send_fds(first, [b"x"], [first.fileno()] * 250)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            conversation.link.send(frame, [os.memfd_create("refused")])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    data, descriptors, _, _ = socket.recv_fds(conversation.peer, 1 << 16, 8)
    assert frames.FrameDecoder(frames.TO_WORKER).feed(data) == [frame]
    assert descriptors == []


async def test_descriptors_that_were_never_sent_are_closed(conversation: Conversation) -> None:
    conversation.link.close()
    conversation.link.send({"type": "fork", "id": 1, "count": 1}, [os.memfd_create("never")])
    with pytest.raises(frames.FrameError):
        conversation.link.send(
            {"type": "input", "id": 1, "text": "x" * (frames.FRAME_BYTES + 1)},
            [os.memfd_create("never")],
        )


def unfinished(size_bytes: int) -> bytes:
    """All but the last byte of a frame."""
    return frames.with_header(b"x" * size_bytes)[:-1]


async def test_unfinished_frames_share_one_budget_and_small_frames_pass() -> None:
    budget = InFlight(300_000)
    with contextlib.ExitStack() as ends:
        first, second = (ends.enter_context(ended(Conversation(budget))) for _ in range(2))
        first.peer.sendall(unfinished(200_000))
        await wait_until_async(lambda: budget.held_bytes > 150_000)
        second.peer.setblocking(False)
        second.peer.send(unfinished(200_000))
        await wait_until_async(lambda: second.link._pause is not None)
        assert budget.held_bytes <= 300_000
        third = ends.enter_context(ended(Conversation(budget)))
        third.peer.sendall(frames.encode(DONE))
        await wait_until_async(lambda: len(third.heard) == 1)
        first.link.close()
        await wait_until_async(lambda: second.link._splitter.held_bytes > 150_000)
        assert second.losses == 0
    assert budget.held_bytes == 0


async def test_peer_that_stops_in_the_middle_of_a_frame_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 0.1)
    with ended(Conversation()) as conversation:
        conversation.peer.sendall(unfinished(100_000))
        await wait_until_async(lambda: conversation.losses == 1)
        assert conversation.link.fault == "it sent nothing for 0.1 s in the middle of a frame"


async def test_peer_that_went_on_in_the_middle_of_a_frame_has_the_whole_silence_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 20.0)
    with ended(Conversation()) as conversation:
        await asyncio.to_thread(conversation.peer.sendall, unfinished(100_000))
        await wait_until_async(lambda: conversation.link._splitter.held_bytes)
        # The timer of an earlier byte is over before the silence is.
        conversation.link._received_at = asyncio.get_running_loop().time() - 19.5
        conversation.link._check_silence()
        assert conversation.losses == 0


@contextlib.contextmanager
def ended(conversation: Conversation) -> Iterator[Conversation]:
    try:
        yield conversation
    finally:
        conversation.link.close()
        conversation.peer.close()
