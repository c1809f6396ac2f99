"""Cursors of lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions import page_cursor
from execd.errors import InvalidArgument


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(min_size=1))
def test_cursor_gives_back_age_and_id(created_at: float, item_id: str) -> None:
    assert page_cursor.decode(page_cursor.encode(created_at, item_id)) == (created_at, item_id)


@pytest.mark.parametrize(
    "cursor", ["", ":", "nan:", "nan:x", "inf:x", "-inf:x", "1e999:x", "1:x", " 1.0:x", "1.0:", "x"]
)
def test_cursor_of_another_form_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        page_cursor.decode(cursor)
    assert refused.value.details == {"field": "cursor"}
