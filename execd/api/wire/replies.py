"""JSON replies, and text that JSON can hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from execd import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER = f"execd/{__version__}"
INSTANCE_HEADER = "X-Execd-Instance"
EPISODE_HEADER, EXPECT_EPISODE_HEADER = "X-Execd-Episode", "X-Execd-Expect-Episode"
JSON = "application/json"
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_reply(
    body: Any, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a reply whose body is ``body`` as JSON: any value that msgspec encodes."""
    # The type is passed as a header: aiohttp would parse a ``content_type`` argument and join its
    # parts again.
    all_headers = {"Content-Type": JSON, **(headers or {})}
    return web.Response(body=msgspec.json.encode(body), status=http_status, headers=all_headers)


def replace_surrogates(text: str) -> str:
    """Replace each surrogate, which stands for a byte that is not UTF-8. JSON in UTF-8 cannot hold
    surrogates."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def replace_all_surrogates(value: Any) -> Any:
    """The same for each string in lists and values of dicts."""
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [replace_all_surrogates(item) for item in value]
        case dict():
            return {name: replace_all_surrogates(item) for name, item in value.items()}
    return value
