"""Plans of sessions."""

from __future__ import annotations

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

SESSIONS = "/v1/sessions"
INTERPRETER_SECONDS = 60.0
"""A new interpreter waits 20 s for a place and 20 s for the start, at most."""


def path_of(session_id: str) -> str:
    return f"{SESSIONS}/{segment(session_id)}"


def create(body: dict[str, Any], patience: Patience) -> Plan[models.SessionReply]:
    """Make a session. The client chooses the id: a repeated request finds the session that the
    first request made."""
    is_repeated = False
    while True:
        request = json_request("POST", SESSIONS, body)
        try:
            reply = yield from call(_slow(request), patience, may_repeat=is_repeated)
        except Conflict:
            if not is_repeated:
                raise
            return (yield from get(str(body["id"]), patience))
        except ConnectionLost as lost:
            if is_repeated:
                raise
            is_repeated = True
            yield from patience.after_cut(Cut(str(lost), was_sent=True))
            continue
        return decoded(reply, models.SessionReply)


def get(session_id: str, patience: Patience) -> Plan[models.SessionReply]:
    reply = yield from call(Request("GET", path_of(session_id)), patience)
    return decoded(reply, models.SessionReply)


def get_or_create(body: dict[str, Any], patience: Patience) -> Plan[models.SessionReply]:
    try:
        return (yield from get(str(body["id"]), patience))
    except NotFound:
        pass
    try:
        return (yield from create(body, patience))
    except Conflict:
        return (yield from get(str(body["id"]), patience))


def list_all(patience: Patience) -> Plan[list[models.SessionReply]]:
    found: list[models.SessionReply] = []
    cursor: str | None = None
    while True:
        path = with_query(SESSIONS, {"limit": 1000, "cursor": cursor})
        page = decoded((yield from call(Request("GET", path), patience)), models.SessionsReply)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def delete(session_id: str, patience: Patience) -> Plan[None]:
    """End a session. A session that is gone is no error."""
    try:
        yield from call(Request("DELETE", path_of(session_id)), patience)
    except NotFound:
        return


def interrupt(session_id: str, patience: Patience) -> Plan[bool]:
    request = Request("POST", f"{path_of(session_id)}/interrupt")
    reply = yield from call(request, patience, may_repeat=False)
    return decoded(reply, models.InterruptReply).interrupted


def restart(session_id: str, patience: Patience) -> Plan[models.SessionReply]:
    request = Request("POST", f"{path_of(session_id)}/restart")
    reply = yield from call(_slow(request), patience, may_repeat=False)
    return decoded(reply, models.SessionReply)


def give_input(session_id: str, text: str, patience: Patience) -> Plan[None]:
    request = json_request("POST", f"{path_of(session_id)}/input", {"text": text})
    yield from call(request, patience, may_repeat=False)


def variables(session_id: str, limit: int, patience: Patience) -> Plan[list[models.VariableReply]]:
    path = with_query(f"{path_of(session_id)}/variables", {"limit": limit})
    return decoded(
        (yield from call(Request("GET", path), patience)), models.VariablesReply
    ).variables


def complete(
    session_id: str, code: str, cursor: int | None, patience: Patience
) -> Plan[models.CompleteReply]:
    body = {"code": code, "cursor": cursor}
    reply = yield from call(json_request("POST", f"{path_of(session_id)}/complete", body), patience)
    return decoded(reply, models.CompleteReply)


def fork(session_id: str, count: int, patience: Patience) -> Plan[models.ForkReply]:
    """Branch a session into ``count`` new ones, all from the same state."""
    request = json_request("POST", f"{path_of(session_id)}/fork", {"count": count})
    reply = yield from call(_slow(request), patience, may_repeat=False)
    return decoded(reply, models.ForkReply)


def _slow(request: Request) -> Request:
    return replace(request, silence_seconds=INTERPRETER_SECONDS)
