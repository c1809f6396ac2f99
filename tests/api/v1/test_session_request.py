from __future__ import annotations

import json
from typing import Any

import pytest

from execd.api.v1.session_request import CELL, CellRequest, payload
from execd.api.wire.fields import parse_json


def asked(**fields: Any) -> CellRequest:
    return parse_json(json.dumps({"code": "1", **fields}).encode(), CELL)


@pytest.mark.parametrize(
    "spelled", [{"on_busy": "queue"}, {"allow_input": False}, {"detach": False}, {"detach": None}]
)
def test_what_is_meant_by_default_may_be_spelled_out(spelled: dict[str, Any]) -> None:
    assert payload(asked(**spelled), "s") == payload(asked(), "s")


@pytest.mark.parametrize(
    "other",
    [{"on_busy": "reject"}, {"allow_input": True}, {"detach": True}, {"expect_generation": 0}],
)
def test_what_means_something_else_is_another_request(other: dict[str, Any]) -> None:
    assert payload(asked(**other), "s") != payload(asked(), "s")
    assert payload(asked(), "s") != payload(asked(), "t")
