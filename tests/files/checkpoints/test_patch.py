"""A patch of changes: ``git apply`` on a copy of the start makes what git knows of the end."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import Conflict
from execd.files.checkpoints.patch import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    MAX_TEXT_LINES,
    patch,
    quoted,
)
from tests.files.checkpoints.trees import (
    apply,
    as_git_sees,
    changes_between,
    comments,
    described,
    patch_between,
    sources,
)
from tests.profiles import examples

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.sampled_from(
    [
        *(b"a", b"b", b"c d", b'q"u', b"n\nl", b"\xff\xfe", b"t\tb", b"back\\slash", "é".encode()),
        *(
            b" x",
            b"x ",
            b"-d",
            b"...",
            b".git",
            b".Git. ",
            b".gitmodules",
            b"git~1",
            b"a\\.git",
            b"#",
        ),
    ]
)
PIECES = st.sampled_from([b"", b"one\n", b"two\n", b"three\r\n", b"\n", b"\xff\n", b"end", b"\0"])
CONTENTS = st.lists(PIECES, max_size=12).map(b"".join)
MODES = st.sampled_from([0o644, 0o755, 0o600, 0o4711])
FILES = st.tuples(st.just("file"), CONTENTS, MODES)
LINKS = st.tuples(st.just("link"), st.sampled_from([b"a", b"../b", b"/etc/passwd", b"n\nl", b"."]))
LEAVES = FILES | FILES | LINKS | st.just(("fifo",))
TREES = st.dictionaries(
    # git itself refuses to work beside a ".git" that is no repository.
    NAMES.filter(lambda name: name != b".git"),
    st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=4)),
    max_size=5,
)
MAY_DIFFER = ("git refuses", "git knows no fifo", "git cannot remove")


def make(folder: bytes, tree: dict[bytes, Any]) -> None:
    os.mkdir(folder)
    for name, what in tree.items():
        path = os.path.join(folder, name)
        if isinstance(what, dict):
            make(path, what)
        elif what[0] == "file":
            with open(path, "xb") as file:
                file.write(what[1])
            os.chmod(path, what[2])
        elif what[0] == "link":
            os.symlink(what[1], path)
        else:
            os.mkfifo(path)


def copied(start: Path) -> Path:
    copy = start.with_name("copy")
    subprocess.run(["cp", "-a", start, copy], check=True)
    return copy


@given(old=TREES, new=TREES)
@examples(4)
def test_patch_of_any_change_is_applied_and_names_what_it_leaves_out(
    old: dict[bytes, Any], new: dict[bytes, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    start, end = folder / "start", folder / "end"
    make(os.fsencode(start), old)
    make(os.fsencode(end), new)
    content = patch_between(start, end)
    copy = copied(start)
    apply(content, copy)
    found, wanted = as_git_sees(described(copy)), as_git_sees(described(end))
    left_out = {path for path, why in comments(content).items() if why.startswith(MAY_DIFFER)}
    differing = {
        path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path)
    }
    assert differing <= left_out
    shutil.rmtree(folder)


def test_patch_reversed_leads_back_to_the_start(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    make(os.fsencode(start), {b"a": ("file", b"one\n", 0o644), b"b": ("file", b"\0" * 99, 0o755)})
    make(os.fsencode(end), {b"a": ("file", b"two", 0o755), b"b": ("file", b"\0\1", 0o644)})
    content = patch_between(start, end)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", end, copy], check=True)
    apply(content, copy, "--reverse")
    assert as_git_sees(described(copy)) == as_git_sees(described(start))


def test_patch_has_text_up_to_its_bound_and_binaries_up_to_theirs(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    text = b"a line of text that is longer than others\n" * (MAX_TEXT_BYTES // 42)
    start.mkdir()
    (start / "log").write_bytes(text)
    (start / "gone").write_bytes(bytes(MAX_TEXT_BYTES + 1))
    (start / "shrunk").write_bytes(text * 2)
    (start / "program").write_bytes(bytes(MAX_TEXT_BYTES + 1))
    end.mkdir()
    (end / "log").write_bytes(text.replace(b"text", b"TEXT", 1))
    (end / "shrunk").write_bytes(b"short\n")
    (end / "binary").write_bytes(os.urandom(MAX_BINARY_BYTES))
    (end / "program").write_bytes(bytes(MAX_TEXT_BYTES + 1))
    (end / "program").chmod(0o755)
    content = patch_between(start, end)
    assert comments(content) == {}
    assert len(content) < 2 * MAX_BINARY_BYTES
    copy = copied(start)
    apply(content, copy)
    assert as_git_sees(described(copy)) == as_git_sees(described(end))

    (end / "binary").write_bytes(bytes(MAX_BINARY_BYTES + 1))
    (end / "log").write_bytes(text * 2)
    (end / "lines").write_bytes(b"lines\n" * (MAX_TEXT_LINES + 1))
    assert comments(patch_between(start, end)) == {
        b"binary": f"{MAX_BINARY_BYTES + 1} bytes are too many for a patch",
        b"lines": f"{6 * (MAX_TEXT_LINES + 1)} bytes are too many for a patch",
        b"log": f"{2 * len(text)} bytes are too many for a patch",
    }


def test_patch_names_what_git_does_not_know_before_the_first_diff(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    make(
        os.fsencode(start),
        {
            b"mode": ("file", b"", 0o644),
            b"folder": {b"inner": {}},
            b"pipe": ("fifo",),
            b"old": {},
            b"full": {b"file": ("file", b"x", 0o644)},
        },
    )
    make(
        os.fsencode(end),
        {
            b"mode": ("file", b"", 0o600),
            b"folder": ("file", b"in the place of a folder with a folder\n", 0o644),
            b"pipe": {b"file": ("file", b"below a pipe", 0o644)},
            b"new\n": {},
            b"socket": ("fifo",),
            b"full": {b"file": ("file", b"y", 0o644)},
        },
    )
    content = patch_between(start, end)
    assert content.partition(b"diff --git")[0].decode() == (
        "# type folder: git cannot remove what was in its place\n"
        "# deleted folder/inner: git knows no empty folder\n"
        "# mode mode: git does not keep the mode 0600\n"
        '# created "new\\012": git knows no empty folder\n'
        "# deleted old: git knows no empty folder\n"
        "# type pipe: git knows no fifo\n"
        "# created pipe/file: git cannot remove what was in its place\n"
        "# created socket: git knows no fifo\n"
    )
    copy = copied(start)
    apply(content, copy)
    assert (copy / "full/file").read_bytes() == b"y"


def test_patch_of_watched_directories_is_comments(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    make(os.fsencode(start), {})
    make(os.fsencode(end), {b"passwd": ("file", b"x", 0o644)})
    changes = changes_between(described(start), described(end), "/etc")
    assert b"".join(patch(changes, {"/app": b""}, sources(start, end))) == (
        b"# created /etc/passwd: the checkpoint has no content of a watched directory\n"
    )


def test_patch_of_several_roots_names_their_prefixes(tmp_path: Path) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    make(os.fsencode(start), {})
    make(os.fsencode(end), {b"notes": ("file", b"x\n", 0o644)})
    changes = changes_between(described(start), described(end), "/home/user")
    content = b"".join(patch(changes, {"/home/user": b"home/user/"}, sources(start, end)))
    apply(content, start)
    assert (start / "home/user/notes").read_bytes() == b"x\n"


def test_patch_of_a_file_that_becomes_shorter_meanwhile_ends_with_a_conflict(
    tmp_path: Path,
) -> None:
    start, end = tmp_path / "start", tmp_path / "end"
    make(os.fsencode(start), {})
    make(os.fsencode(end), {b"log": ("file", b"one\ntwo\n", 0o644)})
    changes = changes_between(described(start), described(end))
    (end / "log").write_bytes(b"one\n")
    with pytest.raises(Conflict, match="'log' became shorter while it was being packed"):
        b"".join(patch(changes, {"/root": b""}, sources(start, end)))


def test_name_that_is_plain_stays_plain() -> None:
    assert quoted(b"a/src/main-1.2_x.py") == b"a/src/main-1.2_x.py"
    assert quoted(b'a/b "c\\\n') == b'"a/b \\042c\\134\\012"'
