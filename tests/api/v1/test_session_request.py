from __future__ import annotations

import json
from typing import Any

import pytest

from execd.api.v1 import session_request
from execd.api.v1.session_request import CELL, CODE, CellRequest, code_payload, parse, payload
from execd.api.wire.fields import parse_json
from execd.errors import InvalidArgument


def asked(**fields: Any) -> CellRequest:
    return parse(json.dumps({"code": "1", **fields}).encode(), CELL)


@pytest.mark.parametrize(
    "spelled",
    [
        {"on_busy": "queue"},
        {"allow_input": False},
        {"detach": False},
        {"detach": None},
        {"language": "python"},
        {"execution_id": None},
        {"env": {}},
        {"env": None},
    ],
)
def test_what_is_meant_by_default_may_be_spelled_out(spelled: dict[str, Any]) -> None:
    assert payload(asked(**spelled), "s") == payload(asked(), "s")
    code = [parse(json.dumps({"code": "1", **some}).encode(), CODE) for some in (spelled, {})]
    assert code_payload(code[0]) == code_payload(code[1])


def test_execution_id_is_another_word_for_id() -> None:
    assert asked(execution_id="x") == asked(id="x") == asked(id="x", execution_id="x")
    with pytest.raises(InvalidArgument, match=r"^execution_id: another word for id"):
        asked(id="x", execution_id="y")


@pytest.mark.parametrize(
    "other",
    [
        {"on_busy": "reject"},
        {"allow_input": True},
        {"detach": True},
        {"expect_generation": 0},
        {"env": {"A": ""}},
    ],
)
def test_what_means_something_else_is_another_request(other: dict[str, Any]) -> None:
    assert payload(asked(**other), "s") != payload(asked(), "s")
    assert payload(asked(), "s") != payload(asked(), "t")


@pytest.mark.parametrize("name", ["SESSION", "CELL", "CODE", "FORK", "COMPLETE"])
def test_a_field_that_no_request_has_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="nothing: unknown field"):
        parse_json(b'{"nothing": 1}', getattr(session_request, name))
