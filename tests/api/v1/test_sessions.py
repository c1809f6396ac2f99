"""The routes of sessions: the parts that need a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from execd.kernel.frames import FRAME_BYTES
from tests.api.conftest import JSON, request_bytes, wait_until
from tests.api.event_stream import stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire


async def test_cell_without_a_limit_of_its_own_has_code_timeout_seconds(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    wire = await serve(code_timeout_seconds=0.3, interrupt_grace_seconds=0)
    answer = await wire.request("POST", "/v1/code", b'{"code": "while True: pass"}', JSON)
    assert answer.json()["exit_reason"] == "timeout"
    body = b'{"code": "import time; time.sleep(0.6)", "timeout_seconds": 20}'
    answer = await wire.request("POST", "/v1/code", body, JSON)
    assert answer.json()["exit_reason"] == "exited"


@pytest.mark.parametrize(
    ("route", "field"),
    [("/s/execute", "code"), ("/s/input", "text"), ("", "cwd")],
)
async def test_text_that_no_message_to_the_interpreter_holds_is_400_and_names_the_field(
    serve: Callable[..., Awaitable[Wire]], route: str, field: str
) -> None:
    wire = await serve(max_body_bytes=2 * FRAME_BYTES)
    await wire.request("POST", "/v1/sessions", b'{"id": "s"}', JSON)
    if field == "text":
        code = b'{"code": "input()", "allow_input": true, "detach": true}'
        await wire.request("POST", "/v1/sessions/s/execute", code, JSON)
        [cell] = wire.live()
        await wait_until(lambda: cell.runner.open_input_request, "the cell asks for input")
    body = msgspec.json.encode({field: "x" * FRAME_BYTES})
    answer = await wire.request("POST", f"/v1/sessions{route}", body, JSON)
    assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert answer.json()["details"] == {"field": field}
    assert f"holds {FRAME_BYTES} bytes" in answer.json()["message"]
    if field != "text":
        answer = await wire.request("POST", "/v1/sessions/s/execute", b'{"code": "1"}', JSON)
        assert (answer.json()["status"], answer.json()["generation"]) == ("success", 1)


async def test_same_key_for_other_code_is_refused(own_wire: Wire) -> None:
    headers = JSON | {"Idempotency-Key": "once"}
    assert (await own_wire.request("POST", "/v1/code", b'{"code":"1"}', headers)).http_status == 200
    answer = await own_wire.request("POST", "/v1/code", b'{"code":"2"}', headers)
    assert (answer.http_status, answer.json()["code"]) == (422, "IDEMPOTENCY_MISMATCH")


async def test_stream_of_a_session_ends_when_the_daemon_goes_down(own_wire: Wire) -> None:
    await own_wire.request("POST", "/v1/sessions", b'{"id": "s"}', JSON)
    connection = await own_wire.connect()
    await connection.send(request_bytes("GET", "/v1/sessions/s/events"))
    assert b"state" in await connection.reader.readuntil(b"}\n\n")
    await own_wire.engine.drain()
    rest = await connection.reader.readuntil(b"0\r\n\r\n")
    assert b"deleted" not in rest


@pytest.mark.parametrize("route", ["/v1/code", "/v1/sessions/s/execute?create=true"])
async def test_stream_of_a_new_cell_begins_at_its_first_event_whatever_the_caller_read_last(
    own_wire: Wire, route: str
) -> None:
    """A client may send the header of an earlier stream along."""
    connection = await own_wire.connect()
    answer = await stream(connection, "POST", route, b'{"code": "1"}', Last_Event_ID="1")
    assert answer.http_status == 200
    events = await answer.rest()
    assert events[0].kind == "started"
