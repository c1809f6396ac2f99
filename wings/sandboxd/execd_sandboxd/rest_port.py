"""sandboxd's REST half: the routes of port 8888 on a second port. The dialect's entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from execd.api.wire_api import PortContext, PortServer
    from execd.engine.engine_api import Engine

TITLE = "sandboxd REST"
SETTINGS_NAME = "sandboxd_rest"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """None."""


def open(engine: Engine, settings: Settings, context: PortContext) -> PortServer:
    from execd.api.wire_api import make_http_port

    return make_http_port(engine, context)
