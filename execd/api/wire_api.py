"""What a dialect of another distribution may use of execd's HTTP side: the parts of a port, of a
route and of a reply. A wing imports this module and ``execd.engine.engine_api``, and nothing else
of execd. tests/test_wing_api.py freezes the names of both: a name that leaves breaks wings.
``as`` with the same name exports the name.
"""

from __future__ import annotations

from execd.api.app import make_http_port as make_http_port
from execd.api.wire import multipart as multipart
from execd.api.wire.auth import TOKEN_HEADERS as TOKEN_HEADERS
from execd.api.wire.auth import TOKEN_SUBPROTOCOL as TOKEN_SUBPROTOCOL
from execd.api.wire.auth import TokenGate as TokenGate
from execd.api.wire.auth import presented_tokens as presented_tokens
from execd.api.wire.body import PIECES_BYTES as PIECES_BYTES
from execd.api.wire.body import body_chunks as body_chunks
from execd.api.wire.body import form_events as form_events
from execd.api.wire.body import lease_of as lease_of
from execd.api.wire.body import read_body as read_body
from execd.api.wire.body import upload_chunks as upload_chunks
from execd.api.wire.connections import ConnectionLimits as ConnectionLimits
from execd.api.wire.downloads import CHUNK_BYTES as CHUNK_BYTES
from execd.api.wire.downloads import FILE_HEADERS as FILE_HEADERS
from execd.api.wire.downloads import send_file as send_file
from execd.api.wire.encoders import WireEvent as WireEvent
from execd.api.wire.errors import V1_HTTP_STATUS as V1_HTTP_STATUS
from execd.api.wire.errors import code_of_http as code_of_http
from execd.api.wire.fields import parse_json as parse_json
from execd.api.wire.keys import ENGINE as ENGINE
from execd.api.wire.keys import FACTS as FACTS
from execd.api.wire.keys import GATE as GATE
from execd.api.wire.origins import note_started as note_started
from execd.api.wire.origins import origin_of as origin_of
from execd.api.wire.origins import request_id as request_id
from execd.api.wire.origins import trace_environment as trace_environment
from execd.api.wire.origins import trace_id as trace_id
from execd.api.wire.port import ErrorRenderers as ErrorRenderers
from execd.api.wire.port import HttpService as HttpService
from execd.api.wire.port import PortContext as PortContext
from execd.api.wire.port import PortServer as PortServer
from execd.api.wire.replies import EPISODE_HEADER as EPISODE_HEADER
from execd.api.wire.replies import EXPECT_EPISODE_HEADER as EXPECT_EPISODE_HEADER
from execd.api.wire.replies import INSTANCE_HEADER as INSTANCE_HEADER
from execd.api.wire.replies import json_reply as json_reply
from execd.api.wire.replies import replace_surrogates as replace_surrogates
from execd.api.wire.route import BYTES as BYTES
from execd.api.wire.route import FORM as FORM
from execd.api.wire.route import PATH as PATH
from execd.api.wire.route import Access as Access
from execd.api.wire.route import Route as Route
from execd.api.wire.signal_names import signal_number as signal_number
from execd.api.wire.socket_viewer import SocketViewer as SocketViewer
from execd.api.wire.streams import Turn as Turn
from execd.api.wire.streams import abort_when_stalled as abort_when_stalled
from execd.api.wire.streams import cancel_and_wait as cancel_and_wait
from execd.api.wire.streams import send_events as send_events
from execd.api.wire.streams import send_stream as send_stream
from execd.api.wire.streams import unacknowledged_bytes as unacknowledged_bytes
from execd.api.wire.targets import query_of as query_of
from execd.api.wire.targets import raw_path_of as raw_path_of
