"""What all routes of this dialect share: bodies, paths, and the environment of programs."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from execd.api.wire_api import ENGINE, parse_json, query_of, read_body, trace_environment
from execd.engine.engine_api import InvalidArgument
from execd_opensandbox.env_file import read_env_file
from execd_opensandbox.path_expansion import expand_path

if TYPE_CHECKING:
    import msgspec

    from execd.engine.engine_api import Engine
    from execd_opensandbox.settings import Settings

T = TypeVar("T")

SETTINGS: web.AppKey[Settings] = web.AppKey("opensandbox_settings")

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
    path = request.app[SETTINGS].env_file or os.path.join(
        engine.variables["TMPDIR"], DEFAULT_ENV_FILE
    )
    address = request.get_extra_info("sockname")
    port = {PORT_VARIABLE: str(address[1])} if isinstance(address, tuple) else {}
    return {
        **trace_environment(request.headers.get("traceparent")),
        **await engine.files.run(functools.partial(read_env_file, path)),
        **port,
        ENV_FILE_VARIABLE: path,
    }
