from __future__ import annotations

import pytest

from execd.errors import NotFound
from execd_sandboxd import process_ids
from execd_sandboxd.process_ids import ProcessIds


def test_numbers_count_from_one_and_are_never_used_again() -> None:
    known = {"a", "b", "c"}
    ids = ProcessIds(known.__contains__)
    assert [ids.add("a"), ids.add("b")] == [1, 2]
    known.discard("a")
    known.discard("b")
    assert ids.add("c") == 3
    assert ids.execution_id(3) == "c"


def test_number_of_a_forgotten_execution_is_unknown() -> None:
    known = {"a"}
    ids = ProcessIds(known.__contains__)
    number = ids.add("a")
    known.clear()
    for asked in (number, 2, 0, -1):
        with pytest.raises(NotFound, match="process_id"):
            ids.execution_id(asked)


def test_oldest_numbers_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_ids, "MAX_REMEMBERED", 2)
    ids = ProcessIds(lambda _id: True)
    for name in "abc":
        ids.add(name)
    with pytest.raises(NotFound):
        ids.execution_id(1)
    assert ids.execution_id(3) == "c"
