"""The prose of the OpenAPI document: the parts that the route table does not have. Pure."""

from __future__ import annotations

from typing import Any

from execd import errors
from execd.api.wire.auth import TOKEN_SUBPROTOCOL
from execd.api.wire.replies import EPISODE_HEADER, EXPECT_EPISODE_HEADER, INSTANCE_HEADER
from execd.api.wire.route import BYTES, FORM

DESCRIPTION = """\
The daemon inside a sandbox pod: runs commands, keeps Python sessions alive, moves files.

* Each `GET` route answers `HEAD` too, with the same status and headers; but `Range` counts with
  `GET` only, and a file that is no regular file has a `HEAD` and no `GET`.
* A path without a route is 404, and another method than those of the path is 405 with `Allow`.
  `OPTIONS` is such a method: the 405 has the methods of the path.
* Each reply has `X-Request-ID`: the id of the request's own `X-Request-ID`, or a new id. The log
  has the id too.
* Each reply has `X-Execd-Instance`: `instance.id` of `/v1/capabilities`. Another value than before
  means another daemon, perhaps in a new pod without your files.
* Each reply has `X-Execd-Episode`, which changes with each reset of the sandbox. A request with
  `X-Execd-Expect-Episode` of another episode is 409, and runs nothing.
* The message of an error names the field, the rule and the remedy. Programs branch on `code`.
* Sizes are in bytes and times in seconds; the name of a field ends in the unit, but for
  `size` and `offset` (bytes) and `mod_time` (seconds).
* A reply may get further fields in later versions. Ignore a field that you do not know.
* execd sends `100 Continue` when a route asks for the body.
"""

TAGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "executions",
        "Run a command, wait, stream, resume, give input, signal, end.",
        ("/v1/executions",),
    ),
    (
        "sessions",
        "Python whose variables live from cell to cell. A cell is an execution.",
        ("/v1/sessions", "/v1/code"),
    ),
    (
        "files",
        "Read, write, list, search, watch and move files.",
        ("/v1/files", "/v1/fs/", "/v1/archive", "/v1/watch"),
    ),
    (
        "checkpoints",
        "Keep the files of directories, compare, restore.",
        ("/v1/checkpoints",),
    ),
    (
        "sandbox",
        "What this sandbox is, can do and has done.",
        ("/v1/metadata", "/v1/capabilities", "/v1/stats", "/v1/restored", "/v1/reset", "/metrics"),
    ),
    (
        "python-runtime",
        "The routes of the sandbox image of kubernetes-sigs/agent-sandbox.",
        ("/execute", "/upload", "/download", "/list", "/exists"),
    ),
    ("documentation", "The description of all routes.", ("/openapi.json", "/docs")),
    ("probes", "Whether the daemon is alive and ready. No probe needs the token.", ("/",)),
)
"""Name, description, and the beginnings of the paths. The first fitting tag counts."""

SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "The access token. Needed where the daemon has `--token-sha256`.",
    },
    "access_token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Access-Token",
        "description": "The access token, where a router strips `Authorization`.",
    },
    "execd_access_token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-EXECD-ACCESS-TOKEN",
        "description": "The access token, where a router strips `Authorization`.",
    },
}

SOCKET_SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "websocket_token": {
        "type": "apiKey",
        "in": "header",
        "name": "Sec-WebSocket-Protocol",
        "description": f"The subprotocol `{TOKEN_SUBPROTOCOL}TOKEN`, offered beside that of the "
        "messages: browsers cannot set headers on a WebSocket.",
    },
}
"""Further ways to give the token on a WebSocket."""

PATH_PARAMETERS = {
    "id": "The name of the execution, session or checkpoint.",
    "path": "A path below the base dir, with slashes as they are; all other bytes may be "
    "percent-encoded. A path below the base dir may also be absolute.",
}

HEADERS = {
    "Accept-Encoding": "With `gzip`, the content comes compressed.",
    "Content-Digest": "`sha-256=:BASE64:` of the body. Another digest is 400, and nothing changes.",
    "Idempotency-Key": "1 to 255 printable characters. A repeated request with the key gets the "
    "reply of the first.",
    "If-Match": "Entity tags. 412 unless the file has one of them; `*`: unless it exists.",
    "If-Modified-Since": "A date. 304 unless the file is later.",
    "If-None-Match": "Entity tags. 304, or 412 for a change, if the file has one of them; `*`: if "
    "it exists.",
    "If-Range": "An entity tag or a date. `Range` counts only while the file has it.",
    "If-Unmodified-Since": "A date. 412 if the file is later.",
    "Last-Event-ID": "The number of the last event that the caller has: the stream goes on behind.",
    "Range": "`bytes=START-END`: a part of the bytes, as 206. Several parts: the whole, as 200.",
    "Repr-Digest": "`sha-256=:BASE64:` of the whole file after the request. Another digest is 400, "
    "and nothing changes.",
    "Want-Repr-Digest": "`sha-256=1`: the reply has `Repr-Digest`.",
    EXPECT_EPISODE_HEADER: "The episode of the caller. 409, and nothing runs, if the sandbox was "
    "reset since.",
    "X-Request-ID": "A name for the request. A repeated request with this name and the same body "
    "joins the first run.",
    "X-Sandbox-Timeout": "How many seconds the caller waits: the bound for waiting and running "
    "together.",
    "traceparent": "The W3C trace context. The program gets it as the variable TRACEPARENT.",
}
"""The headers of requests."""

REQUEST_ID = "X-Request-ID"
REQUEST_ID_PARAMETER = (
    "A name for the request: up to 128 printable characters. The reply and the log have the name."
)
"""The meaning of the header on a route that gives the header no other meaning."""
HEADERS_OF_EACH_REPLY = {
    REQUEST_ID: "The name that the request gave itself, or a name that execd made.",
    INSTANCE_HEADER: "The life of the daemon: `instance.id` of `/v1/capabilities`.",
    EPISODE_HEADER: "The time since the last reset of the sandbox.",
}

REPLY_HEADERS: dict[str, tuple[tuple[int, ...], str]] = {
    "Accept-Ranges": ((200, 206), "`bytes`."),
    "Content-Disposition": ((200, 206), "`attachment`, with the name of the file."),
    "Content-Range": ((206, 416), "The place of the part, and the size of the whole."),
    "ETag": ((200, 204, 206, 304), "The entity tag of the content."),
    "Idempotent-Replayed": ((200, 202), "`true`: the reply of an earlier request."),
    "Last-Modified": ((200, 206, 304), "The date of the last change, in whole seconds."),
    "Location": ((200, 201, 202), "The path of the execution, the session or the checkpoint."),
    "Repr-Digest": ((200, 206), "`sha-256=:BASE64:` of the whole file, if asked for."),
    "Retry-After": ((429, 503), "How many seconds to wait before the next try."),
    "WWW-Authenticate": ((401,), '`Bearer realm="execd"`.'),
}
"""The headers of replies: on which statuses, and the meaning. An error has each header of its
status; other replies have those that the row names."""

STATUSES = {
    101: "The connection is a WebSocket now.",
    200: "Done.",
    201: "Made.",
    202: "The execution goes on. `GET /v1/executions/{id}` has the end.",
    204: "Done; there is nothing to tell.",
    206: "A part of the bytes.",
    304: "The caller has the content already.",
    400: "The request breaks a rule.",
    422: "The body breaks a rule.",
    503: "Not ready.",
}

CODES: dict[str, str] = {
    kind.code: " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    for kind in vars(errors).values()
    if isinstance(kind, type)
    if issubclass(kind, errors.ExecdError)
    if kind is not errors.ExecdError
}
"""The meanings of the codes of errors: the first paragraphs of the docstrings."""

BODIES: dict[str, dict[str, Any]] = {
    BYTES: {"type": "string", "format": "binary"},
    FORM: {
        "type": "object",
        "properties": {
            "file": {
                "type": "string",
                "format": "binary",
                "description": "The content of the file.",
            }
        },
        "required": ["file"],
    },
    **{name: {"type": "string"} for name in ("text/html", "text/css", "text/javascript")},
}
"""The schemas of bodies that are not JSON."""

EVENT_STREAMS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "text/event-stream": (
        "One of the server-sent events, if `Accept` asks for them. `x-events` has the schema of "
        "`data` for each `event`. A comment is a heartbeat.",
        {
            "id": {"type": "string", "description": "The number of the event."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "description": "The fields of the event.",
            },
        },
    ),
    "application/x-ndjson": (
        "One of the lines, if `Accept` asks for them. The line has the fields of the event too: "
        "`x-events` has their schema for each `event`. An empty line is a heartbeat.",
        {"sequence": {"type": "integer", "description": "The number of the event."}},
    ),
}
"""The form of an event in each kind of stream: the description, and the properties besides
`event`."""
