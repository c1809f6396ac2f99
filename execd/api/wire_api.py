"""What a dialect of another distribution may use of execd's HTTP side: the parts of a port, of a
route and of a reply. A wing imports this module and ``execd.engine.engine_api``, and nothing else
of execd. tests/test_wing_api.py freezes the names of both: a name that leaves breaks wings.
"""

from __future__ import annotations

from execd.api.app import make_http_port
from execd.api.wire import multipart
from execd.api.wire.auth import TOKEN_HEADERS, TOKEN_SUBPROTOCOL, TokenGate, presented_tokens
from execd.api.wire.body import (
    PIECES_BYTES,
    body_chunks,
    form_events,
    lease_of,
    read_body,
    upload_chunks,
)
from execd.api.wire.connections import ConnectionLimits
from execd.api.wire.downloads import CHUNK_BYTES, FILE_HEADERS, send_file
from execd.api.wire.encoders import WireEvent
from execd.api.wire.errors import V1_HTTP_STATUS, code_of_http
from execd.api.wire.fields import parse_json
from execd.api.wire.keys import ENGINE, FACTS, GATE
from execd.api.wire.origins import note_started, origin_of, request_id, trace_environment, trace_id
from execd.api.wire.port import ErrorRenderers, HttpService, PortContext, PortServer
from execd.api.wire.replies import INSTANCE_HEADER, json_reply, replace_surrogates
from execd.api.wire.route import BYTES, FORM, PATH, Access, Route
from execd.api.wire.signal_names import signal_number
from execd.api.wire.socket_viewer import SocketViewer
from execd.api.wire.streams import (
    StallDetector,
    Turn,
    abort_when_stalled,
    cancel_and_wait,
    send_events,
    send_stream,
    unacknowledged_bytes,
)
from execd.api.wire.targets import query_of, raw_path_of

__all__ = [
    "Access",
    "BYTES",
    "CHUNK_BYTES",
    "ConnectionLimits",
    "ENGINE",
    "ErrorRenderers",
    "FACTS",
    "FILE_HEADERS",
    "FORM",
    "GATE",
    "HttpService",
    "INSTANCE_HEADER",
    "PATH",
    "PIECES_BYTES",
    "PortContext",
    "PortServer",
    "Route",
    "SocketViewer",
    "StallDetector",
    "TOKEN_HEADERS",
    "TOKEN_SUBPROTOCOL",
    "TokenGate",
    "Turn",
    "V1_HTTP_STATUS",
    "WireEvent",
    "abort_when_stalled",
    "body_chunks",
    "cancel_and_wait",
    "code_of_http",
    "form_events",
    "json_reply",
    "lease_of",
    "make_http_port",
    "multipart",
    "note_started",
    "origin_of",
    "parse_json",
    "presented_tokens",
    "query_of",
    "raw_path_of",
    "read_body",
    "replace_surrogates",
    "request_id",
    "send_events",
    "send_file",
    "send_stream",
    "signal_number",
    "trace_environment",
    "trace_id",
    "unacknowledged_bytes",
    "upload_chunks",
]
