"""The route table and the daemon agree."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from docs.generate.types import description
from execd.api.python_runtime.reply import ListedEntry
from execd.api.routes import PORT_8888, routes, runs_something
from execd.api.wire import errors
from execd.errors import ResourceExhausted
from tests.api.route_access import assert_the_init_is_awaited, assert_the_token_is_needed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from execd.api.wire.route import Route
    from tests.api.conftest import Wire
    from tests.api.shared_engine import SharedEngine

TOKEN_SHA256 = "0" * 64


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_rows_differ_in_name_and_in_method_or_path() -> None:
    for names in (
        [name_of(route) for route in routes()],
        [route.name for route in routes()],
    ):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("route", routes(), ids=name_of)
def test_row_tells_the_reader_what_the_route_does(route: Route) -> None:
    assert inspect.iscoroutinefunction(route.handler)
    assert route.summary[0].isupper()
    assert not route.summary.endswith(".")
    assert route.body or not route.is_body_optional


def test_a_reply_in_json_is_a_struct() -> None:
    kinds = {
        content
        for route in routes()
        for contents in (*route.replies.values(), tuple(route.events.values()))
        for content in contents
        if not isinstance(content, str)
    }
    structs = {
        kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    assert kinds - structs == {list[ListedEntry], dict[str, Any]}, "a list, and the document itself"


def test_open_routes_are_the_probes_and_the_description() -> None:
    found = {route.path for route in routes() if not route.needs_token}
    files = {"viewer.js", "swagger-ui.css", "swagger-ui-bundle.js"}
    description = {"/openapi.json", "/docs", "/docs/", *(f"/docs/{name}" for name in files)}
    assert found == {"/", "/healthz", "/readyz", "/v1/health"} | description


def test_no_route_redirects() -> None:
    """Clients take any redirect for an error."""
    statuses = {status for route in routes() for status in route.replies}
    assert {status for status in statuses if 300 <= status < 400} == {304}


async def test_a_route_needs_the_token_as_the_table_says(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(token_sha256=TOKEN_SHA256)
    for route in routes():
        path = re.sub(r"\{.*\}", "x", route.path)
        answer = await wire.exchange(route.method, path)
        is_refused = answer.http_status == 401
        assert is_refused == route.needs_token, name_of(route)


async def test_a_method_without_a_row_is_refused_with_the_methods_of_the_rows(wire: Wire) -> None:
    allowed: dict[str, set[str]] = {}
    for route in routes():
        path = re.sub(r"\{.*\}", "x", route.path)
        allowed.setdefault(path, set()).update(
            {"GET", "HEAD"} if route.method == "GET" else {route.method}
        )
    for path, methods in allowed.items():
        for method in {"DELETE", "OPTIONS", "PATCH", "POST", "PUT"} - methods:
            answer = await wire.exchange(method, path)
            assert answer.http_status == 405, (method, path)
            assert set(answer.headers["Allow"].split(",")) == methods, (method, path)


def test_each_route_of_files_may_run_out_of_descriptors() -> None:
    """Every route that opens a path, or waits for a thread of the files."""
    heads = ("/v1/files", "/v1/fs", "/v1/archive", "/v1/watch")
    old = {"/upload", "/download", "/list", "/exists"}
    found = [
        route
        for route in routes()
        if route.path.startswith(heads) or "/" + route.path.split("/")[1] in old
    ]
    assert len(found) > 20
    assert [route.name for route in found if ResourceExhausted not in route.errors] == []


def structs_of(routes: Iterable[Route]) -> dict[str, msgspec.inspect.StructType]:
    """Return all structs that requests, replies, events and messages may contain, by name."""
    types: list[object] = [errors.ErrorReply, errors.MessageReply, errors.DetailReply]
    for route in routes:
        types += [route.query or msgspec.Struct, *route.body, *route.events.values()]
        types += [content for contents in route.replies.values() for content in contents]
        if route.socket is not None:
            types += [*route.socket.sends.values(), *route.socket.receives]
    found: dict[str, msgspec.inspect.StructType] = {}
    kinds = [kind for kind in types if not isinstance(kind, str) and kind is not msgspec.Struct]
    for info in msgspec.inspect.multi_type_info(kinds):
        for struct in walk(info):
            assert found.setdefault(struct.cls.__name__, struct).cls is struct.cls, (
                "one name, twice"
            )
    return found


def walk(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.StructType]:
    match info:
        case msgspec.inspect.StructType():
            yield info
            for field in info.fields:
                yield from walk(field.type)
        case msgspec.inspect.Metadata():
            yield from walk(info.type)
        case msgspec.inspect.UnionType():
            for kind in info.types:
                yield from walk(kind)
        case msgspec.inspect.DictType():
            yield from walk(info.value_type)
        case msgspec.inspect.CollectionType():
            yield from walk(info.item_type)


def undescribed(struct: msgspec.inspect.StructType) -> list[str]:
    """Return the fields without a description."""
    return [field.name for field in struct.fields if not description(struct.cls, field)]


STRUCTS = structs_of(routes())


def test_the_walk_finds_the_structs_inside_of_structs() -> None:
    assert {"ErrorReply", "SessionReply", "LimitsReply", "FileChange", "VariableReply"} <= set(
        STRUCTS
    )


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_each_field_has_a_description(name: str) -> None:
    assert undescribed(STRUCTS[name]) == []


@pytest.mark.parametrize(
    ("method", "canonical", "runs"),
    [
        ("GET", "/v1/executions/{id}/attach", True),
        ("GET", "/v1/watch", True),
        ("POST", "/execute", True),
        ("POST", "/v1/sessions/{id}/fork", True),
        ("GET", "/v1/executions/{id}", False),
        ("POST", "/v1/fs/mkdir", False),
    ],
)
def test_a_route_runs_something_by_its_method_and_pattern(
    method: str, canonical: str, runs: bool
) -> None:
    assert runs_something(method, canonical) is runs


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_each_route_needs_the_token_as_the_table_says(
    token: str | None, shared_engine: SharedEngine
) -> None:
    await assert_the_token_is_needed(PORT_8888, shared_engine, token)


async def test_before_an_awaited_init_only_probes_and_the_init_are_served(
    shared_engine: SharedEngine,
) -> None:
    await assert_the_init_is_awaited(PORT_8888, shared_engine)
