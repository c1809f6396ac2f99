"""What all routes of this dialect share: bodies, paths, and the environment of programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from execd.api.opensandbox.path_expansion import expand_path
from execd.api.wire.body import read_body
from execd.api.wire.fields import parse_json
from execd.api.wire.keys import ENGINE
from execd.api.wire.targets import query_of
from execd.api.wire.tracing import trace_environment
from execd.errors import InvalidArgument

if TYPE_CHECKING:
    import msgspec
    from aiohttp import web

    from execd.engine.engine import Engine

T = TypeVar("T")

ENV_FILE_VARIABLE = "EXECD_ENVS"
"""Tells programs the file that ``set_env`` of the SDK appends to."""
PORT_VARIABLE = "JUPYTER_PORT"
"""The SDK's code interpreter connects to this port from inside the sandbox, to see that code can
run."""
DEFAULT_ENV_FILE = ".opensandbox.env"


async def parse_body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode the body, an empty object if there is none. Unknown fields are ignored, as in
    OpenSandbox. Raises InvalidArgument."""
    return parse_json(await read_body(request) or b"{}", decoder)


def required_query(request: web.Request, name: str) -> str:
    """Return a parameter of the query. Raises InvalidArgument."""
    value = query_of(request.raw_path).get(name)
    if not value:
        raise InvalidArgument(
            f"missing query parameter {name!r}", field=name, opensandbox_code="MISSING_QUERY"
        )
    return value


def int_query(request: web.Request, name: str, default: int) -> int:
    """Return a number of the query, not negative. Raises InvalidArgument."""
    text = query_of(request.raw_path).get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidArgument(f"{name}: must be a whole number, not negative", field=name)
    return int(text)


def paths_of(request: web.Request) -> list[str]:
    """Return the parameters ``path`` of the query, as sent."""
    return query_of(request.raw_path).getall("path", [])


def expanded(engine: Engine, path: str) -> str:
    """Return the path for the engine. Raises InvalidArgument."""
    return expand_path(path, engine.variables)


async def program_environment(request: web.Request) -> dict[str, str]:
    """Return the variables that every program of this dialect gets: those of the env file, which
    commands of the sandbox append to, and those that the SDK expects."""
    engine = request.app[ENGINE]
    path = engine.config.opensandbox_env_file or os.path.join(
        engine.variables["TMPDIR"], DEFAULT_ENV_FILE
    )
    address = request.get_extra_info("sockname")
    port = {PORT_VARIABLE: str(address[1])} if isinstance(address, tuple) else {}
    return {
        **trace_environment(request.headers.get("traceparent")),
        **await engine.read_env_file(path),
        **port,
        ENV_FILE_VARIABLE: path,
    }
