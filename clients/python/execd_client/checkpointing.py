"""Plans of checkpoints and resets."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from execd_client import models
from execd_client.address import segment, with_query
from execd_client.calls import call, decoded, json_request
from execd_client.effects import Cut, Request
from execd_client.errors import Conflict, ConnectionLost, NotFound

if TYPE_CHECKING:
    from execd_client.calls import Patience
    from execd_client.effects import Plan

CHECKPOINTS, RESET = "/v1/checkpoints", "/v1/reset"
START = "start"
SCAN_SECONDS = 600.0
"""execd reads all files of a checkpoint before the first byte of an answer."""


def words_of(difference: models.ResetDifference) -> str:
    """What is not as before, in one line."""
    place = difference.path or difference.pid or difference.port
    where = "" if place is None else f" {place}"
    return f"{difference.kind}{where}: {difference.message}"


def path_of(checkpoint_id: str) -> str:
    return f"{CHECKPOINTS}/{segment(checkpoint_id)}"


def create(body: dict[str, Any], patience: Patience) -> Plan[models.CheckpointReply]:
    """Make a checkpoint. The client chooses the id: a repeated request finds the checkpoint that
    the first request made."""
    request = _slow(json_request("POST", CHECKPOINTS, body))
    try:
        reply = yield from call(request, patience, may_repeat=False)
    except ConnectionLost as lost:
        yield from patience.after_cut(Cut(str(lost), was_sent=True))
        try:
            reply = yield from call(request, patience)
        except Conflict:
            reply = yield from call(Request("GET", path_of(body["id"])), patience)
    return decoded(reply, models.CheckpointReply)


def list_all(patience: Patience) -> Plan[list[models.CheckpointReply]]:
    reply = yield from call(Request("GET", CHECKPOINTS), patience)
    return decoded(reply, models.CheckpointsReply).items


def delete(checkpoint_id: str, patience: Patience) -> Plan[None]:
    """A checkpoint that is gone is no error."""
    try:
        yield from call(Request("DELETE", path_of(checkpoint_id)), patience)
    except NotFound:
        return


def changes(
    checkpoint_id: str, path: str | None, patience: Patience
) -> Plan[list[models.ChangeItem]]:
    found: list[models.ChangeItem] = []
    cursor: str | None = None
    while True:
        query = {"path": path, "limit": 1000, "cursor": cursor}
        request = Request("GET", with_query(f"{path_of(checkpoint_id)}/changes", query))
        page = decoded((yield from call(_slow(request), patience)), models.ChangesReply)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def exported(
    checkpoint_id: str, export_format: str, path: str | None, patience: Patience
) -> Plan[bytes]:
    """The changes as ``patch``, ``tar`` or ``tar.gz``."""
    query = {"format": export_format, "path": path}
    request = Request("GET", with_query(f"{path_of(checkpoint_id)}/changes", query))
    return bytes((yield from call(_slow(request), patience)).body)


def restore(checkpoint_id: str, patience: Patience) -> Plan[models.RestoreReply]:
    request = _slow(Request("POST", f"{path_of(checkpoint_id)}/restore"))
    return decoded((yield from call(request, patience)), models.RestoreReply)


def reset(body: dict[str, Any], patience: Patience) -> Plan[models.ResetReply]:
    """Reset the sandbox once, however often the request is repeated: the key survives the reset."""
    request = json_request("POST", RESET, body, Idempotency_Key=uuid.uuid4().hex)
    return decoded((yield from call(_slow(request), patience)), models.ResetReply)


def _slow(request: Request) -> Request:
    return replace(request, silence_seconds=SCAN_SECONDS)
