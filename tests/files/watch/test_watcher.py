from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.files import tree_walk as walking
from execd.files.names import Names, next_names
from execd.files.watch.watcher import Watch, watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from execd.files.root import Root


@pytest.fixture
def watched(root: Root, base: Path) -> Iterator[Watch]:
    made = watch(root, ".", recursive=True)
    yield made
    made.close()


def changed_paths(watched: Watch) -> set[bytes]:
    news = watched.read()
    assert news.missing is None
    return {change.path for change in news.changes}


def test_what_is_made_in_a_new_directory_while_it_is_looked_at_is_told(
    watched: Watch, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(directory: int, after: bytes, max_bytes: int) -> Names:
        found = next_names(directory, after, max_bytes)
        if not found.n_bytes:
            os.mkdir("late", dir_fd=directory)  # after the names were read
        return found

    (base / "a/b").mkdir(parents=True)
    monkeypatch.setattr(walking, "next_names", names)
    first = changed_paths(watched)
    monkeypatch.undo()
    (base / "a/b/late/x").touch()
    assert first == {b"a", b"a/b"}
    assert changed_paths(watched) == {b"a/b/late", b"a/b/late/x"}


@pytest.mark.linux_only("the queue has no bound in gVisor")
def test_an_overflow_is_told_and_a_directory_made_meanwhile_is_watched(
    watched: Watch, base: Path
) -> None:
    (base / "a").touch()
    (base / "b").touch()
    changed_paths(watched)
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        max_events = int(file.read())
    # The kernel sums up equal neighbours, so the two names take turns.
    for number in range(max_events + 1):
        os.chmod(base / "ab"[number % 2], 0o600)
    (base / "late").mkdir()
    news = watched.read()
    assert news.missing == "queue"
    assert {change.path for change in news.changes} == {b"a", b"b"}
    (base / "late/x").touch()
    assert changed_paths(watched) == {b"late/x"}


def test_watch_without_sums_tells_each_change(root: Root, base: Path) -> None:
    watched = watch(root, ".", sums=False)
    try:
        (base / "a").write_text("x")
        (base / "a").unlink()
        (base / "b").touch()
        told = [(change.kind, change.path) for change in watched.read().changes]
    finally:
        watched.close()
    assert told[:3] == [("created", b"a"), ("modified", b"a"), ("deleted", b"a")]
    assert ("created", b"b") in told
    assert ("modified", b"b") not in told, "closing a file that was opened for writing is no write"
