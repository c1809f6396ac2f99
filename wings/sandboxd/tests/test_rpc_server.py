from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import msgspec
import pytest
from grpclib.client import StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import StreamTerminatedError
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from execd.api.wire.auth import TokenGate
from execd.model import ExitReason
from execd_sandboxd import process_pb2, rpc_server
from execd_sandboxd.process_service import SERVICE, ProcessService
from execd_sandboxd.rpc_call import MAX_MESSAGE_BYTES, PREFIX
from tests.api.conftest import LIMITS, wait_until
from wings.sandboxd.tests.test_process_service import refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wings.sandboxd.tests.conftest import Grpc

    Serve = Callable[..., Awaitable[Grpc]]

HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
TOKEN = "s3cret"
METHODS = ("Start", "Execute", "WriteStdin", "SendSignal", "ResizeTTY")
EXECUTE_TRUE = process_pb2.ExecuteRequest(config=process_pb2.ProcessConfig(command=["true"]))


class RawClient:
    """HTTP/2 by frames, for what no gRPC client sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        )
        self.h2.initiate_connection()

    def headers(self, path: str = f"/{SERVICE}/Execute", **changed: str) -> list[tuple[str, str]]:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        fields |= {name.replace("_", "-"): value for name, value in changed.items()}
        return list(fields.items())

    async def send(self) -> None:
        self._writer.write(self.h2.data_to_send())
        await self._writer.drain()

    async def events(self) -> list[h2.events.Event]:
        """The next events; none: the peer has closed."""
        async with asyncio.timeout(20):
            while True:
                data = await self._reader.read(65536)
                if not data:
                    return []
                found = self.h2.receive_data(data)
                await self.send()
                if found:
                    return found

    async def reply_headers(self) -> dict[str, str]:
        """All headers of the reply, trailers included."""
        fields: dict[str, str] = {}
        while events := await self.events():
            for event in events:
                fields |= dict(getattr(event, "headers", None) or {})
                if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                    return fields
        return fields

    def close(self) -> None:
        self._writer.close()


async def raw_client(grpc: Grpc) -> RawClient:
    return RawClient(*await asyncio.open_connection("127.0.0.1", grpc.port))


# --- access


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [None, "wrong"])
async def test_each_method_needs_the_token(
    serve_grpc: Serve, method: str, token: str | None
) -> None:
    grpc = await serve_grpc(gate=TokenGate(hashlib.sha256(TOKEN.encode()).hexdigest()))
    metadata = {} if token is None else {"authorization": f"Bearer {token}"}
    request = getattr(process_pb2, f"{method}Request")()
    error = await refusal(grpc.call(method, request, metadata=metadata))
    assert error.status is Status.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["authorization", "x-access-token"])
async def test_token_is_taken_from_the_metadata(serve_grpc: Serve, name: str) -> None:
    grpc = await serve_grpc(gate=TokenGate(hashlib.sha256(TOKEN.encode()).hexdigest()))
    value = f"Bearer {TOKEN}" if name == "authorization" else TOKEN
    reply = await grpc.call("Execute", EXECUTE_TRUE, metadata={name: value})
    assert reply.exit_code == 0


async def test_before_the_init_only_health_is_served(serve_grpc: Serve) -> None:
    gate = TokenGate(None)
    gate.await_init()
    grpc = await serve_grpc(gate=gate)
    error = await refusal(grpc.call("Execute", EXECUTE_TRUE))
    assert error.status is Status.UNAVAILABLE
    assert await health(grpc) == HealthCheckResponse.SERVING


async def test_reflection_needs_the_token_too(serve_grpc: Serve) -> None:
    grpc = await serve_grpc(gate=TokenGate("0" * 64))
    assert (await refusal(services(grpc))).status is Status.UNAUTHENTICATED


# --- health and reflection


async def health(grpc: Grpc, service: str = "") -> int:
    check = UnaryUnaryMethod(grpc.channel, HEALTH, HealthCheckRequest, HealthCheckResponse)
    return (await check(HealthCheckRequest(service=service))).status


async def services(grpc: Grpc) -> list[str]:
    method = StreamStreamMethod(
        grpc.channel, REFLECTION, ServerReflectionRequest, ServerReflectionResponse
    )
    [reply] = await method([ServerReflectionRequest(list_services="")])
    return [service.name for service in reply.list_services_response.service]


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_serving_while_commands_can_run(grpc: Grpc, service: str) -> None:
    assert await health(grpc, service) == HealthCheckResponse.SERVING


async def test_health_is_not_serving_while_the_daemon_drains(serve_grpc: Serve) -> None:
    grpc = await serve_grpc(timeout=5)
    await grpc.engine.drain()
    assert await health(grpc) == HealthCheckResponse.NOT_SERVING
    assert (await refusal(grpc.execute("true"))).status is Status.UNAVAILABLE


async def test_watch_of_the_health_begins_with_the_present_state(grpc: Grpc) -> None:
    watch = UnaryStreamMethod(
        grpc.channel, "/grpc.health.v1.Health/Watch", HealthCheckRequest, HealthCheckResponse
    )
    async with watch.open() as stream:
        await stream.send_message(HealthCheckRequest(service=SERVICE), end=True)
        assert (await stream.recv_message()).status == HealthCheckResponse.SERVING
        await stream.cancel()


async def test_reflection_names_the_services_and_their_methods(grpc: Grpc) -> None:
    assert set(await services(grpc)) == {SERVICE, "grpc.health.v1.Health"}
    described = process_pb2.DESCRIPTOR.services_by_name["ProcessService"].methods_by_name
    assert set(described) == set(METHODS)


# --- calls


async def test_unknown_method_is_unimplemented(grpc: Grpc) -> None:
    method = UnaryUnaryMethod(
        grpc.channel, "/no.Service/None", HealthCheckRequest, HealthCheckResponse
    )
    assert (await refusal(method(HealthCheckRequest()))).status is Status.UNIMPLEMENTED


async def test_fault_of_execd_is_logged_whole_and_shown_as_an_id(
    grpc: Grpc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(ProcessService, "_run", fail)
    error = await refusal(grpc.execute("true"))
    assert error.status is Status.INTERNAL
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.message == f"internal error {record.__dict__['error_id']}"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    ("changed", "http_status"),
    [({":method": "GET"}, "405"), ({"content-type": "application/json"}, "415")],
)
async def test_request_that_is_no_call_gets_the_http_status(
    grpc: Grpc, changed: dict[str, str], http_status: str
) -> None:
    client = await raw_client(grpc)
    fields = dict(client.headers()) | changed
    client.h2.send_headers(1, list(fields.items()), end_stream=True)
    await client.send()
    assert (await client.reply_headers())[":status"] == http_status
    client.close()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (PREFIX.pack(False, MAX_MESSAGE_BYTES + 1), Status.RESOURCE_EXHAUSTED),
        (PREFIX.pack(False, 0xFFFFFFFF), Status.RESOURCE_EXHAUSTED),
        (PREFIX.pack(True, 0), Status.UNIMPLEMENTED),
        (PREFIX.pack(False, 3) + b"\xff\xff\xff", Status.INVALID_ARGUMENT),
        (PREFIX.pack(False, 9) + b"cut", Status.INVALID_ARGUMENT),
        (b"", Status.INVALID_ARGUMENT),
    ],
)
async def test_damaged_message_is_refused(grpc: Grpc, message: bytes, status: Status) -> None:
    client = await raw_client(grpc)
    client.h2.send_headers(1, client.headers())
    client.h2.send_data(1, message, end_stream=True)
    await client.send()
    assert int((await client.reply_headers())["grpc-status"]) == status.value
    client.close()


async def test_malformed_deadline_is_refused(grpc: Grpc) -> None:
    client = await raw_client(grpc)
    client.h2.send_headers(1, [*client.headers(), ("grpc-timeout", "soon")])
    client.h2.send_data(1, PREFIX.pack(False, 0), end_stream=True)
    await client.send()
    fields = await client.reply_headers()
    assert int(fields["grpc-status"]) == Status.INVALID_ARGUMENT.value
    client.close()


async def test_caller_of_a_stream_may_be_silent_between_messages(serve_grpc: Serve) -> None:
    limits = msgspec.structs.replace(LIMITS, body_seconds=0.5)
    grpc = await serve_grpc(limits)
    method = StreamStreamMethod(
        grpc.channel, REFLECTION, ServerReflectionRequest, ServerReflectionResponse
    )
    async with method.open(timeout=20) as stream:
        await stream.send_message(ServerReflectionRequest(list_services=""))
        assert (await stream.recv_message()).list_services_response.service
        # A later timer of the server's own loop: a limit would run before.
        await asyncio.sleep(2 * limits.body_seconds)
        await stream.send_message(ServerReflectionRequest(list_services=""), end=True)
        assert (await stream.recv_message()).list_services_response.service


async def test_message_that_does_not_come_is_given_up(serve_grpc: Serve) -> None:
    limits = msgspec.structs.replace(LIMITS, body_seconds=0.2)
    grpc = await serve_grpc(limits)
    client = await raw_client(grpc)
    client.h2.send_headers(1, client.headers())
    await client.send()
    fields = await client.reply_headers()
    assert int(fields["grpc-status"]) == Status.ABORTED.value
    client.close()


# --- connections


async def test_bytes_that_are_not_http_2_close_the_connection(grpc: Grpc) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()


async def test_frame_of_an_unknown_type_is_ignored(grpc: Grpc) -> None:
    client = await raw_client(grpc)
    await client.send()
    client._writer.write(b"\0\0\1" + b"\xbb" + b"\0" + b"\0\0\0\0" + b"x")
    client.h2.send_headers(1, client.headers())
    data = EXECUTE_TRUE.SerializeToString()
    client.h2.send_data(1, PREFIX.pack(False, len(data)) + data, end_stream=True)
    await client.send()
    assert (await client.reply_headers())["grpc-status"] == "0"
    client.close()


async def test_connection_without_a_call_is_closed(serve_grpc: Serve) -> None:
    limits = msgspec.structs.replace(LIMITS, request_seconds=0.2)
    grpc = await serve_grpc(limits)
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc.port)
    async with asyncio.timeout(20):
        try:
            await reader.read()
        except ConnectionResetError:
            pass
    writer.close()


async def test_connection_above_the_limit_is_closed(
    grpc: Grpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await grpc.execute("true")).exit_code == 0
    monkeypatch.setattr(rpc_server, "MAX_CONNECTIONS", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", grpc.port)
    async with asyncio.timeout(20):
        try:
            await reader.read()
        except ConnectionResetError:
            pass
    writer.close()
    assert (await grpc.execute("true")).exit_code == 0, "the first connection stays"


async def test_connection_from_before_a_restore_is_cut_and_its_command_goes_on(
    serve_grpc: Serve,
) -> None:
    grpc = await serve_grpc(sessions="off")
    config = process_pb2.ProcessConfig(command=["sleep", "1000"])
    request = process_pb2.ExecuteRequest(config=config)
    calling = asyncio.create_task(grpc.call("Execute", request))
    live = grpc.engine._registry
    await wait_until(lambda: [one for one in live.live if one.started_at], "the command runs")
    [execution] = live.live
    assert grpc.engine.restores.report(None)
    with pytest.raises((OSError, StreamTerminatedError)):
        await calling
    assert live.live == [execution]
    assert execution.cause is None
    reply = await grpc.call("Execute", EXECUTE_TRUE)
    assert reply.exit_code == 0


async def test_caller_that_takes_nothing_is_cut_and_ends_nothing(serve_grpc: Serve) -> None:
    grpc = await serve_grpc(stream_stall_seconds=0.3)
    client = await raw_client(grpc)
    config = process_pb2.ProcessConfig(command=["/bin/sh", "-c", "head -c 1000000 /dev/zero"])
    data = process_pb2.StartRequest(config=config).SerializeToString()
    client.h2.send_headers(1, client.headers(f"/{SERVICE}/Start"))
    client.h2.send_data(1, PREFIX.pack(False, len(data)) + data, end_stream=True)
    await client.send()
    # The client never enlarges HTTP/2's window of 64 KiB, so most of the output cannot be sent.
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            while await client.events():
                pass
    client.close()
    execution = grpc.engine.list(limit=1)[0][0]
    assert (await execution.wait()).exit_reason is ExitReason.EXITED
