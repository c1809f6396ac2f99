"""The address of a daemon: base URL, headers, unix socket. Nothing here does any I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from execd_client.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

UNIX = "unix:"
USER_AGENT = f"execd-client/{__version__}"


@dataclass(frozen=True)
class Address:
    """Where requests go. ``url`` may have a path, the prefix of a router."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"url: {self.url!r} is no address; use http://HOST:PORT, https://… or unix:PATH"
            )

    def url_of(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def websocket_url_of(self, path: str) -> str:
        return self.url_of(path).replace("http", "ws", 1)


def parse_address(
    url: str, token: str | None, headers: Mapping[str, str] | None, uds: str | None
) -> tuple[Address, str | None]:
    """The address, and the path of the unix socket or None. ``url`` may be ``unix:PATH``; with
    ``uds`` the URL names the host and the prefix only.

    The token is sent under two names, because routers strip ``Authorization``.
    """
    if url.startswith(UNIX):
        uds, url = url.removeprefix(UNIX), "http://localhost"
        uds = "/" + uds.lstrip("/") if uds.startswith("//") else uds
    for name, value in (headers or {}).items():
        _check_text(f"headers: {name}", value)
    sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **(headers or {})}
    return Address(url, {**sent, **token_headers(token)}), uds


def token_headers(token: str | None) -> dict[str, str]:
    if not token:
        return {}
    _check_text("token", token)
    return {"Authorization": f"Bearer {token}", "X-Access-Token": token}


def _check_text(name: str, value: str) -> None:
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ValueError(
            f"{name}: a header has printable ASCII characters only, and no blank at an end"
        )


LONGEST_BYTES = 200
"""With the tag and the dots below the 255 bytes of a name (NAME_MAX of Linux)."""


def part_name(name: str, tag: str) -> str:
    """The name of what is not whole yet, beside the final name. ``tag`` says what the content will
    be: only a repeat of the same transfer goes on with the part."""
    shortened = name.encode("utf-8", "ignore")[:LONGEST_BYTES].decode("utf-8", "ignore")
    return f".{shortened}.{tag}.part"


def segment(name: str) -> str:
    """A name as one segment of a path. Raises ValueError for a step."""
    if name in (".", ".."):
        raise ValueError(f"id: {name!r} is a step of a path, and no name")
    return quote(name, safe="")


def with_query(path: str, parameters: Mapping[str, str | int | float | bool | None]) -> str:
    """The path with a query. Parameters that are None are left out. A path that is no UTF-8, as
    ``os.fsdecode`` gives such names, is encoded byte for byte."""
    said = {
        name: os.fsencode(value)
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in parameters.items()
        if value is not None
    }
    return f"{path}?{urlencode(said)}" if said else path
