"""The sandbox itself.

    GET /ping             the daemon serves
    GET /metrics          CPU and memory       GET /metrics/watch: every second, until the client
                                               leaves
    *   /v1/isolated/*    isolated sessions, which this daemon does not have

A look at the metrics waits for no second sample: the CPU usage is that since the look before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from execd.api.wire_api import ENGINE, Access, Route, abort_when_stalled, json_reply
from execd.engine.engine_api import NotSupported
from execd_opensandbox.event_frames import STREAM_HEADERS
from execd_opensandbox.requests import SETTINGS

if TYPE_CHECKING:
    from execd.engine.engine_api import Engine

MIB = 1 << 20
WATCH_SECONDS = 1.0
NO_ISOLATION = (
    "isolated sessions are not served: every sandbox of execd is a pod of its own; use another "
    "sandbox, or a bash session (POST /session)"
)


class SandboxMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of the sandbox."""

    cpu_count: float
    cpu_used_pct: float
    mem_total_mib: float
    mem_used_mib: float
    timestamp: int
    """Milliseconds since the epoch."""


async def ping(_: web.Request) -> web.StreamResponse:
    return web.Response()


def read_metrics(engine: Engine) -> SandboxMetrics:
    usage = engine.read_usage()
    return SandboxMetrics(
        cpu_count=usage.cpu_count,
        cpu_used_pct=round(usage.cpu_percent, 3),
        mem_total_mib=round(usage.memory_size_bytes / MIB, 3),
        mem_used_mib=round(usage.memory_used_bytes / MIB, 3),
        timestamp=time.time_ns() // 1_000_000,
    )


async def metrics(request: web.Request) -> web.StreamResponse:
    return json_reply(read_metrics(request.app[ENGINE]))


async def watch(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(request)
    if request.method == "GET":
        with abort_when_stalled(request):
            while not engine.is_draining:
                await response.write(msgspec.json.encode(read_metrics(engine)) + b"\n")
                await asyncio.sleep(WATCH_SECONDS)
    await response.write_eof()
    return response


async def isolation(request: web.Request) -> web.StreamResponse:
    """Reply that there is no isolation, in the shape of OpenSandbox."""
    facts: dict[str, Any] = {
        "available": False,
        "isolator": "",
        "version": "",
        "message": NO_ISOLATION,
        "setpriv_available": False,
        "userns_available": False,
        "commit_supported": False,
        "diff_supported": False,
        "hardening": {},
    }
    if request.app[SETTINGS].runtime_init:
        facts["runtimeInit"] = {"version": 1}
    return json_reply(facts)


async def refuse_isolation(_: web.Request) -> web.StreamResponse:
    raise NotSupported(NO_ISOLATION)


ISOLATED: dict[str, Any] = {"replies": {200: (dict[str, Any],)}, "errors": (NotSupported,)}
ROUTES = (
    Route(
        method="GET",
        path="/ping",
        handler=ping,
        name="opensandbox_ping",
        summary="Whether the daemon serves",
        replies={200: ()},
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        name="opensandbox_metrics",
        summary="CPU and memory of the sandbox",
        replies={200: (SandboxMetrics,)},
    ),
    Route(
        method="GET",
        path="/metrics/watch",
        handler=watch,
        name="opensandbox_watch_metrics",
        summary="CPU and memory of the sandbox, every second",
        replies={200: ("text/event-stream",)},
    ),
    Route(
        method="GET",
        path="/v1/isolated/capabilities",
        handler=isolation,
        name="opensandbox_isolation",
        summary="Whether there are isolated sessions",
        **ISOLATED,
    ),
    Route(
        method="*",
        path="/v1/isolated/{rest:.*}",
        handler=refuse_isolation,
        name="opensandbox_isolated",
        summary="Isolated sessions, which are refused",
        **ISOLATED,
    ),
)
