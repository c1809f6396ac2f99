"""The OpenAPI document of the route table."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from execd.api.routes import routes
from execd.api.wire.errors import V1_HTTP_STATUS
from execd.engine.sessions.session_state import SessionState
from execd.model import ExitReason
from tools.openapi.document import document, errors_of, openapi_path
from tools.openapi.words import CODES, HEADERS, REPLY_HEADERS, TAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.api.wire.route import Route

TABLE = routes()
DOCUMENT = document(TABLE)


def operation(route: Route) -> dict[str, Any]:
    return DOCUMENT["paths"][openapi_path(route)][route.method.lower()]


def row(name: str) -> Route:
    [found] = [route for route in TABLE if route.name == name]
    return found


def resolve(reference: dict[str, Any]) -> dict[str, Any]:
    found = DOCUMENT
    for key in reference["$ref"].removeprefix("#/").split("/"):
        found = found[key]
    return found


def references(part: object) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


@pytest.mark.third_party
def test_document_is_valid_openapi() -> None:
    # The import takes a second of CPU, and each process of a run imports this file.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_row_is_an_operation_and_every_operation_is_a_row() -> None:
    operations = {
        (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item
    }
    assert operations == {(route.method, openapi_path(route)) for route in TABLE}
    assert len(operations) == len(TABLE)


def test_every_component_is_used_and_every_reference_leads_somewhere() -> None:
    used = {reference["$ref"] for reference in references(DOCUMENT)}
    for reference in references(DOCUMENT):
        assert resolve(reference)
    for kind in ("schemas", "responses", "headers", "links"):
        for name in DOCUMENT["components"][kind]:
            assert f"#/components/{kind}/{name}" in used, name


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_operation_has_all_that_the_row_has(route: Route) -> None:
    found = operation(route)
    assert (found["operationId"], found["summary"]) == (route.name, route.summary)
    parameters = Counter(parameter["in"] for parameter in found.get("parameters", ()))
    assert parameters["path"] == len(re.findall(r"\{", openapi_path(route)))
    assert parameters["query"] == (len(route.query.__struct_fields__) if route.query else 0)
    assert parameters["header"] == len(
        {*route.headers, "X-Request-ID", *(["X-Execd-Expect-Episode"] * route.is_in_episode)}
    )
    assert ("requestBody" in found) == bool(route.body)
    statuses = {V1_HTTP_STATUS[error.code] for error in errors_of(route)} | set(route.replies)
    if route.is_v1:
        assert {int(status) for status in found["responses"]} == statuses | (
            {200} if route.events else set()
        )
    assert bool(found["security"]) == route.needs_token


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_a_parameter_has_a_description(route: Route) -> None:
    for parameter in operation(route).get("parameters", ()):
        assert parameter["description"], parameter["name"]


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_a_schema_and_each_field_has_a_description(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    assert schema["description"]
    for field, kind in schema.get("properties", {}).items():
        assert kind["description"], field


def test_a_description_has_no_indents_and_line_breaks_of_docstrings() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        for part in (schema, *schema.get("properties", {}).values()):
            for paragraph in part["description"].split("\n\n"):
                assert paragraph == " ".join(paragraph.split())


def test_the_keys_of_counts_are_closed_sets() -> None:
    def keys(struct: str, field: str) -> set[str]:
        schema = DOCUMENT["components"]["schemas"][struct]["properties"][field]
        assert schema["additionalProperties"] == {"type": "integer"}
        return set(schema["propertyNames"]["enum"])

    assert keys("ExecutionStats", "ended") == set(ExitReason)
    assert keys("ExecutionStats", "output_bytes") == {"stdout", "stderr"}
    assert keys("SessionStats", "states") == set(SessionState)
    assert keys("SessionStats", "cells") == {"success", "error"}
    assert keys("TrafficStats", "error_replies") == {*V1_HTTP_STATUS, "METHOD_NOT_ALLOWED"}


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_each_reply_has_a_request_id_and_the_instance(route: Route) -> None:
    found = operation(route)
    assert "X-Request-ID" in {parameter["name"] for parameter in found["parameters"]}
    for reply in found["responses"].values():
        headers = (resolve(reply) if "$ref" in reply else reply)["headers"]
        for name in ("X-Request-ID", "X-Execd-Instance"):
            assert resolve(headers[name])["required"] is True


def test_the_token_of_a_websocket_may_be_a_subprotocol() -> None:
    [name] = [
        name
        for scheme in operation(row("attach_terminal"))["security"]
        for name in scheme
        if DOCUMENT["components"]["securitySchemes"][name].get("name") == "Sec-WebSocket-Protocol"
    ]
    assert "`execd.bearer." in DOCUMENT["components"]["securitySchemes"][name]["description"]
    assert {name: []} not in operation(row("list_executions"))["security"]


def test_a_refusal_of_another_site_names_the_headers() -> None:
    reply = resolve(operation(row("list_executions"))["responses"]["403"])
    assert "`Origin`, `Host` or `Sec-Fetch-Site`" in reply["description"]


def test_a_stream_has_the_schema_of_each_event() -> None:
    for route in TABLE:
        if route.events:
            content = operation(route)["responses"]["200"]["content"]
            for kind in ("text/event-stream", "application/x-ndjson"):
                assert content[kind]["x-events"].keys() == route.events.keys()


def test_a_websocket_has_the_schema_of_each_message() -> None:
    found = operation(row("attach_terminal"))["responses"]["101"]["x-websocket"]
    assert found["subprotocol"] == "execd.v1"
    assert set(found["sends"]) == {"started", "dropped", "error", "exited"}
    assert set(found["receives"]) == {"resize", "signal", "eof"}
    assert resolve(found["receives"]["resize"])["properties"]["type"]["enum"] == ["resize"]


def test_a_refusal_of_bytes_that_are_not_http_has_the_form_of_v1_on_every_route() -> None:
    reply = resolve(operation(row("list_directory"))["responses"]["400"])
    kinds = [kind["$ref"] for kind in reply["content"]["application/json"]["schema"]["anyOf"]]
    assert kinds == ["#/components/schemas/MessageReply", "#/components/schemas/ErrorReply"]


def test_an_error_names_its_code_and_has_its_headers() -> None:
    reply = resolve(operation(row("list_executions"))["responses"]["503"])
    assert "`UNAVAILABLE`" in reply["description"]
    assert set(reply["headers"]) == {
        "Retry-After",
        "X-Execd-Episode",
        "X-Execd-Instance",
        "X-Request-ID",
    }


def test_a_made_session_has_its_location() -> None:
    reply = operation(row("create_session"))["responses"]["201"]
    assert "Location" in reply["headers"]


def test_a_parameter_that_may_be_null_may_be_absent() -> None:
    parameters = {one["name"]: one for one in operation(row("list_executions"))["parameters"]}
    assert parameters["cursor"]["schema"] == {"type": "string"}
    assert parameters["cursor"]["required"] is False
    assert parameters["limit"]["schema"]["maximum"] == 1000


def test_patterns_are_those_of_json_schema() -> None:
    assert "\\Z" not in str(DOCUMENT)


def test_the_address_of_the_server_is_relative_to_the_document() -> None:
    assert DOCUMENT["servers"] == [{"url": "."}]


def test_words_are_of_the_table_and_no_others() -> None:
    assert set(CODES) == set(V1_HTTP_STATUS)
    assert set(HEADERS) == {name for route in TABLE for name in route.headers}
    named = {name for route in TABLE for name in route.reply_headers}
    assert set(REPLY_HEADERS) == named | {"Retry-After", "WWW-Authenticate"}
    assert {tag["name"] for tag in DOCUMENT["tags"]} == {name for name, _, _ in TAGS}
