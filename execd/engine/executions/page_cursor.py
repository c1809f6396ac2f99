"""Cursors of lists: the age and the id of a page's last item. Pure."""

from __future__ import annotations

import math

from execd.errors import InvalidArgument


def encode(created_at: float, item_id: str) -> str:
    """Return the cursor of the page after this item. ``created_at``: seconds since 1970."""
    assert math.isfinite(created_at)
    return f"{created_at!r}:{item_id}"


def decode(cursor: str) -> tuple[float, str]:
    """Return age and id of a page's last item. Raises InvalidArgument for a cursor of another form.

    NaN and the infinities are refused: every comparison with NaN is false, so the page would be
    empty, and the caller would take the list for finished.
    """
    created_at, _, item_id = cursor.partition(":")
    try:
        seconds = float(created_at)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and repr(seconds) == created_at and item_id):
        raise InvalidArgument(
            "cursor: not the next_cursor of a page: give back the string as it came", field="cursor"
        )
    return seconds, item_id
