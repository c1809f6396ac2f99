"""E2B's envd, on a port of its own. The entry point of the dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd_e2b.settings import Settings

if TYPE_CHECKING:
    from execd.api.wire_api import PortContext, PortServer
    from execd.engine.engine_api import Engine

TITLE = "E2B's envd"
SETTINGS_NAME = "e2b"
__all__ = ["SETTINGS_NAME", "TITLE", "Settings", "open"]


def open(engine: Engine, settings: Settings, context: PortContext) -> PortServer:
    from execd.api.wire_api import make_http_port
    from execd_e2b.table import make_service

    return make_http_port(engine, context, make_service(settings, is_code_port=False))
