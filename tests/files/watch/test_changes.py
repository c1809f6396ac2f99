from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.files.watch.changes import MAX_CHANGES, Batch, Change

KINDS = ["created", "modified", "deleted", "chmod", "moved"]


def summed(*changes: tuple[str, ...]) -> list[tuple[str, ...]]:
    batch = Batch()
    for kind, path, *old in changes:
        batch.add(Change(kind, path.encode(), False, old[0].encode() if old else None))  # type: ignore[arg-type]
    return [
        (
            change.kind,
            change.path.decode(),
            *([] if change.old_path is None else [change.old_path.decode()]),
        )
        for change in batch.take()
    ]


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        ([("created", "a"), ("modified", "a"), ("chmod", "a")], [("created", "a")]),
        ([("created", "a"), ("deleted", "a")], []),
        ([("modified", "a"), ("modified", "a")], [("modified", "a")]),
        ([("modified", "a"), ("deleted", "a")], [("deleted", "a")]),
        ([("deleted", "a"), ("created", "a")], [("modified", "a")]),
        ([("chmod", "a"), ("modified", "a")], [("modified", "a")]),
        ([("modified", "a"), ("chmod", "a")], [("modified", "a")]),
        ([("created", "a"), ("moved", "b", "a")], [("created", "b")]),
        ([("moved", "b", "a"), ("modified", "b")], [("moved", "b", "a")]),
        ([("moved", "b", "a"), ("moved", "c", "b")], [("moved", "c", "a")]),
        ([("moved", "b", "a"), ("deleted", "b")], [("deleted", "b")]),
        (
            [("modified", "b"), ("modified", "a"), ("modified", "b")],
            [("modified", "a"), ("modified", "b")],
        ),
    ],
)
def test_a_name_has_one_change_the_sum_of_what_happened(
    happened: list[tuple[str, ...]], told: list[tuple[str, ...]]
) -> None:
    assert summed(*happened) == told


def test_a_flood_is_dropped_and_said_so() -> None:
    batch = Batch()
    for number in range(MAX_CHANGES + 1):
        batch.add(Change("created", b"%d" % number, False))
    assert batch.has_overflowed
    assert batch.take() == []


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("abc"), st.sampled_from("abc"))))
def test_any_course_of_events_is_told_with_each_name_once(
    happened: list[tuple[str, str, str]],
) -> None:
    told = summed(
        *(
            (kind, path, old) if kind == "moved" else (kind, path)
            for kind, path, old in happened
            if kind != "moved" or path != old
        )
    )
    assert len({change[1] for change in told}) == len(told)
