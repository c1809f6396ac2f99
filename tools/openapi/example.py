"""The form of an example, and its place in the OpenAPI document. Pure."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

JSON, BYTES, FORM = "application/json", "application/octet-stream", "multipart/form-data"
EVENT_STREAM, LINES = "text/event-stream", "application/x-ndjson"
FIRST_EVENT = "The first event of the stream."


@dataclass(frozen=True, kw_only=True)
class Example:
    """A request to a route, and the reply."""

    operation: str
    """The name of the row."""
    name: str = "example"
    """Unlike the other examples of the operation."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The path, the query and the headers."""
    body: Any = None
    body_type: str = JSON
    status: int = 200
    reply: Any = None
    """None: a reply without a body, or with bytes that no text can show."""
    reply_type: str = JSON
    reply_headers: dict[str, str] = field(default_factory=dict)
    reply_note: str = ""
    """What a reader must know of the reply, for example that only the beginning is shown."""
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The text messages of a WebSocket: ``sends`` from execd, ``receives`` from the caller."""


def add_example(
    operation: dict[str, Any], example: Example, shared_replies: dict[str, dict[str, Any]]
) -> None:
    """Add the parts of an example to the operation, all under the name of the example. A reply that
    the operation shares with others is copied first."""
    used = [one for one in operation["parameters"] if one["name"] in example.parameters]
    assert len(used) == len(example.parameters), example
    for parameter in used:
        _add(parameter, example.name, {"value": example.parameters[parameter["name"]]})
    if example.body is not None:
        body = operation["requestBody"]["content"][example.body_type]
        _add(body, example.name, {"value": example.body})
    responses, status = operation["responses"], str(example.status)
    if "$ref" in responses[status]:
        responses[status] = deepcopy(shared_replies[responses[status]["$ref"].rpartition("/")[2]])
    reply = responses[status]
    if example.reply is not None:
        note = {"description": example.reply_note} if example.reply_note else {}
        shown = {**note, "value": example.reply}
        _add(reply["content"][example.reply_type], example.name, shown)
    for name, value in example.reply_headers.items():
        _add(reply["headers"][name], example.name, {"value": value})
    if example.messages:
        _add(reply["x-websocket"], example.name, {"value": example.messages})


def _add(part: dict[str, Any], name: str, shown: dict[str, Any]) -> None:
    examples = part.setdefault("examples", {})
    assert name not in examples
    examples[name] = shown
