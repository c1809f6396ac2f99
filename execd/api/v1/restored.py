"""``POST /v1/restored``: the platform reports that it has restored the sandbox from a checkpoint.

The daemon finds most restores by itself (``restores``). With a token set, the report of
anyone with the token counts. Without a token user code could report too, and drop the connections
of all callers again and again: then the report only has the daemon look for the signs of a restore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from execd.api.wire.body import read_body
from execd.api.wire.fields import NoQuery, parse_json, parse_query
from execd.api.wire.keys import ENGINE, GATE
from execd.api.wire.replies import json_reply
from execd.api.wire.route import RouteTable
from execd.errors import Conflict
from execd.model import rfc3339

if TYPE_CHECKING:
    from aiohttp import web


class RestoredRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report has no fields yet."""


ROUTES = RouteTable()
REPORT = msgspec.json.Decoder(RestoredRequest)


class RestoredReply(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon knows of the restore."""

    instance_id: str
    """The life of the daemon since the restore, as in `/v1/capabilities`."""
    restores: int
    """How often the daemon was restored."""
    restored_at: str
    """When the daemon noticed the restore (RFC 3339)."""
    cause: str
    """How the daemon noticed: `file` (gVisor told, in `/proc/gvisor/checkpoint`), `clock` (the time
    of day jumped), `report` (by this route)."""


@ROUTES.add(
    "POST",
    "/v1/restored",
    body=(RestoredRequest,),
    is_body_optional=True,
    replies={200: (RestoredReply,)},
    errors=(Conflict,),
)
async def report_restore(request: web.Request) -> web.Response:
    """Report that the sandbox was restored from a checkpoint. Acts, unless the daemon
    has acted in the last 10 s. Raises Conflict without a token and without a sign of a restore."""
    parse_query(request.query, NoQuery)
    if body := await read_body(request):
        parse_json(body, REPORT)
    restores = request.app[ENGINE].restores
    if request.app[GATE].token_sha256 is not None:
        restores.report(request.protocol)
    elif not restores.look(request.protocol, was_told=True) and not restores.was_restored_lately:
        raise Conflict(
            "no token is set, and nothing shows a restore in the last 10 s; set a token, and "
            "report with the token"
        )
    assert restores.restored_at is not None
    assert restores.last_cause is not None
    return json_reply(
        RestoredReply(
            instance_id=restores.instance_id,
            restores=restores.count,
            restored_at=rfc3339(restores.restored_at),
            cause=restores.last_cause,
        )
    )
