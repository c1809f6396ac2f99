"""The sections about routes: overviews, each route in full, events, and the objects of JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import inspect

from docs.generate import types
from docs.generate.markdown import anchor, code, codes, paragraphs, table
from execd import errors
from execd.api.probes.probe_reply import CapabilitiesReply
from execd.api.routes import routes
from execd.api.wire.errors import (
    PYTHON_RUNTIME_HTTP_STATUS,
    V1_HTTP_STATUS,
    DetailReply,
    ErrorReply,
    MessageReply,
)
from execd.api.wire.fields import NoQuery
from execd.api.wire.route import Access, Route
from execd.errors import ExecdError
from tools.openapi.document import OF_BODIES, OF_EVERY_ROUTE, openapi_path, tag
from tools.openapi.schemas import structs
from tools.openapi.words import EVENT_STREAMS, HEADERS, REPLY_HEADERS, STATUSES, TAGS

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUTES = "routes.md"
MAX_FIELDS = 6
"""Fields that the table of events names. The page of objects has the others."""
EXPLAINED_DICTS = {dict: "an object", list: "a list"}


@dataclass(frozen=True)
class Entry:
    """Rows of the table that differ in a final slash, or in the path of a file, only."""

    name: str
    """Method and the longest path, without the patterns of the router."""
    also: tuple[str, ...]
    """The other paths."""
    route: Route

    @property
    def link(self) -> str:
        return f"[{code(self.name)}]({ROUTES}#{anchor(self.name)})"


def entries() -> list[Entry]:
    """Return all routes, in the order of the table."""
    groups: dict[tuple[str, str, str], list[tuple[str, Route]]] = {}
    for route in routes():
        path = openapi_path(route)
        bare = path.removesuffix("/{path}").rstrip("/")
        groups.setdefault((route.method, bare, route.summary), []).append((path, route))
    found = []
    for (method, _, _), rows in groups.items():
        rows.sort(key=lambda row: (not row[0].endswith("/{path}"), len(row[0])))
        path, route = rows[0]
        found.append(Entry(f"{method} {path}", tuple(path for path, _ in rows[1:]), route))
    return found


def overview(*prefixes: str) -> str:
    """Return a table of the routes whose paths begin with a prefix, with their summaries."""
    rows = [
        (entry.link, entry.route.summary)
        for entry in entries()
        if re.match(rf"\S+ ({'|'.join(map(re.escape, prefixes))})(/|$)", entry.name)
    ]
    return table(("route", "what the route does"), rows)


def all_routes() -> str:
    """Return all routes in full."""
    found = entries()
    shown = []
    for name, description, _ in TAGS:
        rows = [_in_full(entry) for entry in found if tag(entry.route) == name]
        shown += [f"## {name}\n", f"{description}\n", *rows] if rows else []
    return "\n".join(shown)


def common_errors() -> str:
    """Return the errors that the rows of the table do not name."""

    def names(kinds: Iterable[type[ExecdError]]) -> str:
        return codes(kind.code for kind in kinds)

    return (
        f"Every route may answer with the errors {names(OF_EVERY_ROUTE)}; a route with a body also "
        f"with {names(OF_BODIES)}; a route that needs the token with `UNAUTHENTICATED`; and every "
        "route but a probe with `UNAVAILABLE`.\n"
    )


def all_errors() -> list[type[ExecdError]]:
    """Return the classes of errors, by their statuses."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {
        kind.code: kind for kind in kinds if issubclass(kind, ExecdError) and kind is not ExecdError
    }
    return [found[code] for code in V1_HTTP_STATUS]


def _in_full(entry: Entry) -> str:
    route = entry.route
    parts = [f"### {code(entry.name)}\n", f"{route.summary}.{_access(route)}\n"]
    if entry.also:
        parts.append(f"Also {codes(entry.also)}.\n")
    if route.query is not None and route.query is not NoQuery:
        parts.append(_request_fields("query", route.query))
    if route.headers:
        rows = [(code(name), HEADERS[name]) for name in route.headers]
        parts.append(table(("header", "meaning"), rows))
    if route.body:
        optional = ", or no body" if route.is_body_optional else ""
        kinds = ["JSON" if _is_struct(content) else _content(content) for content in route.body]
        parts.append(f"Body: {', or '.join(kinds)}{optional}.\n")
        bodies = [body for body in route.body if not isinstance(body, str)]
        parts += [_request_fields("field", body) for body in bodies if types.fields(body)]
    parts.append(table(("status", "reply", "headers", "meaning"), _replies(route)))
    if route.events:
        names = [f"{code(name)} ({_content(kind)})" for name, kind in route.events.items()]
        parts.append(f"Events: {', '.join(names)}.\n")
    if route.socket is not None:
        sent = [f"{code(name)} ({_content(kind)})" for name, kind in route.socket.sends.items()]
        received = [types.link(kind) for kind in route.socket.receives]
        parts.append(
            f"Messages of execd: {', '.join(sent)}; of the caller: {', '.join(received)}.\n"
        )
    if route.errors:
        parts.append(f"Errors: {', '.join(_error(kind, route) for kind in route.errors)}.\n")
    return "\n".join(parts)


def _access(route: Route) -> str:
    match route.access:
        case Access.TOKEN:
            return ""
        case Access.OPEN:
            return " Needs no token."
        case Access.PROBE:
            return " A probe: needs no token, and is answered even when all connections are busy."
        case Access.RESET:
            return " Is answered while a reset is under way too."
        case Access.INIT:
            return " Needs no token, and is answered before the init of the sandbox."


def _is_struct(content: object) -> bool:
    return isinstance(content, type) and isinstance(inspect.type_info(content), inspect.StructType)


def _content(content: object) -> str:
    if isinstance(content, str):
        return code(content)
    if content in EXPLAINED_DICTS:
        return EXPLAINED_DICTS[content]
    return types.in_words(inspect.type_info(content))


def _replies(route: Route) -> Iterable[tuple[str, str, str, str]]:
    stream = f"a [stream](http.md#events): {codes(EVENT_STREAMS, ' or ')}"
    statuses = {HTTPStatus.OK, *route.replies} if route.events else {*route.replies}
    for status in sorted(statuses):
        contents = [_content(content) for content in route.replies.get(status, ())]
        if status == HTTPStatus.OK and route.events:
            contents.append(stream)
        headers = [name for name in route.reply_headers if status in REPLY_HEADERS[name][0]]
        meaning = STATUSES.get(status, "")
        yield str(int(status)), ", or ".join(contents) or "no body", codes(headers), meaning


def _error(kind: type[ExecdError], route: Route) -> str:
    statuses = V1_HTTP_STATUS if route.is_v1 else PYTHON_RUNTIME_HTTP_STATUS
    return f"{code(kind.code)} ({statuses[kind.code]})"


def _request_fields(name: str, struct: type) -> str:
    rows = [
        (
            code(field.encode_name),
            types.in_words(field.type),
            types.default_in_words(field),
            types.description(struct, field),
        )
        for field in types.fields(struct)
    ]
    return table((name, "type", "default", "meaning"), rows)


def events(path: str) -> str:
    """Return a table of the events of the streams at a path."""
    [route] = [route for route in routes() if route.path == path and route.method == "GET"]
    rows: dict[object, list[str]] = {}
    for name, kind in route.events.items():
        rows.setdefault(kind if _is_struct(kind) else name, []).append(name)
    return table(
        ("event", "fields", "meaning"),
        [(codes(names), *_event(kind)) for kind, names in rows.items()],
    )


def _event(kind: object) -> tuple[str, str]:
    if not isinstance(kind, type):
        return "an object", ""
    names = [field.encode_name for field in types.fields(kind)]
    shown = codes(names[:MAX_FIELDS]) + (", …" if len(names) > MAX_FIELDS else "")
    return f"{shown or 'none'}: {types.link(kind)}", paragraphs(kind.__doc__)[0]


def messages(path: str) -> str:
    """Return a table of the text messages of a WebSocket."""
    [socket] = [route.socket for route in routes() if route.path == path and route.socket]
    rows = [("execd", code(name), *_event(kind)) for name, kind in socket.sends.items()]
    for kind in socket.receives:
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        rows.append(("caller", code(info.tag), *_event(kind)))
    return table(("from", "type", "fields", "meaning"), rows)


def capabilities() -> str:
    """Return a table of the fields of the capabilities, with the names of the objects above."""

    def rows(cls: type, above: str) -> Iterable[tuple[str, str, str]]:
        for field in types.fields(cls):
            name, kind = above + field.encode_name, field.type
            bare = kind.type if isinstance(kind, inspect.Metadata) else kind
            if isinstance(bare, inspect.StructType):
                yield from rows(bare.cls, f"{name}.")
            else:
                yield code(name), types.in_words(kind), types.description(cls, field)

    return table(("field", "type", "meaning"), rows(CapabilitiesReply, ""))


def objects() -> str:
    """Return all structs of bodies, replies, events and messages."""
    users: dict[type, dict[str, None]] = {}
    kinds: dict[type, inspect.StructType] = {}

    def note(content: object, user: str) -> None:
        if isinstance(content, str):
            return
        for struct in structs(inspect.type_info(content)):
            kinds[struct.cls] = struct
            users.setdefault(struct.cls, {})[user] = None

    for entry in entries():
        route = entry.route
        for body in route.body:
            for field in (
                () if isinstance(body, str) else types.fields(body)
            ):  # the page of routes shows the body itself
                for struct in structs(field.type):
                    note(struct.cls, entry.link)
        contents = [content for reply in route.replies.values() for content in reply]
        contents += route.events.values()
        if route.socket is not None:
            contents += [*route.socket.sends.values(), *route.socket.receives]
        for content in contents:
            note(content, entry.link)
    for content in (ErrorReply, MessageReply, DetailReply):
        note(content, "[errors](http.md#errors)")
    return "\n".join(
        _object(kinds[cls], list(users[cls])) for cls in sorted(kinds, key=lambda cls: cls.__name__)
    )


def _object(struct: inspect.StructType, users: list[str]) -> str:
    parts = [f"## {struct.cls.__name__}\n", "\n\n".join(paragraphs(struct.cls.__doc__)) + "\n"]
    if struct.tag is not None:
        parts.append(f"{code(struct.tag_field)} is {code(struct.tag)}.\n")
    rows = [
        (
            code(field.encode_name),
            types.in_words(field.type),
            types.description(struct.cls, field),
        )
        for field in struct.fields
    ]
    if rows:
        parts.append(table(("field", "type", "meaning"), rows))
    shown = ", ".join(users[:4]) + (f" and {len(users) - 4} more" if len(users) > 4 else "")
    parts.append(f"In {shown}.\n")
    return "\n".join(parts)
