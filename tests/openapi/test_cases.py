"""Short runs of schemathesis."""

from __future__ import annotations

import jsonschema_rs
import pytest
from hypothesis import settings

from execd.api.routes import routes
from tests import drawn, found
from tests.conformance.contract import LINES
from tests.openapi.cases import closed, run
from tools.openapi.document import document


@pytest.mark.parametrize("seed", found.seeds("openapi"))
def test_no_reply_to_an_invented_request_is_outside_the_document(seed: int) -> None:
    per_operation = max(1, settings().max_examples // 30)  # 3 in CI
    drawn.note((per_operation, seed))
    outcome = run(per_operation=per_operation, seed=seed)
    assert outcome.exit_code == 0, outcome.text
    assert outcome.log_errors == []
    assert outcome.n_cases > 700 * per_operation, outcome.text
    assert outcome.n_links > 3, outcome.text


def test_the_closed_copy_has_no_room_for_further_fields_of_replies() -> None:
    schemas = closed(document(routes()))["components"]["schemas"]
    is_open = {
        name
        for name, schema in schemas.items()
        if "properties" in schema and schema.get("additionalProperties") is not False
    }
    assert is_open == {"ExecuteRequest"}


def test_the_closed_copy_describes_the_lines_of_streams() -> None:
    found = closed(document(routes()))
    lines = found["paths"]["/v1/watch/{path}"]["get"]["responses"]["200"]["content"][LINES]
    schema = {**lines["schema"], "components": found["components"]}
    is_line = jsonschema_rs.Draft202012Validator(schema).is_valid
    overflow = {"event": "overflow", "sequence": 2, "reason": "queue"}
    assert is_line({"event": "gone", "sequence": 2})
    assert is_line(overflow)
    assert not is_line({"event": "gone", "sequence": 2, "reason": "queue"})
    assert not is_line({"event": "gone"})
    assert not is_line({**overflow, "event": "left"})
    assert not is_line({**overflow, "reason": 1})
