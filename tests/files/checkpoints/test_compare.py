"""The kinds of changes between two manifests."""

from __future__ import annotations

from typing import Any

import pytest

from execd.files.checkpoints.compare import compare
from execd.files.checkpoints.entries import Manifest, TreeEntry

FILE = TreeEntry(b"f", "file", 0o644, 1, 1, 3, 10, 20, 5, 6, 1, digest=b"d")


def changed(**fields: Any) -> TreeEntry:
    facts = {name: getattr(FILE, name) for name in FILE.__struct_fields__}
    return TreeEntry(**{**facts, **fields})


def kinds(
    old: list[TreeEntry], new: list[TreeEntry], *, setter: int | None = None
) -> list[tuple[bytes, str]]:
    manifests = Manifest("/r", True, old), Manifest("/r", True, new)
    return [(change.path, change.kind) for change in compare(*manifests, setter=setter)]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"device": 9, "inode": 9, "changed_ns": 9}, None),
        ({"modified_ns": 9}, None),
        ({"mode": 0o600}, "mode"),
        ({"mode": 0o600, "digest": b"e"}, "modified"),
        ({"digest": b"e"}, "modified"),
        ({"digest": b""}, "modified"),
        ({"uid": 2}, "modified"),
        ({"gid": 2}, "modified"),
        ({"attributes": {b"user.x": b""}}, "modified"),
        ({"n_links": 2}, "modified"),
        ({"trouble": "unreadable"}, "modified"),
        ({"type": "fifo"}, "type"),
    ],
)
def test_a_change_has_a_kind(fields: dict[str, Any], kind: str | None) -> None:
    expected = [] if kind is None else [(b"f", kind)]
    assert kinds([FILE], [changed(**fields)]) == expected
    assert kinds([changed(**fields)], [FILE]) == expected


def test_a_time_counts_where_it_is_asked_for() -> None:
    assert kinds([FILE], [changed(modified_ns=9)], setter=0) == [(b"f", "modified")]


def test_the_time_of_a_directory_counts_for_its_owner_and_for_root() -> None:
    was, now = changed(type="directory"), changed(type="directory", modified_ns=9)
    assert kinds([was], [now], setter=2) == []
    for setter in (0, FILE.uid):
        assert kinds([was], [now], setter=setter) == [(b"f", "modified")]


def test_a_trouble_is_never_unchanged() -> None:
    entry = changed(trouble="unreadable")
    assert kinds([entry], [entry]) == [(b"f", "modified")]


def test_a_file_that_nobody_reads_is_judged_by_ctime() -> None:
    unread = changed(digest=b"")
    assert kinds([unread], [changed(digest=b"", trouble="Permission denied")]) == []
    assert kinds([unread], [changed(digest=b"", changed_ns=9)]) == [(b"f", "modified")]


def test_hard_links_to_another_file_are_a_change() -> None:
    a, b, c = (changed(path=name, n_links=2) for name in (b"a", b"b", b"c"))
    other = changed(path=b"d", n_links=2, inode=7)
    later = changed(path=b"d", n_links=2, inode=7, changed_ns=21)
    old = [a, b, changed(path=b"c", n_links=2, inode=7), other]
    new = [a, changed(path=b"b", n_links=2, inode=7), c, later]
    assert kinds(old, new) == [(b"b", "modified"), (b"c", "modified"), (b"d", "modified")]


def test_a_file_with_a_name_outside_of_the_root_has_its_inode() -> None:
    was, other = changed(n_links=2), changed(n_links=2, inode=7)
    assert kinds([was], [other]) == [(b"f", "modified")]
    assert kinds([was], [changed(n_links=2, device=9, changed_ns=9)]) == []
    inside = [changed(path=name, n_links=2) for name in (b"a", b"b")]
    restored = [changed(path=name, n_links=2, inode=7) for name in (b"a", b"b")]
    assert kinds(inside, restored) == []


def test_changes_come_in_the_order_of_a_walk() -> None:
    old = [changed(path=name) for name in (b"a-b", b"z")]
    new = [changed(path=name) for name in (b"a/b", b"a", b"b")]
    assert kinds(old, new) == [
        (b"a", "created"),
        (b"a/b", "created"),
        (b"a-b", "deleted"),
        (b"b", "created"),
        (b"z", "deleted"),
    ]
