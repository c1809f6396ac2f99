from __future__ import annotations

import pytest

from execd.api.wire.tracing import trace_environment, trace_id

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
