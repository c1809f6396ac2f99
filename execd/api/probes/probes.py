"""The probes: liveness, readiness, metadata, capabilities and figures, for kubelets, routers and
people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from execd import __version__
from execd.api.probes.exposition import Format, choose_format, render
from execd.api.probes.families import families
from execd.api.probes.probe_reply import (
    CapabilitiesReply,
    HealthReply,
    MetadataReply,
    ReadyReply,
    RootReply,
    StatusReply,
)
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import json_reply, replace_surrogates
from execd.api.wire.route import Access, Route
from execd.engine.metrics.stats import Stats
from execd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

METRICS = "/metrics"
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
    RootReply(status="ok", message="Sandbox Runtime is active.", version=__version__)
)
OK = msgspec.json.encode(StatusReply(status="ok"))


async def root(_: web.Request) -> web.Response:
    """Answer 200 whenever requests are served, also without a warden and while draining. The words
    are the python-runtime's."""
    return web.Response(body=ROOT, content_type="application/json")


async def healthz(_: web.Request) -> web.Response:
    """Answer 200 while the event loop runs."""
    return web.Response(body=OK, content_type="application/json")


async def readyz(request: web.Request) -> web.Response:
    """Answer 200 if a command sent now would run, else 503.

    Sessions do not count: a pod without a Python for sessions runs commands, and a router must find
    the pod. Open to everyone, so the reply names the cause alone, without words of the interpreter.
    """
    engine = request.app[ENGINE]
    if (obstacle := engine.obstacle) is not None:
        return json_reply(ReadyReply(status="unavailable", cause=obstacle.cause), 503)
    if (refusal := engine.sessions.refusal) is not None:
        return json_reply(ReadyReply(status="ok", sessions_refused=refusal.cause))
    return web.Response(body=OK, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    if (obstacle := engine.obstacle) is not None:
        raise Unavailable(obstacle.message)
    # Whole seconds, as in sandboxd: a Go client reads the number into an int.
    return json_reply(HealthReply(status="ok", uptime_seconds=int(engine.uptime_seconds)))


async def metadata(_: web.Request) -> web.Response:
    """Answer with the daemon's SANDBOX_ variables, as sandboxd does, without names that look
    secret."""
    return json_reply(MetadataReply(env=public_variables(os.environ)))


async def capabilities(request: web.Request) -> web.Response:
    facts = request.app[ENGINE].capabilities()
    return json_reply(msgspec.convert(facts, CapabilitiesReply))


async def stats(request: web.Request) -> web.Response:
    return json_reply(request.app[ENGINE].stats())


async def metrics(request: web.Request) -> web.Response:
    """Answer with all series that have a value now."""
    engine = request.app[ENGINE]
    stats = engine.stats()
    text_format = choose_format(request.headers.get("Accept", ""))
    text = render(families(), stats, engine.counters, text_format)
    # As a header: aiohttp would parse a ``content_type`` argument and join its parts again.
    return web.Response(body=text.encode(), headers={"Content-Type": text_format.content_type})


def public_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        replace_surrogates(name): replace_surrogates(value)
        for name, value in environment.items()
        if name.startswith(METADATA_PREFIX)
        and not any(word in name.upper() for word in SECRET_WORDS)
    }


ROUTES = (
    Route(
        method="GET",
        path="/",
        handler=root,
        name="check_root",
        summary="Whether the daemon serves requests",
        replies={200: (RootReply,)},
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=healthz,
        name="check_liveness",
        summary="Whether the event loop runs",
        replies={200: (StatusReply,)},
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=readyz,
        name="check_readiness",
        summary="Whether a command sent now would run",
        replies={200: (ReadyReply,), 503: (ReadyReply,)},
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/v1/health",
        handler=health,
        name="check_health",
        summary="Whether a command sent now would run, and the age of the daemon",
        replies={200: (HealthReply,)},
        errors=(Unavailable,),
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/v1/metadata",
        handler=metadata,
        name="get_metadata",
        summary="The SANDBOX_ variables of the daemon that do not look secret",
        replies={200: (MetadataReply,)},
    ),
    Route(
        method="GET",
        path="/v1/capabilities",
        handler=capabilities,
        name="get_capabilities",
        summary="What execd found on this kernel, and which protections hold",
        replies={200: (CapabilitiesReply,)},
    ),
    Route(
        method="GET",
        path="/v1/stats",
        handler=stats,
        name="get_stats",
        summary="Figures of executions, sessions, CPU, memory, disk and traffic",
        replies={200: (Stats,)},
    ),
    Route(
        method="GET",
        path=METRICS,
        handler=metrics,
        name="get_metrics",
        summary="The metrics of the daemon, in the text format of Prometheus or OpenMetrics",
        replies={200: tuple(Format)},
    ),
)
