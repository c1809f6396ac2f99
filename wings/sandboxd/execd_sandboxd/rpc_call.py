"""One call: the messages of the caller, the replies, and the status at the end.

A call has the interface that handlers of grpclib expect from a stream (``recv_message``,
``send_message``, iteration), so grpclib's own services for health and reflection run here too.
grpclib's server half is not used, because grpclib reads a message of any length into memory.

A message of the wire (gRPC over HTTP/2, "Length-Prefixed-Message"): a byte that is 0 for plain
bytes, four bytes of length, the message.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Status
from grpclib.metadata import encode_grpc_message
from grpclib.stream import StreamIterator

from execd.api.wire_api import EPISODE_HEADER, INSTANCE_HEADER
from execd.engine.engine_api import InvalidArgument, NotSupported, PayloadTooLarge, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message
    from grpclib.const import Handler
    from grpclib.protocol import Stream
    from multidict import CIMultiDict

    from execd.engine.engine_api import Lease

PREFIX = struct.Struct(">?I")
MAX_MESSAGE_BYTES = 4 << 20
"""A message of a caller. grpc's own default for received messages."""
CONTENT_TYPE = "application/grpc+proto"


class RpcCall(StreamIterator[Any]):
    """One call. ``stream`` belongs to the connection, and ends with the call."""

    def __init__(
        self,
        stream: Stream,
        path: str,
        handler: Handler,
        metadata: CIMultiDict[str],
        lease: Lease,
        *,
        body_seconds: float,
        stall_seconds: float,
        cut: Callable[[], None],
    ) -> None:
        """``metadata``: the headers of the call. ``lease``: the share of the call in the budget for
        bytes from peers. ``body_seconds``: how long the caller may take for a message once the
        message has begun, or for the first. ``stall_seconds``: how long the caller may take
        nothing; then ``cut`` aborts the connection."""
        self.path = path
        self.metadata = metadata
        self.request_id = ""
        self.instance_id = ""
        self.episode = ""
        self.deadline: float | None = None
        """On the loop's clock; None: the caller waits for ever."""
        self.has_execution = False
        """The log line of an execution tells of the call."""
        self.trailers: dict[str, str] = {}
        self._stream = stream
        self._handler = handler
        self._lease = lease
        self._body_seconds = body_seconds
        self._stall_seconds = stall_seconds
        self._cut = cut
        self._has_headers = False
        self._n_received = 0
        self.grpc_status: Status | None = None
        """The status sent; None: the call goes on."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline; None: no deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    async def recv_message(self) -> Any | None:
        """Return the next message of the caller; None: the caller sends no more. Raises
        InvalidArgument, NotSupported (compression), PayloadTooLarge, RequestTimeout."""
        is_stream = self._handler.cardinality is Cardinality.STREAM_STREAM
        wait_seconds = None if is_stream and self._n_received else self._body_seconds
        prefix = await self._read(PREFIX.size, wait_seconds)
        if not prefix:
            return None
        is_compressed, size_bytes = PREFIX.unpack(prefix)
        if is_compressed:
            raise NotSupported("execd takes no compressed messages; send plain messages")
        if size_bytes > MAX_MESSAGE_BYTES:
            raise PayloadTooLarge(
                f"a message has {size_bytes} bytes, and may have {MAX_MESSAGE_BYTES}"
            )
        self._lease.resize(size_bytes)
        data = await self._read(size_bytes, self._body_seconds)
        self._n_received += 1
        try:
            return self._handler.request_type.FromString(data)
        except DecodeError:
            name = self._handler.request_type.DESCRIPTOR.full_name
            raise InvalidArgument(f"the message is no {name}") from None

    async def _read(self, size_bytes: int, within_seconds: float | None) -> bytes:
        """Return the bytes; fewer, only none, at the end of the caller's messages."""
        try:
            async with asyncio.timeout(within_seconds):
                return await self._stream.recv_data(size_bytes)
        except TimeoutError:
            raise RequestTimeout(
                f"no whole message came within {within_seconds:g} s; repeat the call"
            ) from None
        except AssertionError:  # grpclib's answer to a stream that ends within a message
            raise InvalidArgument("the caller's stream ends within a message") from None

    async def receive(self) -> Any:
        """Return the only message of the caller. Raises as ``recv_message``."""
        message = await self.recv_message()
        if message is None:
            raise InvalidArgument("the call has no message")
        return message

    async def send_message(self, message: Message) -> None:
        """Raises ConnectionError if the caller takes nothing: the connection is cut."""
        if not self._has_headers:
            self._has_headers = True
            await self._within_stall(self._stream.send_headers(self._headers()))
        data = message.SerializeToString()
        await self._within_stall(self._stream.send_data(PREFIX.pack(False, len(data)) + data))

    async def send_trailing_metadata(
        self, *, status: Status = Status.OK, status_message: str | None = None
    ) -> None:
        """End the call. Idempotent: the first status counts."""
        if self.grpc_status is not None:
            return
        self.grpc_status = status
        trailers = [] if self._has_headers else self._headers()
        trailers.append(("grpc-status", str(status.value)))
        if status_message:
            trailers.append(("grpc-message", encode_grpc_message(status_message)))
        trailers += self.trailers.items()
        await self._within_stall(self._stream.send_headers(trailers, end_stream=True))
        if self._stream.closable:  # the caller may still be sending
            self._stream.reset_nowait()

    def _headers(self) -> list[tuple[str, str]]:
        return [
            (":status", "200"),
            ("content-type", CONTENT_TYPE),
            ("x-request-id", self.request_id),
            (INSTANCE_HEADER.lower(), self.instance_id),
            (EPISODE_HEADER.lower(), self.episode),
        ]

    async def _within_stall(self, sending: Any) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await sending
        except TimeoutError:
            # A close would wait for the peer to take the bytes that are buffered.
            self._cut()
            raise ConnectionResetError("the caller takes nothing") from None
