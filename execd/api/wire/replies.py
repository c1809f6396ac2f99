"""JSON replies, and text that can be put into them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping

_SURROGATES = re.compile("[\ud800-\udfff]")


def json_reply(
    body: Any, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    # Its type as one of the headers: aiohttp would take the argument for it apart and put it
    # together again.
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=msgspec.json.encode(body), status=http_status, headers=all_headers)


def replace_surrogates(text: str) -> str:
    """``text`` with a replacement character for each surrogate, such as stand for bytes that are
    not UTF-8: JSON in UTF-8 has no way to write those."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
