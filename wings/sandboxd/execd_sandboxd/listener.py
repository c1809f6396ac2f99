"""The server of the gRPC port: ProcessService, health and reflection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib.health.check import ServiceCheck
from grpclib.health.service import Health
from grpclib.reflection.service import ServerReflection

from execd_sandboxd.process_service import DIALECT, ProcessService
from execd_sandboxd.rpc_server import RpcServer

if TYPE_CHECKING:
    from execd.api.wire_api import PortContext
    from execd.engine.engine_api import Engine

HEALTH_TTL_SECONDS = 1.0


class EngineCheck(ServiceCheck):
    """Whether the engine can run commands. ``ServiceCheck`` looks for a change while somebody
    watches, and alone knows no state before its first look."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(self._look, check_ttl=HEALTH_TTL_SECONDS)
        self._engine = engine

    async def _look(self) -> bool:
        return self._engine.is_ready

    def __status__(self) -> bool:
        return self._engine.is_ready


def make_server(engine: Engine, context: PortContext) -> RpcServer:
    """Make the server for ``engine``. The engine must outlive the server."""
    engine.counters.add_dialect(DIALECT)
    processes = ProcessService(engine)
    health = Health({processes: [EngineCheck(engine)]})
    services = ServerReflection.extend([processes, health])
    return RpcServer(
        engine,
        context.limits,
        context.gate,
        services,
        shutdown_timeout=context.shutdown_timeout_seconds,
    )
