from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.files import tree_walk as walking
from execd.files.names import Names, next_names
from execd.files.root import Root
from execd.files.watch.watcher import News, Watch, watch
from tests.files.conftest import unprivileged
from tests.gvisor import is_gvisor
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_a_directory_that_moves_as_soon_as_it_is_made_is_watched(
    watched: Watch, base: Path
) -> None:
    """A tree that is made under a temporary name, as by git and by package managers."""
    (base / "temporary/in").mkdir(parents=True)
    (base / "temporary/in/x").touch()
    (base / "temporary").rename(base / "final")
    assert told(watched) == {("created", name) for name in (b"final", b"final/in", b"final/in/x")}
    (base / "final/in/new").mkdir()
    (base / "final").rename(base / "last")
    assert ("created", b"last/in/new") in told(watched)
    (base / "last/in/new/y").touch()
    assert changed_paths(watched) == {b"last/in/new/y"}


PATHS = st.sampled_from(("a", "b", "a/a", "a/b", "b/a", "a/b/a"))
STEPS = st.lists(
    st.tuples(st.sampled_from(("make", "move", "move", "remove", "look")), PATHS, PATHS),
    min_size=3,
    max_size=12,
)


@examples(4)
@given(STEPS)
def test_every_directory_is_watched_under_its_name(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    base = tmp_path_factory.mktemp("base")
    watched = watch(Root(str(base)), ".", recursive=True)
    try:
        for action, name, other in steps:
            with contextlib.suppress(OSError):
                if action == "make":
                    (base / name).mkdir(parents=True)
                elif action == "move":
                    (base / name).rename(base / other)
                elif action == "remove":
                    shutil.rmtree(base / name)
            if action == "look":
                changed_paths(watched)
        changed_paths(watched)
        files = [Path(parent, "file") for parent, _, _ in os.walk(base)]
        for file in files:
            file.touch()
        assert changed_paths(watched) == {os.fsencode(file.relative_to(base)) for file in files}
    finally:
        watched.close()


def test_a_directory_that_cannot_be_read_costs_its_own_changes_only(root: Root, base: Path) -> None:
    def read_beside_a_closed_directory() -> News:
        watched = watch(root, ".", recursive=True)
        try:
            (base / "closed").mkdir(mode=0)
            (base / "open").mkdir()
            return watched.read()
        finally:
            watched.close()

    news = unprivileged(read_beside_a_closed_directory)
    assert news.missing == "directories"
    assert [change.path for change in news.changes] == [b"closed", b"open"]


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


def exchange(first: Path, second: Path) -> None:
    """renameat2 with RENAME_EXCHANGE, which a gVisor of 2024 refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd, rename_exchange = -100, 2
    paths = os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange
    if libc.renameat2(at_fdcwd, *paths) == 0:
        return
    error = ctypes.get_errno()
    if is_gvisor() and error == errno.EINVAL:
        pytest.skip("this gVisor has no RENAME_EXCHANGE")
    raise OSError(error, os.strerror(error))


def told(watched: Watch) -> set[tuple[str, bytes]]:
    news = watched.read()
    assert news.missing is None
    return {(change.kind, change.path) for change in news.changes}


def test_exchanged_directories_are_told_as_new_and_watched_on(watched: Watch, base: Path) -> None:
    for name in ("a/in", "d/b/in"):
        (base / name).mkdir(parents=True)
        (base / name / name[0]).touch()
    changed_paths(watched)
    n_directories = watched.n_directories
    exchange(base / "a", base / "d/b")
    assert told(watched) == {
        ("created", b"a"),
        ("created", b"a/in"),
        ("created", b"a/in/d"),
        ("created", b"d/b"),
        ("created", b"d/b/in"),
        ("created", b"d/b/in/a"),
    }
    for name in ("a/new", "a/in/new", "d/b/new", "d/b/in/new"):
        (base / name).touch()
    assert changed_paths(watched) == {b"a/new", b"a/in/new", b"d/b/new", b"d/b/in/new"}
    assert watched.n_directories == n_directories


def test_exchanged_directories_that_move_on_with_their_parent_are_watched(
    watched: Watch, base: Path
) -> None:
    for name in ("a/one/x", "a/two/y"):
        (base / name).mkdir(parents=True)
    changed_paths(watched)
    exchange(base / "a/one", base / "a/two")
    (base / "a").rename(base / "b")
    watched.read()
    for name in ("b/one/y/new", "b/two/x/new"):
        (base / name).touch()
    assert changed_paths(watched) == {b"b/one/y/new", b"b/two/x/new"}


def test_exchanged_files_are_modified_and_none_is_deleted(watched: Watch, base: Path) -> None:
    (base / "a").write_text("1")
    (base / "b").write_text("2")
    (base / "d").mkdir()
    changed_paths(watched)
    exchange(base / "a", base / "b")
    assert told(watched) == {("modified", b"a"), ("modified", b"b")}
    exchange(base / "a", base / "d")
    assert told(watched) == {("created", b"a"), ("modified", b"d")}
    (base / "a/x").touch()
    assert changed_paths(watched) == {b"a/x"}


def test_a_directory_that_leaves_after_an_exchange_is_told_by_its_last_name(
    watched: Watch, base: Path
) -> None:
    """A deployment: the new tree takes the old tree's name, and the old tree is removed."""
    for name in ("live", "next"):
        (base / name).mkdir()
        (base / name / name).touch()
    changed_paths(watched)
    exchange(base / "next", base / "live")
    shutil.rmtree(base / "next")
    changes = told(watched)
    assert {("created", b"live"), ("created", b"live/next"), ("deleted", b"next")} <= changes
    assert ("deleted", b"live") not in changes
    (base / "live/x").touch()
    assert changed_paths(watched) == {b"live/x"}


def test_a_directory_that_moves_there_and_back_is_watched_on(watched: Watch, base: Path) -> None:
    (base / "a/in").mkdir(parents=True)
    changed_paths(watched)
    (base / "a").rename(base / "b")
    (base / "b").rename(base / "a")
    assert ("modified", b"a") in told(watched)
    (base / "a/in/x").touch()
    assert changed_paths(watched) == {b"a/in/x"}
