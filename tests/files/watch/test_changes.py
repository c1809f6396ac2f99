from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.files.watch.changes import MAX_CHANGES, MAX_MOVED_DIRECTORIES, Batch, Change, ChangeList


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
        # The first move may have replaced b, so b may be missed.
        ([("moved", "b", "a"), ("moved", "c", "b")], [("moved", "c", "a"), ("deleted", "b")]),
        ([("moved", "b", "a"), ("deleted", "b")], [("deleted", "b"), ("deleted", "a")]),
        ([("moved", "b", "a"), ("moved", "b", "c")], [("moved", "b", "c"), ("deleted", "a")]),
        ([("moved", "b", "a"), ("moved", "a", "b")], [("modified", "a"), ("deleted", "b")]),
        # As editors save: a was there before.
        ([("created", "b"), ("moved", "a", "b"), ("deleted", "a")], [("deleted", "a")]),
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


FILES = ["a", "b", "d/x", "d/y", "d/s/x", "e/x", "e/y", "e/s/x"]
DIRECTORIES = ["d", "e", "d/s", "e/s"]


def parents(path: str) -> list[str]:
    """The directories above, the nearest first."""
    return [] if "/" not in path else [(up := path.rpartition("/")[0]), *parents(up)]


class Folder:
    """A folder, by name and content, and the changes that a watch sees."""

    def __init__(self, files: set[str]) -> None:
        self.contents = {path: f"first {path}" for path in files}
        for path in files:
            self.contents |= {above: f"first {above}" for above in parents(path)}
        self.batch = Batch()
        self.n_contents = 0

    def new_content(self) -> str:
        self.n_contents += 1
        return f"content {self.n_contents}"

    def below(self, directory: str) -> list[str]:
        return [path for path in self.contents if path.startswith(f"{directory}/")]

    def step(self, action: str, path: str, other: str) -> None:
        """Do the action, if the action is possible."""
        is_directory = path in DIRECTORIES
        exists = path in self.contents
        has_parent = all(above in self.contents for above in parents(path)[:1])

        def report(kind: str, old: str | None = None, *, may_replace: bool = False) -> Change:
            old_path = None if old is None else old.encode()
            return Change(kind, path.encode(), is_directory, old_path, may_replace)  # type: ignore[arg-type]

        match action:
            case "create" if has_parent and not exists:
                self.contents[path] = self.new_content()
                self.batch.add(report("created"))
            case "move in" if has_parent and not self.below(path) and not is_directory:
                self.contents[path] = self.new_content()
                self.batch.add(report("created", may_replace=True))
            case "modify" if exists and not is_directory:
                self.contents[path] = self.new_content()
                self.batch.add(report("modified"))
            case "chmod" if exists:
                self.batch.add(report("chmod"))
            case "delete" if exists and not self.below(path):
                del self.contents[path]
                self.batch.add(report("deleted"))
            case "move out" if exists:
                for gone in [path, *self.below(path)]:
                    del self.contents[gone]
                change = report("deleted")
                self.batch.move_out(change) if is_directory else self.batch.add(change)
            case "move" if (
                has_parent
                and other in self.contents
                and other != path
                and other not in parents(path)
                and (other in DIRECTORIES) == is_directory
                and not self.below(path)
            ):
                for old in [other, *self.below(other)]:
                    self.contents[path + old[len(other) :]] = self.contents.pop(old)
                self.batch.add(report("moved", other))


def known_after(before: dict[str, str], told: list[Change]) -> dict[str, str]:
    """What a reader knows who knew the folder before and gets the batch."""
    moves = {
        change.old_path.decode(): change.path.decode()
        for change in told
        if change.old_path is not None
    }
    # Names that are gone, or are not what they were, with all that was below.
    replaced = {
        change.path.decode()
        for change in told
        if change.kind in ("deleted", "moved") or (change.is_directory and change.kind == "created")
    }
    known = {}
    for name, content in before.items():
        root = next((above for above in [name, *parents(name)] if above in moves), "")
        path = moves[root] + name[len(root) :] if root else name
        way = [path, *parents(path)]
        if root:
            way = way[: way.index(moves[root])]
        if replaced.isdisjoint(way):
            known[path] = content
    for change in told:
        path = change.path.decode()
        if change.kind != "deleted" and not (change.kind == "moved" and change.is_directory):
            known[path] = "to be read"  # a moved file may have been modified as well
        elif change.kind == "moved":
            known.setdefault(path, "to be read")
    return known


PATH = st.sampled_from([*FILES, *DIRECTORIES])
ACTION = st.sampled_from(["create", "move in", "modify", "chmod", "delete", "move out", "move"])


@given(st.sets(st.sampled_from(FILES)), st.lists(st.tuples(ACTION, PATH, PATH), max_size=30))
def test_reader_of_a_batch_knows_which_names_exist_and_which_content_is_new(
    files: set[str], steps: list[tuple[str, str, str]]
) -> None:
    folder = Folder(files)
    before = dict(folder.contents)
    for step in steps:
        folder.step(*step)
    told = folder.batch.take()
    known = known_after(before, told)
    assert known.keys() == folder.contents.keys()
    for path, content in known.items():
        assert content in (folder.contents[path], "to be read"), path


def test_too_many_moved_directories_are_a_flood() -> None:
    """Looking for the changes below a moved directory costs a pass over the batch."""
    batch = Batch()
    for number in range(MAX_MOVED_DIRECTORIES + 1):
        batch.add(Change("moved", b"%d" % (number + 1), True, b"%d" % number))
    assert batch.has_overflowed
    assert batch.take() == []


def test_list_has_every_change_in_order_and_equal_ones_in_a_row_once() -> None:
    changes = ChangeList()
    created, written = Change("created", b"a", False), Change("modified", b"a", False)
    for change in (created, written, written, created, written):
        changes.add(change)
    changes.move_out(Change("deleted", b"d", True))
    assert changes.take() == [created, written, created, written, Change("deleted", b"d", True)]
    assert changes.take() == []


def test_list_that_is_too_long_is_dropped_and_says_so() -> None:
    changes = ChangeList()
    for number in range(MAX_CHANGES):
        changes.add(Change("created", b"%d" % number, False))
    assert not changes.has_overflowed
    changes.add(Change("created", b"last", False))
    assert changes.has_overflowed
    assert changes.take() == []
