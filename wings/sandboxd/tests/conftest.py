"""A gRPC server on the shared engine, and a channel to the server."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_asyncio
from google.protobuf.empty_pb2 import Empty
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod

from execd.api.wire.auth import TokenGate
from execd.api.wire.port import PortContext
from execd.engine.engine import Engine
from execd_sandboxd import process_pb2
from execd_sandboxd.listener import make_server
from execd_sandboxd.process_service import SERVICE
from tests.api.conftest import LIMITS, make_config, share_loop
from tests.api.conftest import guarded_loop as guarded_loop
from tests.api.conftest import one_loop as one_loop
from tests.api.conftest import serve as serve
from tests.api.conftest import shared_engine as shared_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import pytest

    from execd.api.wire.connections import ConnectionLimits
    from tests.api.shared_engine import SharedEngine

DEADLINE_SECONDS = 20.0


@dataclass
class Grpc:
    engine: Engine
    port: int
    channel: Channel

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        """Call a method of ProcessService with one reply."""
        name = f"/{SERVICE}/{method}"
        reply = getattr(process_pb2, f"{method}Response", Empty)
        options = {"timeout": DEADLINE_SECONDS} | options
        return await UnaryUnaryMethod(self.channel, name, type(request), reply)(request, **options)

    async def execute(self, *command: str, **config: Any) -> Any:
        request = process_pb2.ExecuteRequest(
            config=process_pb2.ProcessConfig(command=command, **config)
        )
        return await self.call("Execute", request)

    def start(self, *command: str, pty: Any = None, timeout: float | None = None) -> Any:
        """The opened call of Start, for ``async with``."""
        config = process_pb2.ProcessConfig(command=command)
        request = process_pb2.StartRequest(config=config, pty=pty)
        method = UnaryStreamMethod(
            self.channel,
            f"/{SERVICE}/Start",
            process_pb2.StartRequest,
            process_pb2.StartResponse,
        )
        return _Started(method, request, timeout or DEADLINE_SECONDS)


FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_loop(items, FOLDER)


class _Started:
    def __init__(self, method: Any, request: Any, timeout: float) -> None:
        self._opened = method.open(timeout=timeout)
        self._request = request

    async def __aenter__(self) -> Any:
        stream = await self._opened.__aenter__()
        await stream.send_message(self._request, end=True)
        return stream

    async def __aexit__(self, *reason: Any) -> Any:
        return await self._opened.__aexit__(*reason)


@pytest_asyncio.fixture(loop_scope="session")
async def serve_grpc(
    tmp_path: Path, shared_engine: SharedEngine
) -> AsyncIterator[Callable[..., Awaitable[Grpc]]]:
    """Start a server: for the shared engine, unless there are settings."""
    async with contextlib.AsyncExitStack() as ends:

        async def start(
            limits: ConnectionLimits = LIMITS,
            gate: TokenGate | None = None,
            metadata: Mapping[str, str] | None = None,
            **settings: Any,
        ) -> Grpc:
            if settings:
                config = make_config(tmp_path, **settings)
                engine = await ends.enter_async_context(Engine.open(config))
                ends.push_async_callback(engine.drain)
            else:
                engine = shared_engine.engine
                ends.push_async_callback(shared_engine.reset)
            server = make_server(engine, PortContext(gate or TokenGate(None), limits, 1.0))
            _, port = await server.start("127.0.0.1", 0, 100)
            ends.push_async_callback(server.cleanup)
            channel = Channel("127.0.0.1", port)
            ends.callback(channel.close)
            return Grpc(engine, port, channel)

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def grpc(serve_grpc: Callable[..., Awaitable[Grpc]]) -> Grpc:
    return await serve_grpc()
