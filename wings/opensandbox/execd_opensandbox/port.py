"""OpenSandbox's execd, on a port of its own. The entry point of the dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd_opensandbox.settings import Settings

if TYPE_CHECKING:
    from execd.api.wire_api import PortContext, PortServer
    from execd.engine.engine_api import Engine

TITLE = "OpenSandbox"
SETTINGS_NAME = "opensandbox"
__all__ = ["SETTINGS_NAME", "TITLE", "Settings", "open"]


def open(engine: Engine, settings: Settings, context: PortContext) -> PortServer:
    from execd.api.wire_api import make_http_port
    from execd_opensandbox.opensandbox_dialect import make_service

    if settings.runtime_init:
        context.gate.await_init()
    return make_http_port(engine, context, make_service(settings))
