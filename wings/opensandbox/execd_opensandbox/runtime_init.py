"""The init of a sandbox that was started before its owner was known.

    GET  /ready             whether the init has come
    POST /internal/init     the owner's token, as a hash, and variables of all programs; once

Both routes exist only with the setting ``runtime_init``. Until the init every port answers 503 to
all requests but probes and this one (``TokenGate``), so no program of the sandbox runs that
could claim the token first. The init is accepted once: a second init is 409, also with the same
body. A body that breaks a rule changes nothing, and the init can be sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.wire_api import ENGINE, GATE, Access, Route, json_reply
from execd.engine.engine_api import Conflict, InvalidArgument
from execd_opensandbox.requests import ENV_FILE_VARIABLE, PORT_VARIABLE, SETTINGS, parse_body

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


class OwnedSandbox:
    """The sandbox by the name that the platform gives at the init."""

    def __init__(self) -> None:
        self.reply = InitializedReply(initialized=False)


BODY = msgspec.json.Decoder(InitBody)
SANDBOX: web.AppKey[OwnedSandbox] = web.AppKey("opensandbox_sandbox", OwnedSandbox)


async def ready(request: web.Request) -> web.StreamResponse:
    if not request.app[SETTINGS].runtime_init:
        raise web.HTTPNotFound
    if request.app[GATE].awaits_init:
        return json_reply(request.app[SANDBOX].reply, 503)
    return json_reply(request.app[SANDBOX].reply)


async def init(request: web.Request) -> web.StreamResponse:
    engine, gate = request.app[ENGINE], request.app[GATE]
    if not request.app[SETTINGS].runtime_init:
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
    request.app[SANDBOX].reply = InitializedReply(
        initialized=True, sandbox_id=asked.sandbox_id, generation=asked.generation
    )
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


ROUTES = (
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
)
