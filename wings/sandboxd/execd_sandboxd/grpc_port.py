"""sandboxd's gRPC half, ProcessService, on a port of its own. The entry point of the dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from execd.api.wire_api import PortContext, PortServer
    from execd.engine.engine_api import Engine

TITLE = "sandboxd gRPC"
SETTINGS_NAME = "sandboxd_grpc"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """None."""


def open(engine: Engine, settings: Settings, context: PortContext) -> PortServer:
    from execd_sandboxd.listener import make_server

    return make_server(engine, context)
