"""The path of a request, from its request target (RFC 9112 §3.2) as the peer sent it. Pure.

aiohttp's ``match_info`` is of no use for file names: its URL type decodes everything but ``%2F``
and ``%25``, then the router turns exactly these two, and whatever looks like them after the first
decoding. Here each escape is decoded once, to bytes, and ``%2F`` means what ``/`` means: routers in
front of execd turn the one into the other.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from multidict import MultiDict


def path_of(target: str) -> str:
    """The decoded path of an origin-form or absolute-form target; undecodable bytes as surrogate
    escapes."""
    return unquote_to_bytes(raw_path_of(target).encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )


def raw_path_of(target: str) -> str:
    """The path as it was sent, without the query, whose values may be secret."""
    path = target.partition("?")[0]
    if not path.startswith("/") and "://" in path:
        return "/" + path.partition("://")[2].partition("/")[2]
    return path


def path_below(target: str, route: str) -> str:
    """What of the path follows ``route`` and one slash; nothing, if that is all. The target was
    routed to ``route``."""
    path = path_of(target)
    assert path.startswith(route), f"{target!r} is not below {route}"
    return path[len(route) :].removeprefix("/")


def query_of(target: str) -> MultiDict[str]:
    """Names and values of the query, as forms encode them ("+" is a space); undecodable bytes as
    surrogate escapes."""
    query = target.partition("?")[2].partition("#")[0]
    return MultiDict(
        parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
    )
