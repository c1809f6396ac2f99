"""Compares the recorded replies of the suite with the daemon's own OpenAPI document.

``watch`` records the replies to requests with httpx, and ``Target.request`` its own. Bytes on a
bare socket of ``Target.connect`` are not recorded. ``findings`` judges the recorded replies after
the test, so that the judgement delays no reply:

* the status is documented, and so is the media type;
* a body in JSON fits the schema and has no field that the schema lacks;
* each event of a stream has a documented name, and its fields fit the schema;
* a path without a route is 404, and another method than those of the path is 405 with these methods
  in ``Allow``, unless the request is refused before; the body has the dialect of the path.

A reply that was not read to its end is judged as far as it was read.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema_rs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from .target import Target

MAX_BODY_BYTES = 64 << 20
"""A larger body is judged by its status and headers alone."""
JSON, EVENT_STREAM, LINES = "application/json", "text/event-stream", "application/x-ndjson"
PARAMETER = re.compile(r"\{(\w+)\}")
BEFORE_ROUTING = (400, 401, 403, 413, 417, 431, 501, 503)
"""The statuses of refusals that depend on no route."""


@dataclass
class Reply:
    """A reply, and the request."""

    method: str
    target: str
    http_status: int
    headers: Mapping[str, str]
    content: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def has_text(self) -> bool:
        """Whether the body is judged. A file with a name ends in any type, and is no reply."""
        return (
            self.media_type in (JSON, EVENT_STREAM, LINES)
            and "content-disposition" not in self.headers
        )

    def add(self, data: bytes) -> None:
        if self.has_text and len(self.content) <= MAX_BODY_BYTES:
            self.content += data


class Contract:
    """The document, ready to judge."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._components = strict(document["components"]["schemas"])
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        # A fixed path comes before a parameter, as in the daemon's router.
        self._paths = [
            (re.compile(_pattern(path), re.DOTALL), item)
            for path, item in sorted(document["paths"].items(), key=lambda one: "{" in one[0])
        ]

    def findings(self, reply: Reply) -> Iterator[str]:
        """Yield everything about the reply that the document does not have."""
        for finding in self._findings(reply):
            yield f"{reply.method} {reply.target[:100]}: {reply.http_status}: {finding}"

    def message_findings(self, direction: str, message: dict[str, Any]) -> Iterator[str]:
        """The same for a text message of a WebSocket: ``direction`` is "sends" or "receives"."""
        [socket] = [
            reply["x-websocket"]
            for item in self._document["paths"].values()
            for operation in item.values()
            for reply in operation["responses"].values()
            if "x-websocket" in reply
        ]
        kind = message.get("type")
        if kind not in socket[direction]:
            yield f"the message {kind} is not documented"
        else:
            yield from self._invalid(socket[direction][kind], message)

    def _findings(self, reply: Reply) -> Iterator[str]:
        operation = self._operation(reply)
        if operation is None:
            yield from self._findings_without_route(reply)
            return
        documented = operation["responses"].get(str(reply.http_status))
        if documented is None:
            yield "the status is not documented"
            return
        if "$ref" in documented:
            documented = self._document["components"]["responses"][documented["$ref"].split("/")[3]]
        content = documented.get("content", {})
        if not content:
            if reply.content:
                yield "no body is documented"
            return
        media = content.get(reply.media_type, content.get("*/*"))
        if media is None:
            yield f"the content type {reply.media_type!r} is not documented"
        elif reply.method == "HEAD" or not reply.has_text:
            return
        elif reply.media_type == JSON:
            yield from self._of_json(media["schema"], reply)
        else:
            for name, fields in _events(reply):
                if name not in media["x-events"]:
                    yield f"the event {name!r} is not documented"
                else:
                    for finding in self._invalid(media["x-events"][name], fields):
                        yield f"event {name}: {finding}"

    def _findings_without_route(self, reply: Reply) -> Iterator[str]:
        path = _path(reply)
        allowed = {
            method.upper()
            for pattern, item in self._paths
            if pattern.fullmatch(path)
            for method in item
        }
        allowed |= {"HEAD"} if "GET" in allowed else set()
        expected = 405 if allowed else 404
        is_v1 = path.startswith("/v1/")
        if reply.http_status == expected:
            names = ["ErrorReply" if is_v1 else "DetailReply"]
            if set(re.findall(r"\w+", reply.headers.get("allow", ""))) != allowed:
                yield f"Allow is {reply.headers.get('allow')!r}, and not {sorted(allowed)}"
        elif reply.http_status in BEFORE_ROUTING:
            # Bytes that are not HTTP have no path, and so the dialect of /v1.
            names = ["ErrorReply"] if is_v1 else ["MessageReply", "ErrorReply"]
        else:
            yield f"no such route is documented: {expected} is due"
            return
        if reply.is_whole and reply.method != "HEAD":
            references = [{"$ref": f"#/components/schemas/{name}"} for name in names]
            yield from self._of_json({"anyOf": references}, reply)

    def _operation(self, reply: Reply) -> dict[str, Any] | None:
        path = _path(reply)
        method = {"HEAD": "get"}.get(reply.method, reply.method.lower())
        for pattern, item in self._paths:
            if pattern.fullmatch(path) and method in item:
                return item[method]
        return None

    def _of_json(self, schema: dict[str, Any], reply: Reply) -> Iterator[str]:
        if not reply.is_whole or len(reply.content) > MAX_BODY_BYTES:
            return
        content = reply.content
        if reply.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        try:
            value = json.loads(content)
        except ValueError:
            yield f"the body is no JSON: {bytes(reply.content[:100])!r}"
        else:
            yield from self._invalid(schema, value)

    def _invalid(self, schema: dict[str, Any], value: object) -> Iterator[str]:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**strict(schema), "components": {"schemas": self._components}}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        for error in self._validators[key].iter_errors(value):
            yield f"{'/'.join(map(str, error.instance_path))}: {error.message[:500]}"


class Recorder:
    """The replies of one test, by the documents of the daemons that sent them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.replies: list[Reply] = []
        self._messages: list[tuple[str, dict[str, Any]]] = []
        self._addresses: set[tuple[str, int]] = set()
        self._contract: Contract | None = None

    def learn(self, target: Target) -> None:
        """The replies of this daemon are recorded. The first daemon's document holds for all,
        because all are of one version."""
        if self._contract is None:
            answer = target.request("GET", "/openapi.json")
            if answer.http_status != HTTPStatus.OK:
                return  # a server without the document
            self._contract = Contract(answer.json())
        self._addresses.add(target.address)

    def begin(self, method: str, address: tuple[str, int], target: str, *head: Any) -> Reply | None:
        """Record a reply, if a known daemon has sent the reply."""
        if address not in self._addresses:
            return None
        reply = Reply(method, target, *head)
        with self._lock:
            self.replies.append(reply)
        return reply

    def add_message(self, direction: str, message: dict[str, Any]) -> None:
        with self._lock:
            self._messages.append((direction, message))

    def take_findings(self) -> list[str]:
        """Judge and forget what was recorded."""
        with self._lock:
            replies, self.replies = self.replies, []
            messages, self._messages = self._messages, []
        contract = self._contract
        if contract is None:
            return []
        found = [finding for reply in replies for finding in contract.findings(reply)]
        for direction, message in messages:
            found += contract.message_findings(direction, message)
        return sorted(set(found))


RECORDER = Recorder()


class _Stream(httpx.SyncByteStream):
    """The body of a reply, recorded while read."""

    def __init__(self, stream: httpx.SyncByteStream, reply: Reply) -> None:
        self._stream = stream
        self._reply = reply

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            self._reply.add(data)
            yield data
        self._reply.is_whole = True

    def close(self) -> None:
        self._stream.close()


def watch(patch: pytest.MonkeyPatch) -> None:
    """Record the replies to all requests with httpx from now on."""
    original = httpx.HTTPTransport.handle_request

    def handle_request(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        response = original(self, request)
        url = request.url
        reply = RECORDER.begin(
            request.method,
            (url.host, url.port or 80),
            url.raw_path.decode(),
            response.status_code,
            {name.lower(): value for name, value in response.headers.items()},
        )
        if reply is not None:
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = _Stream(response.stream, reply)
        return response

    patch.setattr(httpx.HTTPTransport, "handle_request", handle_request)


def strict(schema: Any) -> Any:
    """Return the schema without room for further fields. The daemon's schemas leave room, because a
    later version may add fields."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(part) for key, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _path(reply: Reply) -> str:
    """The path without the slashes that the daemon drops too."""
    path = re.sub("^//+", "/", reply.target.partition("?")[0])
    return re.sub("^/v1//+", "/v1/", path)


def _pattern(path: str) -> str:
    """The paths of files have slashes; names have none."""
    parts = PARAMETER.split(path)
    return "".join(
        (".*" if part == "path" else "[^/]+") if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )


def _events(reply: Reply) -> Iterator[tuple[str, Any]]:
    """The names and the fields of the whole events that were read."""
    end = b"\n\n" if reply.media_type == EVENT_STREAM else b"\n"
    for block in bytes(reply.content).split(end)[:-1]:
        if reply.media_type == LINES:
            if block:
                fields = json.loads(block)
                assert type(fields.pop("sequence")) is int
                yield fields.pop("event"), fields
            continue
        lines = [line for line in block.decode().split("\n") if line and line[0] != ":"]
        if lines:
            parts = dict(line.split(": ", 1) for line in lines)
            yield parts["event"], json.loads(parts["data"])
