"""Path and query of a request, from the request target (RFC 9112 §3.2) as the peer sent it. Pure.

aiohttp's ``match_info`` cannot carry file names. aiohttp's URL type decodes every escape but
``%2F`` and ``%25``; then the router decodes these two, and also every text that looks like them
after the first decoding. Here each escape is decoded once, to bytes. ``%2F`` means the same as
``/``, since routers in front of execd turn one into the other.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from multidict import MultiDict


def path_of(target: str) -> str:
    """Return the decoded path of an origin-form or absolute-form target, with undecodable bytes as
    surrogate escapes."""
    return unquote_to_bytes(raw_path_of(target).encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )


def raw_path_of(target: str) -> str:
    """Return the path as sent, without the query: values in a query may be secret."""
    path = target.partition("?")[0]
    if not path.startswith("/") and "://" in path:
        return "/" + path.partition("://")[2].partition("/")[2]
    return path


def single_slashes(target: str) -> str:
    """Return the target with one slash before the first part of its path, and one behind "/v1": a
    client that joins the base URL "http://host/" and the path "/list" sends "//list". The rest of
    the path belongs to the route."""
    before = ""
    if not target.startswith("/"):
        scheme, mark, after = target.partition("://")
        authority, slash, path = after.partition("/")
        before, target = scheme + mark + authority, slash + path
    if target.startswith("//"):
        target = "/" + target.lstrip("/")
    if target.startswith("/v1//"):
        target = "/v1/" + target.removeprefix("/v1").lstrip("/")
    return before + target


def path_below(target: str, route: str) -> str:
    """Return the rest of the path after ``route`` and one slash. The target was routed to
    ``route``."""
    path = path_of(target)
    assert path.startswith(route), f"{target!r} is not below {route}"
    return path[len(route) :].removeprefix("/")


def query_of(target: str) -> MultiDict[str]:
    """Return names and values of the query, decoded as forms encode them ("+" is a space), with
    undecodable bytes as surrogate escapes."""
    query = target.partition("?")[2].partition("#")[0]
    return MultiDict(
        parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
    )
