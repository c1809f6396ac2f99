"""The init of a sandbox that was started before its owner was known.

    GET  /ready             whether the init has come
    POST /internal/init     the owner's token, as a hash, and variables of all programs; once

Both routes exist only with ``--runtime-init``. Until the init every listener answers 503 to all
requests but probes and this one (``wire.auth.TokenGate``), so no program of the sandbox runs that
could claim the token first. The init is accepted once: a second init is 409, also with the same
body. A body that breaks a rule changes nothing, and the init can be sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.opensandbox.requests import ENV_FILE_VARIABLE, PORT_VARIABLE, parse_body
from execd.api.wire.keys import ENGINE, GATE
from execd.api.wire.replies import json_reply
from execd.api.wire.route import Access, Route
from execd.engine.engine import SandboxName
from execd.errors import Conflict, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED_VARIABLES = frozenset(
    ("EXECD_ACCESS_TOKEN", "EXECD_EXECUTION_ID", "JUPYTER_TOKEN", ENV_FILE_VARIABLE, PORT_VARIABLE)
)
"""Variables that execd gives to programs itself, or that hold a token of OpenSandbox."""


class LifecycleBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Commands that OpenSandbox's execd runs by itself. execd runs none."""

    pre_start: Any = None
    periodic: Any = None


class InitBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The init. ``telemetry`` and other fields are ignored."""

    sandbox_id: Annotated[str, Meta(min_length=1, max_length=253)]
    generation: Annotated[int, Meta(ge=1)] = 1
    access_token_hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-fA-F]{64}\Z")] | None = None
    """None: the hash of the settings holds."""
    envs: dict[str, str] | None = None
    lifecycle: LifecycleBody | None = None
    entrypoint_policy: Literal["keep", "restart"] | None = None


class InitializedReply(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Whether the init has come, and of which sandbox."""

    initialized: bool
    sandbox_id: str | None = None
    generation: int | None = None


BODY = msgspec.json.Decoder(InitBody)


def routes() -> list[Route]:
    return [
        Route(
            method="GET",
            path="/ready",
            handler=ready,
            name="opensandbox_ready",
            summary="Whether the init has come",
            replies={200: (InitializedReply,), 503: (InitializedReply,)},
            access=Access.PROBE,
        ),
        Route(
            method="POST",
            path="/internal/init",
            handler=init,
            name="opensandbox_init",
            summary="Take the owner's token",
            body=(InitBody,),
            replies={200: (dict[str, str],)},
            errors=(Conflict,),
            access=Access.INIT,
        ),
    ]


async def ready(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    if not engine.config.runtime_init:
        raise web.HTTPNotFound
    if request.app[GATE].awaits_init:
        return json_reply(InitializedReply(initialized=False), 503)
    name = engine.sandbox
    assert name is not None, "the init names the sandbox"
    return json_reply(
        InitializedReply(initialized=True, sandbox_id=name.sandbox_id, generation=name.generation)
    )


async def init(request: web.Request) -> web.StreamResponse:
    engine, gate = request.app[ENGINE], request.app[GATE]
    if not engine.config.runtime_init:
        raise web.HTTPNotFound
    if not gate.awaits_init:
        raise _already()
    asked = await parse_body(request, BODY)
    if not gate.awaits_init:  # another init came while the body was read
        raise _already()
    # No await from here on: of two inits, one is accepted.
    if asked.access_token_hash is None and gate.token_sha256 is None:
        raise InvalidArgument(
            "accessTokenHash: required, since the settings have no token", field="accessTokenHash"
        )
    if asked.lifecycle is not None and (asked.lifecycle.pre_start or asked.lifecycle.periodic):
        raise InvalidArgument(
            "lifecycle: this daemon runs no commands by itself; run the commands after the init",
            field="lifecycle",
        )
    envs = asked.envs or {}
    _refuse_reserved(envs)
    engine.add_variables(envs)
    engine.sandbox = SandboxName(asked.sandbox_id, asked.generation)
    token_sha256 = asked.access_token_hash
    gate.init(None if token_sha256 is None else token_sha256.removeprefix("sha256:"))
    return json_reply({"status": "initialized"})


def _already() -> Conflict:
    return Conflict(
        "this sandbox has had its init; ask GET /ready for the name of the sandbox",
        opensandbox_code="ALREADY_INITIALIZED",
    )


def _refuse_reserved(names: Iterable[str]) -> None:
    reserved = sorted(RESERVED_VARIABLES & set(names))
    if reserved:
        raise InvalidArgument(f"envs: {reserved[0]} is reserved", field="envs")
