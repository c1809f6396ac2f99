"""``POST /v1/reset``: the sandbox as in a checkpoint again (``engine.reset``)."""

from __future__ import annotations

import msgspec
from aiohttp import web

from execd.api.v1 import execution_request
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import EXPECT_EPISODE_HEADER, JSON
from execd.api.wire.route import Access, RouteTable
from execd.engine.episodes import EpisodeOver
from execd.engine.reset_outcome import ResetReply, ResetRequest
from execd.errors import IdempotencyMismatch, NotFound, Unavailable

ROUTES = RouteTable()
BODY = msgspec.json.Decoder(ResetRequest)


@ROUTES.add(
    "POST",
    "/v1/reset",
    headers=("Idempotency-Key", EXPECT_EPISODE_HEADER),
    body=(ResetRequest,),
    is_body_optional=True,
    replies={200: (ResetReply,)},
    errors=(NotFound, IdempotencyMismatch, EpisodeOver, Unavailable),
    access=Access.RESET,
)
async def reset_sandbox(request: web.Request) -> web.Response:
    """End all user code, make the files as in a checkpoint, and verify that the sandbox is as
    before. The reply tells what is not. Goes on when the caller leaves; a repeated request with the
    same key gets the first answer. Other requests are 503 meanwhile."""
    parse_query(request.query, NoQuery)
    asked = parse_json(await read_body(request) or b"{}", BODY)
    key = execution_request.idempotency_key(request.headers.get("Idempotency-Key"))
    expected = request.headers.get(EXPECT_EPISODE_HEADER)
    answer = await request.app[ENGINE].resets.reset(asked, key, expected)
    return web.Response(body=answer, headers={"Content-Type": JSON})
