"""The probes: liveness, readiness, metadata and capabilities, for kubelets, routers and people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd import __version__
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply, replace_surrogates
from execd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA_PREFIX = "SANDBOX_"
# The list of sandboxd.
SECRET_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CRED",
    "KEY",
    "AUTH",
    "BEARER",
    "PRIVATE",
    "CERT",
)

# Encoded once: readiness probes come every second, from every pod of a pool.
ROOT = msgspec.json.encode(
    {"status": "ok", "message": "Sandbox Runtime is active.", "version": __version__}
)
OK = msgspec.json.encode({"status": "ok"})


async def root(_: web.Request) -> web.Response:
    """Answer 200 whenever requests are served, also without a warden and while draining. The words
    are the python-runtime's."""
    return web.Response(body=ROOT, content_type="application/json")


async def healthz(_: web.Request) -> web.Response:
    """Answer 200 while the event loop runs."""
    return web.Response(body=OK, content_type="application/json")


async def readyz(request: web.Request) -> web.Response:
    """Answer 200 if a command sent now would run, else 503."""
    if not request.app[ENGINE].is_ready:
        return json_reply({"status": "unavailable"}, 503)
    return web.Response(body=OK, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    if not engine.is_ready:
        raise Unavailable("draining" if engine.is_draining else "no warden at the moment")
    # Whole seconds, as in sandboxd: a Go client reads the number into an int.
    return json_reply({"status": "ok", "uptime_seconds": int(engine.uptime_seconds)})


async def metadata(_: web.Request) -> web.Response:
    """Answer with the daemon's SANDBOX_ variables, as sandboxd does, without names that look
    secret."""
    return json_reply({"env": public_variables(os.environ)})


async def capabilities(request: web.Request) -> web.Response:
    return json_reply(request.app[ENGINE].capabilities())


def public_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        replace_surrogates(name): replace_surrogates(value)
        for name, value in environment.items()
        if name.startswith(METADATA_PREFIX)
        and not any(word in name.upper() for word in SECRET_WORDS)
    }


def routes() -> list[web.RouteDef]:
    return [
        web.get("/", root),
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/v1/health", health),
        web.get("/v1/metadata", metadata),
        web.get("/v1/capabilities", capabilities),
    ]
