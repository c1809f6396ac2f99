"""Plans of commands and cells: run, follow, wait, input, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from execd_client import models
from execd_client.address import segment, with_query
from execd_client.calls import call, decoded, json_request, opened, understood
from execd_client.effects import Close, Cut, Emit, NextEvent, Request, Sleep
from execd_client.errors import Conflict, Gone, InvalidArgument, NotFound
from execd_client.events import Assembler, Event
from execd_client.results import decode_json, result_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd_client.calls import Patience
    from execd_client.effects import Opened, Plan, Reply
    from execd_client.results import Result

EXECUTIONS = "/v1/executions"
SSE = "text/event-stream"
QUEUED_SECONDS = 0.02
"""Between two looks at a program that waits for its place."""
WAIT_SECONDS = 20.0
"""Below the 25 s of execd and the 30 s of routers."""


def path_of(execution_id: str) -> str:
    return f"{EXECUTIONS}/{segment(execution_id)}"


def run(path: str, body: dict[str, Any], patience: Patience) -> Plan[Result]:
    """Run a command or a cell, and wait for the result. The body has an ``id``, so each repeated
    request finds the first run."""
    request = json_request("POST", with_query(path, {"encoding": "base64"}), body)
    return _result((yield from call(request, patience)))


def run_with_events(
    path: str, body: dict[str, Any], patience: Patience, on_event: Callable[[Event], None]
) -> Plan[Result]:
    """``run``, with a function that gets each event at once."""
    found: Result | None = None
    for_events = follow(path, body, patience)
    answer: Any = None
    while True:
        try:
            effect = for_events.send(answer)
        except StopIteration:
            break
        if not isinstance(effect, Emit):
            answer = yield from _passed_on(for_events, effect)
            continue
        answer = None
        event: Event = effect.value
        on_event(event)
        if event.kind == "exited":
            found = event.result
    if found is None:
        found = yield from get(str(body["id"]), patience)
    return found


def _passed_on(inner: Plan[None], effect: Any) -> Plan[Any]:
    """Carry out an effect of the inner plan. A Cut goes to the inner plan, whose next effect is
    carried out then."""
    while True:
        try:
            return (yield effect)
        except Cut as cut:
            effect = inner.throw(cut)


def follow(
    path: str,
    body: dict[str, Any],
    patience: Patience,
    *,
    has_started: bool = False,
    after: int = 0,
) -> Plan[None]:
    """Emit the events of a command or a cell, to ``exited``, over as many connections as needed.

    ``has_started``: the execution ``body["id"]`` runs already, and ``path`` is not asked.
    ``after``: the number of the last event that the caller has.
    """
    events = path_of(str(body["id"])) + "/events"
    assembler = Assembler(after)
    in_parts, knows_parts = False, True
    while True:
        before = assembler.has_begun, assembler.progress
        if has_started or assembler.has_begun:
            query: dict[str, str | int | bool | None] = {"encoding": "base64"}
            if in_parts:
                query |= {"parts": True, "part_offset": assembler.progress[1]}
            request = Request("GET", with_query(events, query))
        else:
            request = json_request("POST", with_query(path, {"encoding": "base64"}), body)
        request = request.with_headers(Accept=SSE)
        if assembler.last_sequence:
            request = request.with_headers(Last_Event_ID=str(assembler.last_sequence))
        try:
            stream = yield from opened(request, patience, SSE)
        except Gone as gone:
            if not assembler.last_sequence:
                raise
            yield Emit(assembler.restart(gone.message))
            continue
        except InvalidArgument:
            if not in_parts:
                raise
            in_parts, knows_parts = False, False  # an older execd
            continue
        if (yield from _read(stream, assembler, patience)):
            return
        # The connection may have ended within a long event.
        is_stuck = before == (assembler.has_begun, assembler.progress)
        in_parts = knows_parts and (in_parts or is_stuck)


def _read(stream: Opened, assembler: Assembler, patience: Patience) -> Plan[bool]:
    """Emit the events of one connection. True: there is nothing more to come."""
    if stream.http_status == 204:
        return True
    try:
        while True:
            said = yield NextEvent(stream)
            if said is None:
                raise Cut("the stream ended before the event 'exited'", was_sent=True)
            patience.alive()
            for event in assembler.take(*said):
                yield Emit(event)
                if event.kind == "exited":
                    yield Close(stream)
                    return True
    except Cut as cut:
        yield Close(stream)
        yield from patience.after_cut(cut)
    return False


def start(path: str, body: dict[str, Any], patience: Patience) -> Plan[Result]:
    """Start a command or a cell that goes on without readers."""
    return (yield from run(path, {**body, "detach": True}, patience))


def get(execution_id: str, patience: Patience, wait_seconds: float = 0.0) -> Plan[Result]:
    """The execution as far as it is, after ``wait_seconds`` or at the end."""
    path = with_query(path_of(execution_id), {"encoding": "base64", "wait_seconds": wait_seconds})
    return _result((yield from call(Request("GET", path), patience)))


def wait(execution_id: str, patience: Patience) -> Plan[Result]:
    """The execution at its end."""
    while True:
        found = yield from get(execution_id, patience, WAIT_SECONDS)
        if found.state == "EXITED":
            return found
        patience.alive()


def kill(execution_id: str, grace_seconds: float | None, patience: Patience) -> Plan[Result]:
    """End all processes of the execution, and keep the record."""
    path = with_query(f"{path_of(execution_id)}/kill", {"encoding": "base64"})
    body = {"grace_seconds": grace_seconds}
    return _result((yield from call(json_request("POST", path, body), patience)))


def signal(execution_id: str, name: str | int, patience: Patience) -> Plan[None]:
    request = json_request("POST", f"{path_of(execution_id)}/signal", {"signal": name})
    yield from _once_started(execution_id, request, patience, may_repeat=False)


def stdin(execution_id: str, data: bytes, eof: bool, patience: Patience) -> Plan[int]:
    """The number of bytes that the program, or its pipe, has taken."""
    path = with_query(f"{path_of(execution_id)}/stdin", {"eof": eof})
    octets = {"Content-Type": "application/octet-stream"}
    request = Request("POST", path, octets, data, silence_seconds=300.0)
    reply = yield from _once_started(execution_id, request, patience, may_repeat=not data)
    return decoded(reply, models.WrittenReply).written_bytes


def resize(execution_id: str, cols: int, rows: int, patience: Patience) -> Plan[None]:
    body = {"cols": cols, "rows": rows}
    request = json_request("POST", f"{path_of(execution_id)}/resize", body)
    yield from _once_started(execution_id, request, patience, may_repeat=True)


def _once_started(
    execution_id: str, request: Request, patience: Patience, *, may_repeat: bool
) -> Plan[Reply]:
    """The reply to a request that a program must have started for. A program that still waits for
    its place is waited for. A program may start between the refusal and the look at its state, so
    a refusal counts only if the program ran before the request."""
    has_run = False
    while True:
        try:
            return (yield from call(request, patience, may_repeat=may_repeat))
        except Conflict:
            state = (yield from get(execution_id, patience)).state
            if has_run or state == "EXITED":
                raise
            has_run = state == "RUNNING"
            yield Sleep(QUEUED_SECONDS)
            patience.alive()


def forget(execution_id: str, patience: Patience) -> Plan[None]:
    """End the execution, and forget the record. An execution that is gone is no error."""
    try:
        yield from call(Request("DELETE", path_of(execution_id)), patience)
    except NotFound:
        return


def output(
    execution_id: str, stream: str, start: int, size: int | None, patience: Patience
) -> Plan[bytes]:
    """The bytes of a stream from ``start`` on, as far as the stream is, but at most ``size``."""
    end = "" if size is None else start + size - 1
    headers = {"Range": f"bytes={start}-{end}"} if start or size is not None else {}
    reply = yield from call(Request("GET", f"{path_of(execution_id)}/{stream}", headers), patience)
    return bytes(reply.body)


def list_page(
    state: str | None, limit: int, cursor: str | None, patience: Patience
) -> Plan[models.ExecutionsReply]:
    path = with_query(EXECUTIONS, {"state": state, "limit": limit, "cursor": cursor})
    return decoded((yield from call(Request("GET", path), patience)), models.ExecutionsReply)


def list_all(state: str | None, patience: Patience) -> Plan[list[models.ExecutionItem]]:
    found: list[models.ExecutionItem] = []
    cursor: str | None = None
    while True:
        page = yield from list_page(state, 1000, cursor, patience)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def _result(reply: Reply) -> Result:
    return understood(reply, lambda body: result_of(decode_json(body)))
