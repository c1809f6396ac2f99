"""``POST /v1/reset``: the sandbox as in a checkpoint again (``engine.reset``)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from execd.api.v1 import execution_request
from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE
from execd.api.wire.replies import EXPECT_EPISODE_HEADER, JSON
from execd.api.wire.route import Access, RouteTable
from execd.engine.episodes import EpisodeOver
from execd.engine.executions.command import ID_PATTERN
from execd.engine.reset import START, ResetRequest
from execd.engine.reset_outcome import ResetReply
from execd.errors import IdempotencyMismatch, NotFound, Unavailable


class ResetBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to reset to."""

    checkpoint: Annotated[str, Meta(pattern=rf"^{ID_PATTERN.pattern}$")] = START
    """The id of the checkpoint."""
    verify: Literal["auto", "content", "stat"] = "auto"
    """How files are compared at the end. `content`: by SHA-256. `stat`: by inode, size and ctime;
    writes through `mmap` may escape on tmpfs, and contents that two files exchange on ext4 and XFS.
    `auto`: `content` there, `stat` elsewhere."""
    keep_records: bool = False
    """Keep the records of executions. Their idempotency keys are forgotten all the same."""


ROUTES = RouteTable()
BODY = msgspec.json.Decoder(ResetBody)


@ROUTES.add(
    "POST",
    "/v1/reset",
    headers=("Idempotency-Key", EXPECT_EPISODE_HEADER),
    body=(ResetBody,),
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
    body = await read_body(request)
    asked = parse_json(body, BODY) if body else ResetBody()
    key = execution_request.idempotency_key(request.headers.get("Idempotency-Key"))
    answer = await request.app[ENGINE].resets.reset(
        ResetRequest(
            checkpoint=asked.checkpoint, verify=asked.verify, keeps_records=asked.keep_records
        ),
        key,
        request.headers.get(EXPECT_EPISODE_HEADER),
    )
    return web.Response(body=answer, headers={"Content-Type": JSON})
