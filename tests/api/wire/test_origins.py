from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tests.api.conftest import JSON

if TYPE_CHECKING:
    import pytest

    from tests.api.conftest import Wire


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
