"""The examples of the OpenAPI document. The conformance suite asks a daemon for each."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from execd.api.routes import routes
from tests.conformance.contract import strict
from tools.openapi.document import document, openapi_path
from tools.openapi.example import LINES, Example, add_example
from tools.openapi.examples import EXAMPLES

if TYPE_CHECKING:
    from execd.api.wire.route import Route

TABLE = routes()
DOCUMENT = document(TABLE)
COMPONENTS = strict(DOCUMENT["components"]["schemas"])
TEXT = ("application/json", "text/", "application/x-ndjson")


def named(part: dict[str, Any]) -> set[str]:
    return set(part.get("examples", ()))


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_every_operation_has_an_example_of_its_request_and_of_its_reply(route: Route) -> None:
    operation = DOCUMENT["paths"][openapi_path(route)][route.method.lower()]
    shown = [example for example in EXAMPLES if example.operation == route.name]
    assert shown
    for example in shown:
        for parameter in operation["parameters"]:
            assert not parameter["required"] or example.name in named(parameter), parameter["name"]
        if "requestBody" in operation and operation["requestBody"]["required"]:
            bodies = operation["requestBody"]["content"].values()
            assert any(example.name in named(body) for body in bodies), example.name
    assert not route.body or any(example.body is not None for example in shown)
    assert any(_has_reply(operation, example) for example in shown)


def _has_reply(operation: dict[str, Any], example: Example) -> bool:
    """Whether the document shows the reply of the example: the body; of bytes that no text shows,
    the headers; of a WebSocket, the messages; or a status that has no body."""
    reply = operation["responses"][str(example.status)]
    if "x-websocket" in reply:
        return example.name in named(reply["x-websocket"])
    contents = reply.get("content", {})
    parts = list(contents.values())
    if not any(media_type.startswith(TEXT) for media_type in contents):
        parts += reply["headers"].values()
    return not contents or any(example.name in named(part) for part in parts)


def test_examples_of_an_operation_have_different_names() -> None:
    names = Counter((example.operation, example.name) for example in EXAMPLES)
    assert max(names.values()) == 1
    assert {operation for operation, _ in names} == {route.name for route in TABLE}


def test_a_shared_reply_gets_the_example_of_one_operation_only() -> None:
    shared = {"NotFound": {"headers": {}, "content": {"application/json": {}}}}
    reference = {"$ref": "#/components/responses/NotFound"}
    operation = {"parameters": [], "responses": {"404": reference}}
    add_example(operation, Example(operation="x", status=404, reply="gone"), shared)
    assert operation["responses"] == {
        "404": {
            "headers": {},
            "content": {"application/json": {"examples": {"example": {"value": "gone"}}}},
        }
    }
    assert shared["NotFound"]["content"] == {"application/json": {}}


def test_an_example_of_a_parameter_that_the_operation_lacks_is_refused() -> None:
    operation = {"parameters": [], "responses": {"204": {}}}
    example = Example(operation="x", parameters={"path": "a"}, status=204)
    with pytest.raises(AssertionError):
        add_example(operation, example, {})


def _fits(schema: dict[str, Any], value: object) -> list[str]:
    """What is wrong with the value. Fields outside of the schema are wrong too."""
    whole = {**strict(schema), "components": {"schemas": COMPONENTS}}
    return [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)]


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_each_example_fits_the_schema_of_its_place(route: Route) -> None:
    operation = DOCUMENT["paths"][openapi_path(route)][route.method.lower()]
    for parameter in operation["parameters"]:
        for shown in parameter.get("examples", {}).values():
            assert _fits(parameter["schema"], shown["value"]) == [], parameter["name"]
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        for media_type, media in part.get("content", {}).items():
            for shown in media.get("examples", {}).values():
                if "x-events" not in media:
                    assert _fits(media["schema"], shown["value"]) == [], shown
                else:
                    # A line has the fields of its event besides.
                    assert jsonschema_rs.is_valid(media["schema"], shown["value"]), shown
                    name, fields = _event(media_type, shown["value"])
                    assert _fits(media["x-events"][name], fields) == [], shown
        for header in part.get("headers", {}).values():
            for shown in header.get("examples", {}).values():
                assert _fits(header["schema"], shown["value"]) == [], shown


def _event(media_type: str, shown: dict[str, Any]) -> tuple[str, Any]:
    """The name and the fields of an event."""
    if media_type == LINES:
        fields = {name: value for name, value in shown.items() if name not in ("event", "sequence")}
        return shown["event"], fields
    return shown["event"], json.loads(shown["data"])


def test_each_message_of_an_example_fits_its_schema() -> None:
    for route in TABLE:
        if route.socket is None:
            continue
        operation = DOCUMENT["paths"][openapi_path(route)][route.method.lower()]
        socket = operation["responses"]["101"]["x-websocket"]
        for shown in socket["examples"].values():
            for direction in ("sends", "receives"):
                for message in shown["value"][direction]:
                    assert _fits(socket[direction][message["type"]], message) == [], message


def test_an_example_outside_of_its_schema_is_found() -> None:
    schema = {"$ref": "#/components/schemas/StatusReply"}
    assert _fits(schema, {"status": "ok"}) == []
    assert _fits(schema, {"status": "other"})
    assert _fits(schema, {"status": "ok", "more": 1})
