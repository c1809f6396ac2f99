from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.files.watch.changes import (
    MAX_CHANGES,
    MAX_LEVELS,
    MAX_MOVED_DIRECTORIES,
    Batch,
    Change,
    ChangeList,
)
from tests.profiles import examples


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


NAMES = ["a", "b", "d", "e", "d/x", "d/y", "e/x", "e/y", "d/x/z", "e/x/z"]
Step = tuple[str, str, str]


def parents(path: str) -> list[str]:
    """The directories above, the nearest first."""
    return [] if "/" not in path else [(up := path.rpartition("/")[0]), *parents(up)]


class Folder:
    """A folder, by name and content, and the changes that a watch sees."""

    def __init__(self, names: dict[str, bool]) -> None:
        """``names``: and whether the name is a directory."""
        self.is_directory: dict[str, bool] = {}
        for path in sorted(names):
            if self.has_parent(path):
                self.is_directory[path] = names[path]
        self.contents = {path: f"first {path}" for path in self.is_directory}
        self.batch = Batch()
        self.n_contents = 0

    def has_parent(self, path: str) -> bool:
        return all(self.is_directory.get(above, False) for above in parents(path)[:1])

    def below(self, directory: str) -> list[str]:
        return [path for path in self.contents if path.startswith(f"{directory}/")]

    def possible_steps(self) -> list[Step]:
        found = []
        for path in NAMES:
            exists, is_directory = path in self.contents, self.is_directory.get(path, False)
            actions = ["chmod", "move out"] if exists else []
            if self.has_parent(path):
                actions += [] if exists else ["create", "make directory"]
                actions += [] if is_directory else ["move in"]
            if exists:
                actions += [] if is_directory else ["modify"]
                actions += [] if self.below(path) else ["delete"]
            found += [(action, path, "") for action in actions]
            found += [
                ("move", path, other) for other in self.contents if self.can_take(path, other)
            ]
        return found

    def can_take(self, path: str, other: str) -> bool:
        return (
            self.has_parent(path)
            and other != path
            and other not in parents(path)
            and not self.below(path)
            and self.is_directory.get(path, self.is_directory[other]) == self.is_directory[other]
        )

    def step(self, action: str, path: str, other: str = "") -> None:
        is_directory = self.is_directory.get(other or path, action == "make directory")

        def report(kind: str, *, may_replace: bool = False) -> Change:
            old_path = other.encode() if other else None
            return Change(kind, path.encode(), is_directory, old_path, may_replace)  # type: ignore[arg-type]

        if action in ("create", "make directory", "move in", "modify"):
            self.n_contents += 1
            self.contents[path] = f"content {self.n_contents}"
            self.is_directory[path] = is_directory
        match action:
            case "create" | "make directory":
                self.batch.add(report("created"))
            case "move in":
                self.batch.add(report("created", may_replace=True))
            case "modify":
                self.batch.add(report("modified"))
            case "chmod":
                self.batch.add(report("chmod"))
            case "delete" | "move out":
                change = report("deleted")
                for gone in [path, *self.below(path)]:
                    del self.contents[gone], self.is_directory[gone]
                if action == "move out" and is_directory:
                    self.batch.move_out(change)
                else:
                    self.batch.add(change)
            case "move":
                for old in [other, *self.below(other)]:
                    new = path + old[len(other) :]
                    self.contents[new] = self.contents.pop(old)
                    self.is_directory[new] = self.is_directory.pop(old)
                self.batch.add(report("moved"))


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
    files = {change.path.decode() for change in told if not change.is_directory}
    known = {}
    for name, content in before.items():
        root = next((above for above in [name, *parents(name)] if above in moves), "")
        path = moves[root] + name[len(root) :] if root else name
        way = [path, *parents(path)]
        if root:
            way = way[: way.index(moves[root])]
        if replaced.isdisjoint(way) and files.isdisjoint(set(way) - {path}):
            known[path] = content
    for change in told:
        path = change.path.decode()
        if change.kind == "moved" and change.is_directory:
            known.setdefault(path, "to be read")
        elif change.kind != "deleted":
            known[path] = "to be read"  # a moved file may have been modified as well
    return known


def assert_reader_knows(folder: Folder, before: dict[str, str]) -> None:
    known = known_after(before, folder.batch.take())
    assert known.keys() == folder.contents.keys()
    for path, content in known.items():
        assert content in (folder.contents[path], "to be read"), path


@given(
    st.dictionaries(st.sampled_from(NAMES), st.booleans()),
    st.lists(st.integers(0, 999), min_size=2, max_size=30),
)
@examples(3)
def test_reader_of_a_batch_knows_which_names_exist_and_which_content_is_new(
    names: dict[str, bool], choices: list[int]
) -> None:
    folder = Folder(names)
    before = dict(folder.contents)
    for choice in choices:
        steps = folder.possible_steps()
        folder.step(*steps[choice % len(steps)])
    assert_reader_knows(folder, before)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        ("d/ d/y", "move d/x d/y, move e d"),
        ("d/ d/x e/ e/x", "move a d/x, move d e"),
        ("d/ d/x", "move e d, make directory d, move d/x e/x"),
        ("d/ d/x", "move e d, move a e/x, delete a"),
        ("d/ d/x e/ e/x", "move a e/x, move e d, delete a"),
        ("d/ d/x/ d/x/z e/ e/x", "move a d/x, move b a, move out e, move e d, move e/x b"),
        ("d/ d/x/ d/x/z e/", "move e/x d/x, move d e"),
        ("d/ d/x/ d/x/z", "move e d, move out e/x, make directory e/x"),
        ("d/ d/x", "move out d, create d"),
        ("d/ d/x", "move out d, create d, move a d"),
        ("d/ d/x", "move out d, create d, modify d, move a d"),
        ("d/ d/x", "move e d, move d e, move out d/x"),
        ("a b", "move d a, move a b, move b d, delete a"),
    ],
)
def test_batches_that_were_told_wrongly_once_or_nearly_are_told_right(
    names: str, steps: str
) -> None:
    folder = Folder({name.rstrip("/"): name.endswith("/") for name in names.split()})
    before = dict(folder.contents)
    for step in steps.split(", "):
        words = step.split(" ")
        if words[0] == "move" and words[1] not in ("in", "out"):
            folder.step(*words)
        else:
            folder.step(" ".join(words[:-1]), words[-1])
    assert_reader_knows(folder, before)


def test_two_directories_of_the_same_old_name_are_told_of() -> None:
    """The kernel's queue was full, and the news of a second directory of this name was lost."""
    batch = Batch()
    for path in (b"e", b"f"):
        batch.add(Change("moved", path, True, b"d"))
    for path in (b"e", b"f"):
        batch.add(Change("deleted", path, True))
    assert {(change.kind, change.path) for change in batch.take()} == {
        ("deleted", name) for name in (b"d", b"e", b"f")
    }


def test_a_move_below_very_many_directories_is_a_flood() -> None:
    """Each level above an old name is looked up."""
    batch = Batch()
    batch.add(Change("moved", b"b", False, b"d/" * MAX_LEVELS + b"a"))
    assert not batch.has_overflowed
    batch.add(Change("moved", b"c", False, b"d/" * (MAX_LEVELS + 1) + b"a"))
    assert batch.has_overflowed


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
