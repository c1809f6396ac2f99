"""EntryInfo and the events of a watched directory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.files.service import ChangeKind
from execd.files.described_tree import DescribedEntry
from execd.files.read import KINDS, Description
from execd.files.watch.changes import Change
from execd_e2b.entries import (
    FILE_TYPES,
    LETTERS,
    OwnerNames,
    entry_info,
    timestamp,
    watch_events,
)

NAMES = OwnerNames({0: "root"}, {5: "tty"})


def described(kind: str = "file", mode: int = 0o644, target: str | None = None) -> Description:
    return Description("p", kind, 5, mode, 0, 6, 1, 0.0, 0.0, "", target)  # type: ignore[arg-type]


def test_owner_without_a_name_is_the_number() -> None:
    info = entry_info("/a/b", DescribedEntry("", described(), None), NAMES)
    assert (info["owner"], info["group"], info["name"]) == ("root", "6", "b")
    assert "isSymlink" not in info


@pytest.mark.parametrize(("target", "shown"), [("c", "/a/c"), ("../c", "/c"), ("/x", "/x")])
def test_dangling_link_has_the_absolute_target(target: str, shown: str) -> None:
    entry = DescribedEntry("", described("symlink", 0o777, target), None)
    info = entry_info("/a/b", entry, NAMES)
    assert (info["type"], info["symlinkTarget"]) == ("FILE_TYPE_SYMLINK", shown)


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()) - set(FILE_TYPES)))
def test_every_other_kind_is_a_file_with_its_letter(kind: str) -> None:
    info = entry_info("/x", DescribedEntry("", described(kind, 0o600), None), NAMES)
    assert info["type"] == "FILE_TYPE_FILE"
    assert info["permissions"] == LETTERS.get(kind, "-") + "rw-------"  # type: ignore[call-overload]


def test_names_that_are_not_utf8_are_shown_with_replacements() -> None:
    info = entry_info("/a/\udcff", DescribedEntry("", described(), None), NAMES)
    assert (info["name"], info["path"]) == ("\ufffd", "/a/\ufffd")


@given(seconds=st.floats(allow_nan=False))
def test_every_time_is_a_timestamp_of_protobuf(seconds: float) -> None:
    shown = timestamp(seconds)
    assert shown.endswith("Z")
    assert "0001" <= shown[:4] <= "9999"


@pytest.mark.parametrize(
    ("change", "events"),
    [
        (Change("created", b"a", False), ["CREATE a"]),
        (Change("created", b"a", False, may_replace=True), ["CREATE a", "WRITE a"]),
        (Change("created", b"a", True, may_replace=True), ["CREATE a"]),
        (Change("modified", b"a", False), ["WRITE a"]),
        (Change("deleted", b"a", False), ["REMOVE a"]),
        (Change("chmod", b"a", False), ["CHMOD a"]),
        (Change("moved", b"b", False, b"a"), ["RENAME a", "CREATE b"]),
    ],
)
def test_change_is_told_in_the_events_of_envd(change: Change, events: list[str]) -> None:
    told = [f"{e.kind.removeprefix('EVENT_TYPE_')} {e.name}" for e in watch_events(change)]
    assert told == events


def test_every_kind_of_change_has_an_event() -> None:
    for kind in ChangeKind.__args__:
        assert list(watch_events(Change(kind, b"a", False)))
