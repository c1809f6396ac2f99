"""The worker's end of the protocol: under any interruption of a send, the daemon reads whole
frames, each exactly once."""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from execd.kernel import frames
from execd.kernel.frame_channel import FrameChannel, FrameChannelClosed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reader:
    """Read the daemon's end until end of file."""

    def __init__(self, end: socket.socket) -> None:
        self.frames: list[dict[str, Any]] = []
        self._end = end
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        decoder = frames.FrameDecoder(frames.TO_WORKER)
        while data := self._end.recv(1 << 16):
            self.frames.extend(decoder.feed(data))

    def texts(self) -> list[str]:
        self._thread.join(60)
        return [frame["text"] for frame in self.frames]


@pytest.fixture
def ends() -> Iterator[tuple[FrameChannel, socket.socket]]:
    mine, theirs = socket.socketpair()
    theirs.settimeout(60)
    channel = FrameChannel(mine.detach(), frames.TO_WORKER)
    yield channel, theirs
    channel.detach()
    theirs.close()


def frame(text: str) -> dict[str, Any]:
    return {"type": "input", "id": 1, "text": text}


def test_a_frame_sent_from_within_a_send_leaves_both_whole(
    ends: tuple[FrameChannel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, theirs = ends
    fileno = channel.fileno
    handlers = iter(["from a handler", "from its handler"])

    def interrupted() -> int:
        for text in handlers:  # as if a signal arrived in this line
            channel.send(frame(text))
            break
        return fileno()

    monkeypatch.setattr(channel, "fileno", interrupted)
    for text in ("first", "second", "third"):
        channel.send(frame(text))
    monkeypatch.undo()
    reader = Reader(theirs)
    channel.detach()
    assert sorted(reader.texts()) == sorted(
        ["first", "from a handler", "from its handler", "second", "third"]
    )


@pytest.mark.parametrize(("size", "count"), [(10, 20_000), (300_000, 200)])
def test_handlers_that_send_all_the_time_break_nothing(
    ends: tuple[FrameChannel, socket.socket], size: int, count: int
) -> None:
    channel, theirs = ends
    reader = Reader(theirs)
    sent, depth = [0], [0]

    def handler(number: int, stack: object) -> None:
        if depth[0] > 50:
            return  # the reader waits for a CPU, and signals come meanwhile
        depth[0] += 1
        sent[0] += 1
        channel.send(frame(f"handler {sent[0]}"))
        depth[0] -= 1

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for number in range(count):
            channel.send(frame(f"{number} {'x' * size}"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    channel.detach()
    texts = reader.texts()
    # A signal may interrupt a handler before the handler queues the frame. The frame's number then
    # follows the number of the next frame.
    assert {text for text in texts if text.startswith("handler")} == {
        f"handler {n + 1}" for n in range(sent[0])
    }
    assert [text.split()[0] for text in texts if not text.startswith("handler")] == [
        str(n) for n in range(count)
    ]
    assert len(texts) == count + sent[0]
    assert sent[0] > 10


def test_a_handler_that_raises_leaves_a_frame_that_the_next_send_completes(
    ends: tuple[FrameChannel, socket.socket],
) -> None:
    channel, theirs = ends

    def handler(number: int, stack: object) -> None:
        raise TimeoutError

    long = frames.encode(frame("x" * 10_000_000))
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError):
            channel.send_encoded(long)  # nobody reads
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    reader = Reader(theirs)
    channel.send(frame("next"))
    channel.detach()
    assert [len(text) for text in reader.texts()] == [10_000_000, 4]


@pytest.mark.parametrize("raised", [TimeoutError, BlockingIOError, BrokenPipeError])
@pytest.mark.parametrize("called", ["fstat", "recvmsg", "send"])
def test_a_handler_that_raises_an_oserror_does_not_close_it(
    ends: tuple[FrameChannel, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    called: str,
    raised: type[OSError],
) -> None:
    channel, theirs = ends

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)

    def handler(number: int, stack: object) -> None:
        raise raised

    before = signal.signal(signal.SIGALRM, handler)
    if called == "fstat":
        monkeypatch.setattr(os, "fstat", interrupted)
    else:
        monkeypatch.setattr(channel, "_socket", SimpleNamespace(**{called: interrupted}))
    try:
        with pytest.raises(raised):
            channel.send(frame("x")) if called == "send" else channel.receive()
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGALRM, before)
    theirs.sendall(frames.encode(frame("received")))
    assert channel.receive()["text"] == "received"


def test_a_peer_that_hangs_up_closes_it(ends: tuple[FrameChannel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.close()
    with pytest.raises(FrameChannelClosed):
        channel.send(frame("x"))
