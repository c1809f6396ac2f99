"""Generated from ``generator/sources/terminal_async.py`` by ``generator/blocking.py``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from execd_client.errors import ConnectionLost, Unreachable
from execd_client.terminal_common import (
    MAX_MESSAGE_BYTES,
    SUBPROTOCOL,
    Control,
    eof_message,
    headers_of,
    resize_message,
    signal_message,
    url_of,
)

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from execd_client.address import Address
    from execd_client.results import Result


class Terminal:
    """The terminal of a command: bytes both ways. Leaving a terminal ends nothing: open the
    terminal again with ``offset`` to go on."""

    def __init__(self, stack: ExitStack, connection: ClientConnection, offset: int) -> None:
        self._stack = stack
        self._connection = connection
        self._control = Control(offset)

    @classmethod
    def open(
        cls, address: Address, uds: str | None, verify: Any, execution_id: str, offset: int
    ) -> Self:
        """Raises Unreachable."""
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect, unix_connect

        from execd_client.errors import EXPECTED_EPISODE, error_of

        url = url_of(address, execution_id, offset)
        options: dict[str, Any] = {
            "additional_headers": headers_of(address),
            "subprotocols": [SUBPROTOCOL],
            "max_size": MAX_MESSAGE_BYTES,
        }
        if url.startswith("wss:") and verify is not True:
            options["ssl"] = verify
        stack = ExitStack()
        try:
            made = connect(url, **options) if uds is None else unix_connect(uds, url, **options)
            return cls(stack, stack.enter_context(made), offset)
        except InvalidStatus as refused:
            reply = refused.response
            raise error_of(
                reply.status_code,
                reply.headers,
                bytes(reply.body or b""),
                address.headers.get(EXPECTED_EPISODE),
            ) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise Unreachable(f"no terminal: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def result(self) -> Result | None:
        """How the command ended; None while the command runs."""
        return self._control.result

    @property
    def offset(self) -> int:
        """The number of output bytes so far: where another terminal goes on."""
        return self._control.offset

    @property
    def dropped_bytes(self) -> int:
        """The number of output bytes that execd no longer had."""
        return self._control.dropped_bytes

    def read(self) -> bytes:
        """The next output; empty at the end of the command. Raises ConnectionLost.

        Example:
            while data := terminal.read():
                sys.stdout.buffer.write(data)
        """
        from websockets.exceptions import ConnectionClosed

        while self._control.result is None:
            try:
                message = self._connection.recv()
            except ConnectionClosed as closed:
                raise ConnectionLost(f"the terminal's connection broke: {closed}") from None
            if isinstance(message, bytes):
                self._control.offset += len(message)
                return message
            self._control.receive(message)
        return b""

    def write(self, data: bytes | str) -> None:
        """Type something.

        Example:
            terminal.write("ls\\n")
        """
        self._send(data.encode() if isinstance(data, str) else data)

    def resize(self, cols: int, rows: int) -> None:
        """Set the size.

        Example:
            terminal.resize(120, 40)
        """
        self._send(resize_message(cols, rows))

    def signal(self, name: str | int) -> None:
        """Send a signal to the program.

        Example:
            terminal.signal("SIGINT")
        """
        self._send(signal_message(name))

    def eof(self) -> None:
        """Close the standard input of a command without a terminal.

        Example:
            terminal.eof()
        """
        self._send(eof_message())

    def _send(self, message: bytes | str) -> None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        try:
            self._connection.send(message)
        except ConnectionClosedOK:
            pass  # see read
        except ConnectionClosed as closed:
            if self._control.result is None:
                raise ConnectionLost(f"the terminal's connection broke: {closed}") from None
