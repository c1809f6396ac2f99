"""The examples of an OpenAPI document: asks a daemon, and compares the replies.

Most replies must equal those of the examples, but for fields that depend on the machine and the
moment. A reply that depends on the machine as a whole is compared in a looser way, by the kind of
the reply:

* figures have the same keys and JSON types as the example;
* the document has everything that the example has;
* a text begins like the example;
* a stream begins with the event of the example;
* an archive has the media type and the headers of the example.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from .contract import EVENT_STREAM, JSON, LINES, RECORDER
from .target import READ_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import httpx

DIFFERS = {
    *("pid", "created_at", "started_at", "ended_at", "last_used_at", "modified_at", "mod_time"),
    *("duration_seconds", "uptime_seconds", "usage", "memory_bytes", "limits"),
    *("uid", "gid", "links", "etag", "next_cursor"),
}
"""Fields whose values depend on the machine and the moment. Their keys and JSON types do not."""
FIGURES = {"get_capabilities", "get_stats", "reset_sandbox"}
CUT_OBJECTS = {"get_openapi"}
BEGINNINGS = {
    *("get_docs", "get_docs_with_slash", "get_docs_settings", "get_docs_styles"),
    *("get_docs_viewer", "get_metrics"),
}
NUMBERED_BY_TIME = {"stream_session"}
"""Streams whose numbers of events begin with the time of the session."""


@dataclass(frozen=True)
class Example:
    """The reply of an example, as the document has it."""

    status: int
    media_type: str | None
    value: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Found:
    """The reply of the daemon. Of a stream: the first event."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0]

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


class Examples:
    """The examples of a document, and a daemon to ask. The base dir of the examples is
    /workspace."""

    def __init__(self, document: dict[str, Any], client: httpx.Client, base_dir: str) -> None:
        self._client = client
        self._base_dir = base_dir
        self._operations = {
            operation["operationId"]: (method, path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }

    def names(self) -> set[tuple[str, str]]:
        """All examples: the operation and the name."""
        return {
            (operation_id, name)
            for operation_id, (_, _, operation) in self._operations.items()
            for part in _parts(operation)
            for name in part.get("examples", ())
        }

    def ask(self, operation_id: str, name: str) -> Found:
        """Send the request of the example. A program or a question that has not begun yet is
        409: the request is repeated then, unless the example is such a refusal."""
        method, _, operation = self._operations[operation_id]
        path, query, headers = self._target(operation_id, name)
        example = self.reply(operation_id, name)
        if example is not None and example.media_type is not None:
            headers["Accept"] = example.media_type
        body: dict[str, Any] = {}
        for content_type, media in operation.get("requestBody", {}).get("content", {}).items():
            if name not in media.get("examples", ()):
                continue
            value = media["examples"][name]["value"]
            if content_type == "multipart/form-data":
                body = {"files": {"file": ("greeting.txt", value["file"])}}
            else:
                body = {"content": json.dumps(value) if content_type == JSON else value}
                headers["Content-Type"] = content_type
        found: list[Found] = []

        def is_due() -> bool:
            with self._client.stream(
                method, path, params=query, headers=headers, **body
            ) as response:
                is_stream = response.headers.get("content-type", "").startswith(
                    (EVENT_STREAM, LINES)
                )
                content = _first_event(response.iter_lines()) if is_stream else response.read()
                content = content.replace(self._base_dir.encode(), b"/workspace")
                found.append(Found(response.status_code, response.headers, content))
            return found[-1].status != 409 or (example is not None and example.status == 409)

        wait_until(is_due, READ_SECONDS, f"{operation_id}, {name}: not 409")
        return found[-1]

    def reply(self, operation_id: str, name: str) -> Example | None:
        """The reply of the example. None: a reply without a body and without headers to show."""
        _, _, operation = self._operations[operation_id]
        for status, reply in operation["responses"].items():
            headers = {
                header: part["examples"][name]["value"]
                for header, part in reply.get("headers", {}).items()
                if name in part.get("examples", ())
            }
            for media_type, media in reply.get("content", {}).items():
                if name in media.get("examples", ()):
                    value = media["examples"][name]["value"]
                    return Example(int(status), media_type, value, headers)
            if headers:
                return Example(int(status), None, None, headers)
        return None

    async def attach(self, operation_id: str, name: str) -> tuple[list[Any], list[Any]]:
        """Open the WebSocket of the example, and send the caller's messages. Return the text
        messages of the daemon up to the end, and those of the example."""
        path, query, _ = self._target(operation_id, name)
        socket = self._operations[operation_id][2]["responses"]["101"]["x-websocket"]
        messages = socket["examples"][name]["value"]
        url = self._client.base_url.join(path)
        received = []
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                str(url), params=query, protocols=(socket["subprotocol"],)
            ) as connection,
        ):
            assert connection.protocol == socket["subprotocol"]
            for message in messages["receives"]:
                RECORDER.add_message("receives", message)
                await connection.send_str(json.dumps(message))
            async for arrived in connection:
                if arrived.type is aiohttp.WSMsgType.TEXT:
                    received.append(json.loads(arrived.data.replace(self._base_dir, "/workspace")))
                    RECORDER.add_message("sends", received[-1])
        return received, messages["sends"]

    def _target(self, operation_id: str, name: str) -> tuple[str, dict[str, Any], dict[str, str]]:
        """The path, the query and the headers of the example's request."""
        _, path, operation = self._operations[operation_id]
        query: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for parameter in operation["parameters"]:
            if name not in parameter.get("examples", ()):
                continue
            value = parameter["examples"][name]["value"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value)
            else:
                place = query if parameter["in"] == "query" else headers
                place[parameter["name"]] = value
        assert "{" not in path
        return path, query, headers


def _parts(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of an operation that may have examples."""
    yield from operation["parameters"]
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from part.get("content", {}).values()
        yield from part.get("headers", {}).values()
        if "x-websocket" in part:
            yield part["x-websocket"]


def _first_event(lines: Iterable[str]) -> bytes:
    """The lines of the first event that is no heartbeat."""
    found: list[str] = []
    for line in lines:
        if line and not line.startswith(":"):
            found.append(line)
        if found and (not line or line.startswith("{")):
            break
    return "\n".join(found).encode()


# --- comparison


def is_as_shown(operation_id: str, found: Found, example: Example) -> bool:
    """Whether the daemon's reply is that of the example."""
    return (
        found.status == example.status
        and all(
            name in found.headers and _is_header_alike(name, found.headers[name], value)
            for name, value in example.headers.items()
        )
        and (example.media_type is None or _is_body_as_shown(operation_id, found, example))
    )


def _is_header_alike(name: str, found: str, expected: str) -> bool:
    match name:
        case "ETag":
            return found.startswith('"') and found.endswith('"') and len(found) > 2
        case "Last-Modified":
            return parsedate_to_datetime(found) is not None
        case _:
            return found == expected


def _is_body_as_shown(operation_id: str, found: Found, example: Example) -> bool:
    if example.media_type not in ("*/*", found.media_type):
        return False
    if found.media_type == EVENT_STREAM:
        event = dict(line.split(": ", 1) for line in found.text.split("\n"))
        if operation_id in NUMBERED_BY_TIME:
            event["id"] = example.value["id"] if event["id"].isdecimal() else "?"
        return is_alike(_with_data(event), _with_data(example.value))
    if operation_id in BEGINNINGS:
        return _without_values(found.text).startswith(_without_values(example.value))
    if found.media_type not in (JSON, LINES):
        return bool(found.text == example.value)
    body = json.loads(found.content)
    if operation_id in FIGURES:
        return has_shape(body, example.value)
    if operation_id in CUT_OBJECTS:
        return has_all(body, example.value)
    return is_alike(body, example.value)


def _with_data(event: dict[str, str]) -> dict[str, Any]:
    return {**event, "data": json.loads(event["data"])}


def _without_values(text: str) -> str:
    """Lines of metrics without their values; other text as it is."""
    lines = text.split("\n")
    return "\n".join(
        line.rpartition(" ")[0] + " " if line.startswith("execd_") else line for line in lines
    )


def is_alike(found: Any, expected: Any) -> bool:
    """Whether the values are equal, but for the fields of DIFFERS."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(
                (name in DIFFERS and has_shape(found[name], expected[name]))
                or (name == "size" and expected.get("type") == "directory")
                or (name == "execution_id" and "id" not in expected)
                or (name == "state" and expected[name] == "QUEUED")
                or is_alike(found[name], expected[name])
                for name in expected
            )
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(is_alike, found, expected))
        )
    return bool(found == expected)


def has_shape(found: Any, expected: Any) -> bool:
    """Whether the values have the same keys and the same JSON types. Null stands for any scalar: a
    figure without a source is null."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(has_shape(found[name], expected[name]) for name in expected)
        )
    if isinstance(expected, list):
        return isinstance(found, list) and all(
            has_shape(one, example) for one in found for example in expected
        )
    if isinstance(found, dict | list):
        return False
    return found is None or expected is None or _json_type(found) == _json_type(expected)


def _json_type(scalar: object) -> str:
    match scalar:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case _:
            return "string"


def has_all(found: Any, expected: Any) -> bool:
    """Whether everything in the example is in the value too."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and has_all(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(found, list) and all(
            any(has_all(one, example) for one in found) for example in expected
        )
    return bool(found == expected)
