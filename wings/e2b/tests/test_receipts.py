"""Frames count as received when the peer's machine has acknowledged the frames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from execd_e2b.receipts import Receipts

if TYPE_CHECKING:
    from execd.model import Stream


class Transport:
    """A transport whose peer takes nothing until the test says so."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.is_closed = False

    def get_write_buffer_size(self) -> int:
        """A transport that closes drops what nobody has taken."""
        return 0 if self.is_closed else self.waiting_bytes

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, _: str) -> Any:
        return None


async def test_what_nobody_had_acknowledged_when_the_connection_closed_was_not_received() -> None:
    transport, writer = Transport(), SimpleNamespace(output_size=0)
    received: dict[Stream, int] = {}
    request = SimpleNamespace(transport=transport, writer=writer)
    receipts = Receipts(cast("Any", request), received)
    writer.output_size = 100
    receipts.sent("stdout", 80)
    assert received == {"stdout": 80}
    writer.output_size, transport.waiting_bytes = 200, 100
    receipts.sent("stdout", 160)
    assert received == {"stdout": 80}
    transport.is_closed = True
    receipts.look()
    assert received == {"stdout": 80}
