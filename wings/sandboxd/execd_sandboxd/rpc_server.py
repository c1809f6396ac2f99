"""A gRPC server on grpclib's HTTP/2 half: connections, calls as tasks, errors, the log.

Owners. The server owns the connections and one task for each call. A task ends by itself, or is
cancelled when the caller resets the call, when the connection is lost, or when the server closes.
A handler that runs a command is the command's reader, so a cancelled handler leaves the command,
and the engine ends the tree.

Limits. A connection may hold WINDOW_BYTES of unread bytes (HTTP/2's flow control) and 100 calls
(h2's default of SETTINGS_MAX_CONCURRENT_STREAMS). Above the number of connections, or when
descriptors are scarce, a new connection is closed at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.empty_pb2 import Empty
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.metadata import decode_timeout
from grpclib.protocol import AbstractHandler, H2Protocol
from h2.config import H2Configuration
from h2.exceptions import ProtocolError, StreamClosedError
from multidict import CIMultiDict

from execd.api.wire_api import (
    EPISODE_HEADER,
    EXPECT_EPISODE_HEADER,
    INSTANCE_HEADER,
    presented_tokens,
    request_id,
)
from execd.engine.engine_api import (
    ExecdError,
    Internal,
    InvalidArgument,
    NotSupported,
    Unauthenticated,
)
from execd_sandboxd.grpc_status import GRPC_STATUS
from execd_sandboxd.rpc_call import CONTENT_TYPE, RpcCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from grpclib.protocol import Stream

    from execd.api.wire_api import ConnectionLimits, TokenGate
    from execd.engine.engine_api import Engine, Restore

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
WINDOW_BYTES = 256 * 1024
# From the deadline of a call to the answer: the engine's bound for an answer to a timeout.
DEADLINE_ANSWER_SECONDS = 0.5
# Calls that need no token, and are answered before an awaited init: probes.
PROBES = "/grpc.health.v1.Health/"


async def _unknown(call: RpcCall) -> None:
    raise NotSupported(f"{call.path}: no service here has this method")


UNKNOWN = Handler(_unknown, Cardinality.UNARY_UNARY, Empty, Empty)
H2_CONFIG = H2Configuration(client_side=False, header_encoding=None)


class Service(Protocol):
    """Handlers by path."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


class RpcServer:
    """The server of one port. Begin with ``start``, end with ``cleanup``."""

    def __init__(
        self,
        engine: Engine,
        limits: ConnectionLimits,
        gate: TokenGate,
        services: Iterable[Service],
        *,
        shutdown_timeout: float,
    ) -> None:
        """``shutdown_timeout``: seconds that calls under way may take at the end."""
        self.engine = engine
        self.limits = limits
        self.is_closing = False
        self._gate = gate
        self._shutdown_timeout = shutdown_timeout
        self._handlers: dict[str, Handler] = {}
        for service in services:
            self._handlers.update(service.__mapping__())
        self._calls: set[asyncio.Task[None]] = set()
        self._connections: set[RpcConnection] = set()
        self._config = Configuration(
            http2_connection_window_size=WINDOW_BYTES, http2_stream_window_size=WINDOW_BYTES
        ).__for_server__()
        self._server: asyncio.Server | None = None
        self._end_subscription = engine.restores.subscribe(self._drop_all)

    async def start(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen. Return the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=backlog)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def cleanup(self) -> None:
        """Close the port, let calls under way end for a moment, and cut the rest."""
        self.is_closing = True
        self._end_subscription()
        if self._server is not None:
            self._server.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=self._shutdown_timeout)
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for connection in list(self._connections):
            connection.cut()

    def _connect(self) -> RpcConnection:
        return RpcConnection(self, self._config, H2_CONFIG)

    # For connections.

    def register(self, connection: RpcConnection, descriptor: int) -> bool:
        """Return whether there is a place for the connection."""
        if len(self._connections) >= MAX_CONNECTIONS or self.limits.are_scarce(descriptor):
            return False
        self._connections.add(connection)
        return True

    def _drop_all(self, _restore: Restore, _spared: object) -> None:
        """The sandbox was restored from a checkpoint: the peers of all connections are gone."""
        for connection in list(self._connections):
            connection.cut()

    def unregister(self, connection: RpcConnection) -> None:
        self._connections.discard(connection)

    def begin_call(
        self,
        connection: RpcConnection,
        stream: Stream,
        headers: list[tuple[bytes, bytes]],
        release: Callable[[], None],
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._serve(connection, stream, headers, release))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    # A call.

    async def _serve(
        self,
        connection: RpcConnection,
        stream: Stream,
        headers: list[tuple[bytes, bytes]],
        release: Callable[[], None],
    ) -> None:
        try:
            fields = CIMultiDict(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers
            )
            http_status = _refused_http(fields)
            if http_status is None:
                await self._call(connection, stream, fields)
                return
            async with asyncio.timeout(self.engine.config.stream_stall_seconds):
                instance_id = self.engine.restores.instance_id
                refusal = [
                    (":status", str(http_status)),
                    (INSTANCE_HEADER.lower(), instance_id),
                    (EPISODE_HEADER.lower(), self.engine.episodes.current),
                ]
                await stream.send_headers(refusal, end_stream=True)
        except TimeoutError:
            connection.cut()
        except (StreamClosedError, ConnectionError):
            pass  # the caller has left
        finally:
            release()

    async def _call(
        self, connection: RpcConnection, stream: Stream, fields: CIMultiDict[str]
    ) -> None:
        began = time.perf_counter()
        path = fields.get(":path", "")
        handler = self._handlers.get(path, UNKNOWN)
        lease = self.engine.in_flight.lease()
        call = RpcCall(
            stream,
            path,
            handler,
            fields,
            lease,
            body_seconds=self.limits.body_seconds,
            stall_seconds=self.engine.config.stream_stall_seconds,
            cut=connection.cut,
        )
        call.request_id = request_id(fields.get("X-Request-ID"))
        call.instance_id = self.engine.restores.instance_id
        call.episode = self.engine.episodes.current
        try:
            status, message = await self._outcome(call, handler)
            await call.send_trailing_metadata(status=status, status_message=message)
        finally:
            self.engine.episodes.leave()
            lease.release()
            if not call.has_execution:
                self._log(call, time.perf_counter() - began)

    async def _outcome(self, call: RpcCall, handler: Handler) -> tuple[Status, str | None]:
        """Run the handler. Return the status, and the message of an error."""
        try:
            self._check_access(call)
            seconds = _seconds_to_deadline(call)
            answer_by = None
            if seconds is not None:
                call.deadline = asyncio.get_running_loop().time() + seconds
                answer_by = call.deadline + DEADLINE_ANSWER_SECONDS
            async with asyncio.timeout_at(answer_by):
                await handler.func(call)
        except TimeoutError:
            return Status.DEADLINE_EXCEEDED, "the deadline of the call is over"
        except asyncio.CancelledError:
            if self.engine.episodes.was_ended():
                return Status.UNAVAILABLE, "the sandbox is being reset"
            if not self.is_closing:
                raise
            return Status.UNAVAILABLE, "execd is shutting down"
        except (StreamClosedError, ConnectionError):
            raise
        except ExecdError as error:
            return self._refusal(error, call)
        except Exception:
            return self._refusal(Internal("no handler of the error"), call)
        return Status.OK, None

    def _check_access(self, call: RpcCall) -> None:
        if call.path.startswith(PROBES):
            return
        self._gate.refuse_before_init()
        if self._gate.token_sha256 is None:
            self._enter(call)
            return
        matches = [self._gate.matches(token) for token in presented_tokens(call.metadata)]
        if not any(matches):
            raise Unauthenticated(
                "a valid access token is required" if matches else "an access token is required"
            )
        self._enter(call)

    def _enter(self, call: RpcCall) -> None:
        """Raises EpisodeOver (a Conflict), Unavailable during a reset."""
        expected = call.metadata.get(EXPECT_EPISODE_HEADER)
        self.engine.episodes.enter(expected)
        call.episode = self.engine.episodes.current

    def _refusal(self, error: ExecdError, call: RpcCall) -> tuple[Status, str]:
        """Count the error. A fault of execd is logged whole; the caller gets the id of the line."""
        self.engine.counters.error_replies[error.code] += 1
        message = error.message
        if isinstance(error, Internal):
            error_id = f"{random.getrandbits(64):016x}"
            facts = {"error_id": error_id, "request_id": call.request_id}
            logger.exception("internal error", extra=facts)
            message = f"internal error {error_id}"
        return GRPC_STATUS[error.code], message

    def _log(self, call: RpcCall, duration_seconds: float) -> None:
        """Write the log line of a call. Probes have none."""
        if call.path.startswith(PROBES) or not logger.isEnabledFor(logging.INFO):
            return
        status = call.grpc_status
        fields = {
            "method": "POST",
            "path": call.path,
            "grpc_status": None if status is None else status.name,
            "request_seconds": round(duration_seconds, 6),
            "request_id": call.request_id,
        }
        logger.info("call", extra=fields)


class RpcConnection(H2Protocol, AbstractHandler):
    """One connection and its calls."""

    def __init__(
        self, server: RpcServer, config: Configuration, h2_config: H2Configuration
    ) -> None:
        super().__init__(self, config, h2_config)
        self._server = server
        self._wire: asyncio.Transport | None = None
        self._calls: dict[Stream, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._wire is None, "one transport in the life of a connection"
        self._wire = transport  # type: ignore[assignment]  # uvloop's is one by its methods
        super().connection_made(transport)
        if not self._server.register(self, transport.get_extra_info("socket").fileno()):
            self.cut()
            return
        # A peer that sends nothing gives its descriptor back; connection_lost ends the timer.
        self._cut_after(self._server.limits.request_seconds)

    def data_received(self, data: bytes) -> None:
        """As grpclib's, with GOAWAY for a peer that breaks HTTP/2's rules, and without grpclib's
        error for a frame of an unknown type, which RFC 9113 §4.1 tells to ignore."""
        self._server.engine.counters.received_bytes += len(data)
        try:
            events = self.connection.feed(data)
        except ProtocolError:
            self.connection.flush()
            self.processor.close("Protocol error")
            # The close waits until the peer has taken the bytes that are buffered.
            self._cut_after(self._server.limits.request_seconds)
            return
        self.connection.flush()
        for event in events:
            if event.__class__ in getattr(self.processor, "processors", ()):
                self.processor.process(event)
        self.connection.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.unregister(self)
        self._stop_timer()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close the connection. Bytes that the peer has not taken are lost."""
        self._stop_timer()
        if self._wire is not None:
            self._wire.abort()

    def _cut_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.cut)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # grpclib calls these.

    def accept(self, stream: Stream, headers: Any, release_stream: Callable[[], None]) -> None:
        self._stop_timer()
        task = self._server.begin_call(self, stream, headers, release_stream)
        self._calls[stream] = task
        task.add_done_callback(lambda _task: self._calls.pop(stream, None))

    def cancel(self, stream: Stream) -> None:
        """The caller has reset the call."""
        if stream in self._calls:
            self._calls[stream].cancel()

    def close(self) -> None:
        """The connection is over."""
        for task in self._calls.values():
            task.cancel()


def _seconds_to_deadline(call: RpcCall) -> float | None:
    """Return the seconds that the caller waits; None: for ever. Raises InvalidArgument."""
    header = call.metadata.get("grpc-timeout")
    if header is None:
        return None
    try:
        return float(decode_timeout(header))
    except ValueError:
        raise InvalidArgument("grpc-timeout: malformed", field="grpc-timeout") from None


def _refused_http(fields: CIMultiDict[str]) -> int | None:
    """Return the HTTP status for a request that is no call (gRPC over HTTP/2, "Requests"); None:
    the request is a call."""
    if fields.get(":method") != "POST":
        return 405
    content_type = fields.get("content-type", "").partition(";")[0].strip()
    return None if content_type in ("application/grpc", CONTENT_TYPE) else 415
