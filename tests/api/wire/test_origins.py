from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from execd.api.wire.origins import trace_environment, trace_id
from tests.api.conftest import JSON

if TYPE_CHECKING:
    from tests.api.conftest import Wire

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name.startswith("execd.")]


async def test_the_line_of_the_request_that_starts_an_execution_tells_the_end_and_no_other(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "execd")
    headers = JSON | {"Idempotency-Key": "once"}
    for _ in range(2):
        answer = await wire.request("POST", "/v1/executions", b'{"command": "exit 3"}', headers)
        assert answer.http_status == 200
    starting, repeated = lines(caplog)
    assert (starting["message"], starting["exit_code"]) == ("request", 3)
    assert (repeated["message"], "exit_code" in repeated) == ("request", False)


@pytest.mark.parametrize("header", [PARENT, f" {PARENT} ", f"{PARENT}-later"])
def test_trace_context_is_passed_on(header: str) -> None:
    assert trace_environment(header) == {"TRACEPARENT": header.strip()}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "x",
        "00-ABC-1-01",
        PARENT.upper(),
        f"{PARENT}x",
        f"{PARENT}\n$(x)",
        f"{PARENT} $(x)",
    ],
)
def test_anything_else_is_not(header: str | None) -> None:
    assert trace_environment(header) == {}


def test_the_log_gets_the_trace_id_of_a_valid_header_only() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert trace_id(f" 00-{trace}-b7ad6b7169203331-01 ") == trace
    assert trace_id(f"00-{trace}-b7ad6b7169203331") is None
    assert trace_id(None) is None
