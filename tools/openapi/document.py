"""The OpenAPI document of a route table. Pure."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from execd import __version__
from execd.api.wire.errors import (
    PYTHON_RUNTIME_HTTP_STATUS,
    V1_HTTP_STATUS,
    ErrorReply,
    MessageReply,
)
from execd.api.wire.replies import EXPECT_EPISODE_HEADER
from execd.api.wire.route import BYTES, Access, Route
from execd.errors import (
    Conflict,
    ExecdError,
    ExpectationFailed,
    HeadersTooLarge,
    Internal,
    InvalidArgument,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    RequestTimeout,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from tools.openapi.example import add_example
from tools.openapi.examples import EXAMPLES
from tools.openapi.links import add_links
from tools.openapi.schemas import Schema, schemas_of
from tools.openapi.words import (
    BODIES,
    CODES,
    DESCRIPTION,
    EVENT_STREAMS,
    HEADERS,
    HEADERS_OF_EACH_REPLY,
    PATH_PARAMETERS,
    REPLY_HEADERS,
    REQUEST_ID,
    REQUEST_ID_PARAMETER,
    SECURITY_SCHEMES,
    SOCKET_SECURITY_SCHEMES,
    STATUSES,
    TAGS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execd.api.wire.route import Content, Socket

OF_EVERY_ROUTE: tuple[type[ExecdError], ...] = (
    InvalidArgument,
    PermissionDenied,
    PayloadTooLarge,
    ExpectationFailed,
    HeadersTooLarge,
    Internal,
    NotSupported,
)
OF_BODIES: tuple[type[ExecdError], ...] = (RequestTimeout, ResourceExhausted)
MALFORMED = ("INVALID_ARGUMENT", "HEADERS_TOO_LARGE")
"""The codes for bytes that are not HTTP. The path is unknown then, so the body is that of /v1 on
every route."""
JSON = "application/json"
PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def document(table: Sequence[Route]) -> dict[str, Any]:
    """Return the document of all rows."""
    made = _Document(table).made()
    add_links(made)
    return made


def errors_of(route: Route) -> tuple[type[ExecdError], ...]:
    """Return all errors that a route may answer with."""
    found = [*OF_EVERY_ROUTE, *route.errors]
    if route.needs_token:
        found.append(Unauthenticated)
    if route.access is not Access.PROBE:
        found.append(Unavailable)
    if route.is_in_episode and route.is_v1:  # elsewhere see ``_codes``
        found.append(Conflict)
    if route.body:
        found += OF_BODIES
    return tuple(dict.fromkeys(found))


def openapi_path(route: Route) -> str:
    """Return the path without the regular expressions of aiohttp's router."""
    return PARAMETER.sub(r"{\1}", route.path)


class _Document:
    """The document of a table, with the schemas that its parts refer to."""

    def __init__(self, table: Sequence[Route]) -> None:
        self._table = table
        types = list(dict.fromkeys(_types(table)))
        schemas, self._components = schemas_of(types)
        self._schemas: dict[Any, Schema] = dict(zip(types, schemas, strict=True))
        self._queries = {
            route.query: self._components[route.query.__name__] for route in table if route.query
        }
        for query in self._queries:
            self._components.pop(query.__name__, None)
        self._replies: dict[str, Schema] = {}

    def made(self) -> dict[str, Any]:
        paths: dict[str, Schema] = {}
        for route in self._table:
            item = paths.setdefault(openapi_path(route), {})
            operation = self._operation(route)
            for example in EXAMPLES:
                if example.operation == route.name:
                    add_example(operation, example, self._replies)
            item[route.method.lower()] = operation
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "execd",
                "version": __version__,
                "description": DESCRIPTION,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            # Relative to the address of the document, so also behind the path prefix of a router.
            "servers": [{"url": "."}],
            "tags": [
                {"name": name, "description": description}
                for name, description, _ in TAGS
                if any(tag(route) == name for route in self._table)
            ],
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self._components.items())),
                "responses": dict(sorted(self._replies.items())),
                "headers": {
                    name: {
                        "description": description,
                        "required": True,
                        "schema": {"type": "string"},
                    }
                    for name, description in HEADERS_OF_EACH_REPLY.items()
                },
                "securitySchemes": {**SECURITY_SCHEMES, **SOCKET_SECURITY_SCHEMES},
            },
        }

    def _operation(self, route: Route) -> Schema:
        operation: Schema = {
            "operationId": route.name,
            "summary": route.summary,
            "tags": [tag(route)],
        }
        operation["parameters"] = [
            *self._in_path(route),
            *self._in_query(route),
            *_in_headers(route),
        ]
        if route.body:
            operation["requestBody"] = {
                "required": not route.is_body_optional,
                "content": self._content(route.body),
            }
        operation["responses"] = self._responses(route)
        schemes = [*SECURITY_SCHEMES, *(SOCKET_SECURITY_SCHEMES if route.socket else ())]
        operation["security"] = [{name: []} for name in schemes] if route.needs_token else []
        return operation

    # --- requests

    def _in_path(self, route: Route) -> list[Schema]:
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": PATH_PARAMETERS[name],
                "schema": {"type": "string"},
            }
            for name in PARAMETER.findall(route.path)
        ]

    def _in_query(self, route: Route) -> list[Schema]:
        if route.query is None:
            return []
        query = self._queries[route.query]
        required = query.get("required", ())
        return [
            _parameter(name, "query", schema, is_required=name in required)
            for name, schema in query["properties"].items()
        ]

    def _content(self, contents: Iterable[Content]) -> Schema:
        """Return the media types. Several types in JSON become alternatives."""
        found: Schema = {}
        alternatives: list[Schema] = []
        for content in contents:
            if isinstance(content, str):
                found[content] = {"schema": BODIES.get(content, BODIES[BYTES])}
            else:
                alternatives.append(self._schemas[content])
        if alternatives:
            found = {JSON: {"schema": _any_of(alternatives)}, **found}
        return found

    # --- replies

    def _responses(self, route: Route) -> Schema:
        found: dict[int, Schema] = {}
        for status, contents in route.replies.items():
            found[status] = {"description": STATUSES[status]}
            if contents:
                found[status]["content"] = self._content(contents)
        if route.events:
            reply = found.setdefault(200, {"description": STATUSES[200], "content": {}})
            reply["content"].update(self._streams(route))
        if route.socket is not None:
            found[101]["x-websocket"] = self._messages(route.socket)
        for status, reply in found.items():
            reply["headers"] = _reply_headers(status, *route.reply_headers)
        for status, codes in _codes(route).items():
            self._add_error(route, found, status, codes)
        return {str(status): reply for status, reply in sorted(found.items())}

    def _add_error(
        self, route: Route, found: dict[int, Schema], status: int, codes: list[str]
    ) -> None:
        """Add the reply to errors with these codes. A reply that the row has already gets further
        alternatives."""
        kinds = [self._schemas[ErrorReply if route.is_v1 else MessageReply]]
        if not route.is_v1 and not set(codes).isdisjoint(MALFORMED):
            kinds.append(self._schemas[ErrorReply])
        if status in found:
            schema = found[status]["content"][JSON]["schema"]
            kinds = [*schema.get("anyOf", [schema]), *kinds]
            found[status]["content"][JSON] = {"schema": _any_of(kinds)}
            found[status]["description"] += " " + _explained(codes)
            return
        reply = {
            "description": _explained(codes),
            "headers": _reply_headers(status),
            "content": {JSON: {"schema": _any_of(kinds)}},
        }
        name = _name_of_error(status, codes, is_v1=route.is_v1)
        assert self._replies.setdefault(name, reply) == reply
        found[status] = {"$ref": f"#/components/responses/{name}"}

    def _streams(self, route: Route) -> Schema:
        events = {name: self._schemas[kind] for name, kind in route.events.items()}
        return {
            content_type: {"schema": event_schema(content_type, list(events)), "x-events": events}
            for content_type in EVENT_STREAMS
        }

    def _messages(self, socket: Socket) -> Schema:
        return {
            "subprotocol": socket.subprotocol,
            "binary": "Bytes of stdout to the caller, and input from the caller.",
            "sends": {name: self._schemas[kind] for name, kind in socket.sends.items()},
            "receives": {_tag_of(kind): self._schemas[kind] for kind in socket.receives},
        }


def event_schema(content_type: str, names: list[str]) -> Schema:
    """Return the schema of one event, as OpenAPI 3.1 describes streams."""
    name = {"type": "string", "enum": names, "description": "The name of the event."}
    description, properties = EVENT_STREAMS[content_type]
    return {
        "type": "object",
        "description": description,
        "properties": {"event": name, **properties},
        "required": ["event", *properties],
    }


def _types(table: Iterable[Route]) -> Iterable[Any]:
    yield from (ErrorReply, MessageReply)
    for route in table:
        if route.query is not None:
            yield route.query
        for contents in (route.body, *route.replies.values()):
            yield from (content for content in contents if not isinstance(content, str))
        yield from route.events.values()
        if route.socket is not None:
            yield from route.socket.sends.values()
            yield from route.socket.receives


def _any_of(schemas: Iterable[Schema]) -> Schema:
    distinct: list[Schema] = []
    for schema in schemas:
        if schema not in distinct:
            distinct.append(schema)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _parameter(name: str, place: str, schema: Schema, *, is_required: bool) -> Schema:
    """Return a parameter. A query cannot say null, so a parameter that may be null may be
    absent."""
    schema = dict(schema)
    description = schema.pop("description", None)
    if schema.get("default", ...) is None:
        del schema["default"]
        [schema] = [one for one in schema["anyOf"] if one != {"type": "null"}]
    return {
        "name": name,
        "in": place,
        "required": is_required,
        **({"description": description} if description else {}),
        "schema": schema,
    }


def _in_headers(route: Route) -> list[Schema]:
    meanings = {name: HEADERS[name] for name in route.headers}
    meanings.setdefault(REQUEST_ID, REQUEST_ID_PARAMETER)
    if route.is_in_episode:
        meanings.setdefault(EXPECT_EPISODE_HEADER, HEADERS[EXPECT_EPISODE_HEADER])
    return [
        _parameter(name, "header", {"type": "string", "description": meaning}, is_required=False)
        for name, meaning in meanings.items()
    ]


def _reply_headers(status: int, *names: str) -> Schema:
    return {
        **{name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS_OF_EACH_REPLY},
        **{
            name: {"description": description, "schema": {"type": "string"}}
            for name, (statuses, description) in REPLY_HEADERS.items()
            if status in statuses and (name in names or status >= HTTPStatus.BAD_REQUEST)
        },
    }


def _codes(route: Route) -> dict[int, list[str]]:
    """Return the codes of the errors of a route by HTTP status."""
    statuses = V1_HTTP_STATUS if route.is_v1 else PYTHON_RUNTIME_HTTP_STATUS
    found: dict[int, list[str]] = {}
    for error in errors_of(route):
        found.setdefault(statuses[error.code], []).append(error.code)
    if route.is_in_episode and not route.is_v1:  # 409 in every dialect
        found.setdefault(int(HTTPStatus.CONFLICT), []).append(Conflict.code)
    return {status: sorted(codes) for status, codes in found.items()}


def _explained(codes: Iterable[str]) -> str:
    return " ".join(f"`{code}`: {CODES[code]}" for code in codes)


def _name_of_error(status: int, codes: list[str], *, is_v1: bool) -> str:
    words = "".join(word.capitalize() for code in codes for word in code.split("_"))
    return f"{'' if is_v1 else 'Plain'}{words}"


def _tag_of(message: type) -> str:
    info = msgspec.inspect.type_info(message)
    assert isinstance(info, msgspec.inspect.StructType)
    assert isinstance(info.tag, str)
    return info.tag


def tag(route: Route) -> str:
    """Return the name of the first tag with a beginning of the path."""
    return next(name for name, _, begins in TAGS if openapi_path(route).startswith(begins))
