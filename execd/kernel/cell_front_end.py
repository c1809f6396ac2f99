"""Displays, results and questions of a cell, on their way to the daemon.

A cell may send CELL_BYTES of bundles and CELL_EVENTS displays. A short note replaces each bundle
that does not fit in the rest of CELL_BYTES; smaller bundles may still fit. The notes have a budget
of their own, LATE_BYTES. Further displays are only counted, and ``end_cell`` reports the number.

A thread that outlives its cell may display while the main thread ends the cell. Each method reads
the number of the cell once: a frame sent after the end carries the number of the ended cell, and
the daemon drops such a frame. A frame without a number would break the protocol and cost the
session its state.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import threading
from os import getpid
from typing import TYPE_CHECKING, Any

from IPython.core.error import StdinNotImplementedError

from execd.kernel import frames, mime_bundles
from execd.kernel.front_end import FrontEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.frame_channel import FrameChannel
    from execd.kernel.stdio_pipes import Streams


assert mime_bundles.CELL_BYTES + mime_bundles.LATE_BYTES < frames.FRAME_BYTES


class CellFrontEnd(FrontEnd):
    """Sends over the worker's channel. Sends nothing in a fork of user code, recognized by the pid:
    two processes would mix their frames."""

    def __init__(
        self, channel: FrameChannel, streams: Streams, on_reseed: Callable[[], None]
    ) -> None:
        """``on_reseed`` is called for a frame "reseed" that comes while the cell waits for
        input."""
        self._channel = channel
        self._streams = streams
        self._on_reseed = on_reseed
        self._pid = getpid()
        self._cell_id: int | None = None  # None between cells
        self._bundle_bytes_left = self._note_bytes_left = 0
        self._n_events = self._n_omitted = 0
        self._allow_input = False

    def begin_cell(self, cell_id: int, allow_input: bool) -> None:
        """Start a cell: displays and results now belong to ``cell_id``."""
        assert self._cell_id is None
        self._cell_id, self._allow_input = cell_id, allow_input
        self._bundle_bytes_left = mime_bundles.CELL_BYTES
        self._note_bytes_left = mime_bundles.LATE_BYTES
        self._n_events = self._n_omitted = 0

    def end_cell(self) -> dict[str, Any] | None:
        """Finish the cell. Return a display with the number of omitted displays, if any."""
        cell_id, self._cell_id = self._cell_id, None
        assert cell_id is not None
        if not self._n_omitted:
            return None
        return {
            "type": "display",
            "id": cell_id,
            "data": {"text/plain": f"[{self._n_omitted} more displays omitted]"},
            "metadata": {},
            "display_id": None,
            "update": False,
        }

    def _send_bundle(
        self, frame: dict[str, Any], data: dict[str, Any], metadata: dict[str, Any]
    ) -> bool:
        """Send a bundle, or a note instead if the bundle exceeds the cell's remaining bytes.

        Returns False if no cell of this process is running.
        """
        assert self._bundle_bytes_left <= mime_bundles.CELL_BYTES
        assert self._note_bytes_left <= mime_bundles.LATE_BYTES
        cell_id = self._cell_id
        if cell_id is None or getpid() != self._pid:
            return False
        frame["id"] = cell_id
        encoded = None
        try:
            frame["data"] = mime_bundles.fit_bundle(data)
            frame["metadata"] = mime_bundles.to_json(metadata)
            encoded = frames.encode(frame)
        except (frames.FrameError, mime_bundles.BundleTooLargeError):
            size = f"more than {mime_bundles.CELL_BYTES}"
        else:
            size = str(len(encoded))
        if encoded is not None and len(encoded) <= self._bundle_bytes_left:
            self._bundle_bytes_left -= len(encoded)
        else:
            frame["data"], frame["metadata"] = {"text/plain": f"[... omitted: {size} bytes]"}, {}
            encoded = frames.encode(frame)
            if len(encoded) > self._note_bytes_left:
                self._n_omitted += 1
                return True
            self._note_bytes_left -= len(encoded)
        self._channel.send_encoded(encoded)
        return True

    def display(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool
    ) -> None:
        frame = {"type": "display", "display_id": display_id, "update": update}
        if self._has_shown_enough():
            self._n_omitted += 1
        elif not self._send_bundle(frame, data, metadata):
            print(data.get("text/plain", ""))

    def result(self, data: dict[str, Any], metadata: dict[str, Any], execution_count: int) -> None:
        if not self._send_bundle(
            {"type": "result", "execution_count": execution_count}, data, metadata
        ):
            print(data.get("text/plain", ""))

    def clear_output(self, wait: bool) -> None:
        cell_id = self._cell_id
        if cell_id is not None and getpid() == self._pid and not self._has_shown_enough():
            self._channel.send({"type": "clear_output", "id": cell_id, "wait": wait})

    def _has_shown_enough(self) -> bool:
        """Count a display or a clearing. Return whether the cell has exceeded CELL_EVENTS."""
        self._n_events += 1
        return self._n_events > mime_bundles.CELL_EVENTS

    def read_line(self, prompt: str, password: bool) -> str:
        here = (
            self._cell_id is not None
            and getpid() == self._pid
            and threading.current_thread() is threading.main_thread()
        )
        if not here:
            raise StdinNotImplementedError(
                "only a cell itself can ask: input() of its threads and forks has nobody to ask"
            )
        if not self._allow_input:
            return super().read_line(prompt, password)
        self._streams.flush()
        self._channel.send(
            {
                "type": "input_request",
                "id": self._cell_id,
                "prompt": mime_bundles.truncate(prompt),
                "password": password,
            }
        )
        while True:
            self._channel.wait_for_frame()
            frame = self._channel.receive()
            if frame["type"] == "reseed":
                self._on_reseed()
            elif frame["type"] == "input" and frame["id"] == self._cell_id:
                return str(frame["text"])
