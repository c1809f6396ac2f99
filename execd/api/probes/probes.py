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
from execd.api.wire.replies import json_reply, replace_all_surrogates, replace_surrogates
from execd.api.wire.route import Access, RouteTable
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

ROUTES = RouteTable()

# Encoded once: readiness probes come every second, from every pod of a pool.
ROOT = msgspec.json.encode(
    RootReply(status="ok", message="Sandbox Runtime is active.", version=__version__)
)
OK = msgspec.json.encode(StatusReply(status="ok"))


@ROUTES.add("GET", "/", replies={200: (RootReply,)}, access=Access.PROBE)
async def check_root(_: web.Request) -> web.Response:
    """Whether the daemon serves requests. 200 also without a warden and while draining. The words
    are the python-runtime's."""
    return web.Response(body=ROOT, content_type="application/json")


@ROUTES.add("GET", "/healthz", replies={200: (StatusReply,)}, access=Access.PROBE)
async def check_liveness(_: web.Request) -> web.Response:
    """Whether the event loop runs."""
    return web.Response(body=OK, content_type="application/json")


@ROUTES.add("GET", "/readyz", replies={200: (ReadyReply,), 503: (ReadyReply,)}, access=Access.PROBE)
async def check_readiness(request: web.Request) -> web.Response:
    """Whether a command sent now would run. 200 or 503.

    Sessions do not count: a pod without a Python for sessions runs commands, and a router must find
    the pod. Open to everyone, so the reply names the cause alone, without words of the interpreter.
    """
    engine = request.app[ENGINE]
    if (obstacle := engine.obstacle) is not None:
        return json_reply(ReadyReply(status="unavailable", cause=obstacle.cause), 503)
    if (refusal := engine.sessions.refusal) is not None:
        return json_reply(ReadyReply(status="ok", sessions_refused=refusal.cause))
    return web.Response(body=OK, content_type="application/json")


@ROUTES.add(
    "GET", "/v1/health", replies={200: (HealthReply,)}, errors=(Unavailable,), access=Access.PROBE
)
async def check_health(request: web.Request) -> web.Response:
    """Whether a command sent now would run, and the age of the daemon."""
    engine = request.app[ENGINE]
    if (obstacle := engine.obstacle) is not None:
        raise Unavailable(obstacle.message)
    # Whole seconds, as in sandboxd: a Go client reads the number into an int.
    return json_reply(HealthReply(status="ok", uptime_seconds=int(engine.uptime_seconds)))


@ROUTES.add("GET", "/v1/metadata", replies={200: (MetadataReply,)})
async def get_metadata(_: web.Request) -> web.Response:
    """The SANDBOX_ variables of the daemon that do not look secret. As in sandboxd."""
    return json_reply(MetadataReply(env=public_variables(os.environ)))


@ROUTES.add("GET", "/v1/capabilities", replies={200: (CapabilitiesReply,)})
async def get_capabilities(request: web.Request) -> web.Response:
    """What execd found on this kernel, and which protections hold."""
    # Names of variables and paths need not be UTF-8.
    facts = replace_all_surrogates(request.app[ENGINE].capabilities())
    return json_reply(msgspec.convert(facts, CapabilitiesReply))


@ROUTES.add("GET", "/v1/stats", replies={200: (Stats,)})
async def get_stats(request: web.Request) -> web.Response:
    """Figures of executions, sessions, CPU, memory, disk and traffic."""
    return json_reply(request.app[ENGINE].stats())


@ROUTES.add("GET", METRICS, replies={200: tuple(Format)})
async def get_metrics(request: web.Request) -> web.Response:
    """The metrics of the daemon, in the text format of Prometheus or OpenMetrics. All
    series that have a value now."""
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
