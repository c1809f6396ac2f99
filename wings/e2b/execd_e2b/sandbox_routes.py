"""envd's routes about the sandbox: ``/health``, ``/metrics``, ``/envs``, ``/init``.

``/init`` sets variables, the default user and the default workdir. ``/init`` never sets or clears
the token: execd knows only the token's hash, from its own settings.
"""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from execd.api.wire_api import ENGINE, GATE, Access, Route, json_reply, parse_json, read_body
from execd.engine.engine_api import InvalidArgument, NotSupported, check_environment, read_machine
from execd_e2b.accounts import find_account
from execd_e2b.sandbox import E2B_VARIABLES, IS_CODE_PORT, SANDBOX, Settled

MIB = 1 << 20
CODE_PORT = "49999"
"""The code interpreter's port in the header E2b-Sandbox-Port."""


class InitRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of ``/init``, as E2B's control plane sends it. Null equals absent."""

    env_vars: dict[str, str] | None = None
    access_token: str | None = None
    timestamp: str | None = None
    default_user: str | None = None
    default_workdir: str | None = None
    ca_bundle: str | None = None
    volume_mounts: list[Any] | None = None


INIT = msgspec.json.Decoder(InitRequest)


async def health(request: web.Request) -> web.StreamResponse:
    """Reply as envd (204), or as the code interpreter on its port (200)."""
    if request.app[IS_CODE_PORT] or request.headers.get("E2b-Sandbox-Port") == CODE_PORT:
        return web.Response(text="OK")
    return web.Response(status=204, headers={"Cache-Control": "no-store"})


async def metrics(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    machine = await engine.files.run(functools.partial(read_machine, engine.config.base_dir))
    usage = engine.read_usage()
    reply = {
        "ts": int(time.time()),
        "cpu_count": max(1, round(usage.cpu_count)),
        "cpu_used_pct": round(usage.cpu_percent, 2),
        "mem_total": usage.memory_size_bytes,
        "mem_used": usage.memory_used_bytes,
        "mem_total_mib": usage.memory_size_bytes // MIB,
        "mem_used_mib": usage.memory_used_bytes // MIB,
        "mem_cache": machine.cached_bytes,
        "disk_total": machine.disk_bytes,
        "disk_used": machine.disk_bytes - machine.disk_free_bytes,
    }
    return json_reply(reply, headers={"Cache-Control": "no-store"})


async def envs(request: web.Request) -> web.StreamResponse:
    return json_reply(request.app[SANDBOX].env, headers={"Cache-Control": "no-store"})


async def init(request: web.Request) -> web.StreamResponse:
    sandbox = request.app[SANDBOX]
    body = await read_body(request)
    asked = parse_json(body, INIT) if body else InitRequest()
    _refuse_unsupported(request, asked)
    at = _parse_timestamp(asked.timestamp)
    former_at = sandbox.settled.at
    if at is None or former_at is None or at > former_at:
        check_environment(asked.env_vars or {})
        if asked.default_user:
            await find_account(sandbox.engine, asked.default_user)
        if asked.default_workdir and not asked.default_workdir.startswith("/"):
            raise InvalidArgument("defaultWorkdir: an absolute path", field="defaultWorkdir")
        if asked.default_workdir:
            # At the first command, each call would be refused until the next /init.
            await sandbox.check_directory(asked.default_workdir, "defaultWorkdir", "defaultWorkdir")
        given = asked.env_vars
        former = sandbox.settled
        sandbox.settle(
            Settled(
                env=former.env if given is None else {**given, **E2B_VARIABLES},
                default_user=asked.default_user or former.default_user,
                default_workdir=asked.default_workdir or former.default_workdir,
                at=at or former.at,
            )
        )
    return web.Response(status=204, headers={"Cache-Control": "no-store"})


def _refuse_unsupported(request: web.Request, asked: InitRequest) -> None:
    """Raises InvalidArgument for a token that does not hold here, NotSupported."""
    if asked.access_token and not request.app[GATE].matches(asked.access_token):
        raise InvalidArgument(
            "accessToken: is not the token of this daemon, and /init does not set the token; start "
            "execd with --token-sha256",
            field="accessToken",
        )
    for name, value in (("caBundle", asked.ca_bundle), ("volumeMounts", asked.volume_mounts)):
        if value:
            raise NotSupported(f"{name}: execd does not change the machine; leave {name} out")


def _parse_timestamp(text: str | None) -> datetime | None:
    """Return the time of RFC 3339. Raises InvalidArgument."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument("timestamp: not a time as of RFC 3339", field="timestamp") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


ROUTES = (
    Route(
        method="GET",
        path="/health",
        handler=health,
        name="health",
        summary="Whether the daemon lives",
        replies={204: (), 200: ("text/plain",)},
        access=Access.PROBE,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        name="sandbox_metrics",
        summary="CPU, memory and disk of the sandbox",
        replies={200: (dict[str, float],)},
    ),
    Route(
        method="GET",
        path="/envs",
        handler=envs,
        name="sandbox_variables",
        summary="The variables of every command",
        replies={200: (dict[str, str],)},
    ),
    Route(
        method="POST",
        path="/init",
        handler=init,
        name="init_sandbox",
        summary="Set the variables, the user and the workdir of commands",
        body=(InitRequest,),
        is_body_optional=True,
        replies={204: ()},
    ),
)
