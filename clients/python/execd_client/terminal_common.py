"""The messages of a terminal's WebSocket (``GET /v1/executions/{id}/attach``). No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from execd_client.address import segment, with_query
from execd_client.errors import BY_CODE, ApiError
from execd_client.results import Result, result_of

if TYPE_CHECKING:
    from execd_client.address import Address

SUBPROTOCOL = "execd.v1"
MAX_MESSAGE_BYTES = 64 << 20


def url_of(address: Address, execution_id: str, offset: int) -> str:
    path = with_query(f"/v1/executions/{segment(execution_id)}/attach", {"offset": offset or None})
    return address.websocket_url_of(path)


def headers_of(address: Address) -> dict[str, str]:
    """The headers of the address. websockets sends its own ``User-Agent``."""
    left_out = ("user-agent", "accept-encoding")
    return {name: value for name, value in address.headers.items() if name.lower() not in left_out}


def resize_message(cols: int, rows: int) -> str:
    return _text({"type": "resize", "cols": cols, "rows": rows})


def signal_message(name: str | int) -> str:
    return _text({"type": "signal", "signal": name})


def eof_message() -> str:
    return _text({"type": "eof"})


class Control:
    """What the text messages have told."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """The number of output bytes received, holes included."""
        self.dropped_bytes = 0
        """Output that execd no longer had."""
        self.result: Result | None = None
        """How the command ended; None while the command runs."""

    def receive(self, message: str) -> None:
        """Raises ApiError for an ``error``."""
        said = msgspec.json.decode(message)
        match said["type"]:
            case "exited":
                self.result = result_of(said)
            case "dropped":
                self.dropped_bytes += said["size_bytes"]
                self.offset = said["offset"] + said["size_bytes"]
            case "error":
                raise BY_CODE.get(said["code"], ApiError)(said["message"])


def _text(message: dict[str, Any]) -> str:
    return msgspec.json.encode(message).decode()
