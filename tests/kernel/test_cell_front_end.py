"""Displays that meet the end of their cell. The cells of a whole worker: test_worker_displays."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, cast

import pytest

from execd.kernel import cell_front_end, frames
from execd.kernel.cell_front_end import CellFrontEnd
from execd.kernel.frame_channel import FrameChannel
from tests.kernel.worker_frames import FROM_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execd.kernel.stdio_pipes import Streams


@pytest.fixture
def ends() -> Iterator[tuple[CellFrontEnd, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = FrameChannel(theirs.detach(), frames.TO_WORKER)
    with ours:
        # No question is asked, so nothing touches the standard streams.
        yield CellFrontEnd(channel, cast("Streams", None), lambda: None), ours
        channel.detach()


SENDERS: dict[str, Callable[[CellFrontEnd], None]] = {
    "display": lambda front_end: front_end.display({"text/plain": "1"}, {}, None, False),
    "result": lambda front_end: front_end.result({"text/plain": "1"}, {}, 1),
    "clear_output": lambda front_end: front_end.clear_output(False),
}


@pytest.mark.parametrize("kind", SENDERS)
def test_frame_that_meets_the_end_of_its_cell_carries_the_number_of_the_cell(
    kind: str, ends: tuple[CellFrontEnd, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    front_end, daemon = ends
    front_end.begin_cell(7, False)

    def end_the_cell_meanwhile() -> int:
        front_end.end_cell()
        return os.getpid()

    monkeypatch.setattr(cell_front_end, "getpid", end_the_cell_meanwhile)
    SENDERS[kind](front_end)
    decoder = frames.FrameDecoder(FROM_WORKER)
    [frame] = decoder.feed(daemon.recv(4096))
    assert (frame["type"], frame["id"]) == (kind, 7)
