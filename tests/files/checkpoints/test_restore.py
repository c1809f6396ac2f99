"""A restored tree is as before, whatever user code did to it. An independent walk judges."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from execd.errors import PayloadTooLarge
from execd.files.checkpoints import restore, scan
from tests.files.checkpoints.conftest import NAMES, Desk, facts, make_tree, settle
from tests.files.conftest import unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.checkpoints.entries import TreeEntry
    from execd.files.checkpoints.operations import How


def _set_flags(path: str | Path, flags: int) -> None:
    """Set the flags of chattr(1) that forbid changes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        found = struct.unpack("=q", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
        fcntl.ioctl(fd, 0x40086602, struct.pack("=q", (found & ~0x30) | flags))
    finally:
        os.close(fd)


both_ways = pytest.mark.parametrize("how", ["auto", "content"])


def _rmtree(base: Path) -> None:
    shutil.rmtree(base / "src")


def _file_for_directory(base: Path) -> None:
    shutil.rmtree(base / "src/deep")
    (base / "src/deep").write_text("a file")


def _directory_for_file(base: Path) -> None:
    (base / "run.sh").unlink()
    (base / "run.sh/inner").mkdir(parents=True)
    (base / "run.sh/inner/file").write_text("x")


def _link_for_directory(base: Path) -> None:
    shutil.rmtree(base / "src/deep")
    (base / "src/deep").symlink_to(base.parent / "outside")


def _set_times_back(base: Path) -> None:
    info = (base / "src/deep/b.txt").stat()
    (base / "src/deep/b.txt").write_bytes(b"c" * 5000)
    os.utime(base / "src/deep/b.txt", ns=(info.st_atime_ns, info.st_mtime_ns))


def _write_through_mapping(base: Path) -> None:
    with open(base / "src/deep/b.txt", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[7] = 0


def _break_hard_link(base: Path) -> None:
    (base / "src/hard").unlink()
    (base / "src/hard").write_text("print(1)\n")


def _hard_link_to_outside(base: Path) -> None:
    os.link(base / "run.sh", base.parent / "outside/kept-by-user")


def _hard_link_from_outside(base: Path) -> None:
    (base / "empty/secret").hardlink_to(base.parent / "outside/secret")
    (base / "run.sh").unlink()
    (base / "run.sh").hardlink_to(base.parent / "outside/secret")


def _deep_tree(base: Path) -> None:
    directory = os.open(base, os.O_RDONLY)
    for _ in range(700):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)


POLLUTIONS = {
    "a file is overwritten": lambda base: (base / "src/deep/b.txt").write_text("other"),
    "a file is appended to": lambda base: subprocess.run(
        ["sh", "-c", "echo x >> run.sh"], cwd=base, check=True
    ),
    "a file is removed": lambda base: (base / "src/a.py").unlink(),
    "a file is created": lambda base: (base / "src/new").write_text("new"),
    "times are set back": _set_times_back,
    "a mapped page is written": _write_through_mapping,
    "only a time is set": lambda base: os.utime(base / "run.sh", ns=(5, 5)),
    "a tree is removed": _rmtree,
    "a tree is created": lambda base: (base / "x/y/z").mkdir(parents=True),
    "a file takes the place of a directory": _file_for_directory,
    "a directory takes the place of a file": _directory_for_file,
    "a link takes the place of a directory": _link_for_directory,
    "a link leads elsewhere": lambda base: (
        (base / "link").unlink(),
        (base / "link").symlink_to("/etc"),
    ),
    "a fifo is removed": lambda base: (base / "fifo").unlink(),
    "a socket is made": lambda base: os.mknod(base / "socket", stat.S_IFSOCK | 0o600),
    "a mode is changed": lambda base: (base / "run.sh").chmod(0o600),
    "a directory has mode 000": lambda base: (base / "src").chmod(0),
    "a directory cannot be searched": lambda base: (base / "src").chmod(0o600),
    "a directory in one of mode 000 has mode 000": lambda base: (
        (base / "src/deep").chmod(0),
        (base / "src").chmod(0),
    ),
    "a created directory has mode 000": lambda base: (
        (base / "made/below").mkdir(parents=True),
        (base / "made/below/file").write_text("x"),
        (base / "made").chmod(0),
    ),
    "the root has mode 000": lambda base: base.chmod(0),
    "an attribute is set": lambda base: os.setxattr(base / "src", "user.x", b"1"),
    "an attribute is removed": lambda base: os.removexattr(base / "run.sh", "user.note"),
    "a hard link is broken": _break_hard_link,
    "a hard link is added": lambda base: os.link(base / "run.sh", base / "more"),
    "a file is linked to outside": _hard_link_to_outside,
    "a file from outside is linked": _hard_link_from_outside,
    "a file is moved": lambda base: (base / "run.sh").rename(base / "empty/run.sh"),
    "a directory is moved into another": lambda base: (base / "src").rename(base / "empty/src"),
    "the root is removed": shutil.rmtree,
    "the root is moved away": lambda base: base.rename(base.parent / "elsewhere"),
    "a link takes the place of the root": lambda base: (
        base.rename(base.parent / "elsewhere"),
        base.symlink_to(base.parent / "outside"),
    ),
    "a directory is 700 deep": _deep_tree,
    "a name has 255 bytes": lambda base: (base / ("m" * 255)).write_text("x"),
}


@both_ways
@pytest.mark.parametrize("pollution", POLLUTIONS)
def test_a_restored_tree_is_as_before(
    desk: Desk, base: Path, outside: Path, pollution: str, how: How
) -> None:
    make_tree(base)
    settle()
    desk.create()
    before, before_outside = facts(base), (outside / "secret").read_bytes()
    outside_info = (outside / "secret").stat()
    POLLUTIONS[pollution](base)  # type: ignore[no-untyped-call]
    assert desk.verify(how).n_differences > 0, "an unseen pollution proves nothing"
    unprivileged(lambda: desk.restore_all(how))
    assert facts(base) == before
    assert set(os.listdir(outside)) <= {"secret", "kept-by-user"}
    assert (outside / "secret").read_bytes() == before_outside
    assert (outside / "secret").stat().st_mtime_ns == outside_info.st_mtime_ns


@pytest.mark.root
@pytest.mark.linux_only("chattr(1) is refused")
def test_files_that_forbid_changes_are_named(desk: Desk, base: Path) -> None:
    make_tree(base)
    settle()
    desk.create()
    try:
        for name in ("run.sh", "src"):
            _set_flags(base / name, 0x10)
        assert set(desk.kinds()) == {"run.sh", "src"}
        named = {str(base / "run.sh"), str(base / "src")}
        assert {each.path for each in desk.restore().troubles} == named
        assert {each.path for each in desk.verify().differences} == named
    finally:
        for name in ("run.sh", "src"):
            _set_flags(base / name, 0)
    desk.restore_all()


def test_what_cannot_be_restored_is_named_and_the_rest_is_restored(desk: Desk, base: Path) -> None:
    make_tree(base)
    settle()
    desk.create()
    (base / "src/a.py").write_text("other")
    (base / "run.sh").write_text("other")
    digest = next(e.digest for e in desk.stored.manifests[0].entries if e.path == b"run.sh")
    (desk.state / "checkpoints/content" / digest.hex()).unlink()
    done = desk.restore()
    assert [(each.path, each.message) for each in done.troubles] == [
        (str(base / "run.sh"), "No such file or directory")
    ]
    assert (base / "src/a.py").read_text() == "print(1)\n"
    [difference] = desk.verify().differences
    assert difference.path == str(base / "run.sh")
    assert not [name for name in os.listdir(base) if name.startswith(".execd")]


@pytest.mark.any_kernel  # gVisor counts holes as blocks
def test_holes_stay_holes(desk: Desk, base: Path) -> None:
    with open(base / "sparse", "wb") as file:
        file.write(b"begin")
        file.truncate(64 << 20)
    desk.granted_bytes = 1 << 20
    desk.create()
    before = facts(base)
    (base / "sparse").unlink()
    desk.restore_all()
    assert facts(base) == before
    assert (base / "sparse").stat().st_blocks * 512 < 1 << 20


SWAP = """
import os, sys
base = sys.argv[1]
while True:
    os.rename(base + "/src", base + "/aside")
    os.symlink(sys.argv[2], base + "/src")
    os.unlink(base + "/src")
    os.rename(base + "/aside", base + "/src")
"""


def test_nothing_outside_is_touched_while_directories_become_links(
    desk: Desk, base: Path, outside: Path
) -> None:
    make_tree(base)
    for name in ("a.py", "hard", "deep"):
        (outside / name).write_text("outside")
    desk.create()
    before = {name: (outside / name).stat() for name in os.listdir(outside)}
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, str(base), str(outside)])
    try:
        for number in range(60):
            for path in (base / "src/a.py", base / "aside/a.py"):
                try:
                    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
                except OSError:
                    continue
                if os.fstat(fd).st_nlink == 3:
                    os.write(fd, b"%d" % number)
                os.close(fd)
            desk.restore()
    finally:
        swapping.kill()
        swapping.wait()
    after = {name: (outside / name).stat() for name in os.listdir(outside)}
    assert after == before


def test_nothing_outside_is_touched_by_a_link_in_the_place_of_a_new_file(
    desk: Desk, base: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User code links in the moment between the making of the file and its attributes."""
    (base / "file").write_text("kept")
    (base / "file").chmod(0o640)
    (outside / "secret").write_text("outside")
    desk.create()
    (base / "file").unlink()
    before = (outside / "secret").stat()
    make = restore.RootRestore._make

    def swap(self: restore.RootRestore, entry: TreeEntry, parent: int, name: bytes) -> None:
        make(self, entry, parent, name)
        os.unlink(name, dir_fd=parent)
        os.link(outside / "secret", name, dst_dir_fd=parent)

    monkeypatch.setattr(restore.RootRestore, "_make", swap)
    [trouble] = desk.restore().troubles
    assert trouble.path == str(base / "file")
    after = (outside / "secret").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    monkeypatch.undo()
    desk.restore_all()


def test_verification_reads_again_what_has_changed_since_the_scan_of_the_restore(
    desk: Desk, base: Path
) -> None:
    for name in ("taken", "written", "replaced"):
        (base / name).write_text(name)
    desk.create()
    (base / "replaced").write_text("changed!")
    settle()
    done = desk.restore("content")
    [seen] = done.seen.values()
    wrong = [replace(each, digest=bytes(32)) if each.digest else each for each in seen.entries]
    done.seen[seen.root] = replace(seen, entries=wrong)
    info = (base / "written").stat()
    (base / "written").write_text("WRITTEN")
    os.utime(base / "written", ns=(info.st_atime_ns, info.st_mtime_ns))
    found = desk.operations.verify(desk.stored, "content", desk.stops, done.seen)
    assert [each.path for each in found.differences] == [f"{base}/taken", f"{base}/written"]
    (base / "taken").unlink()  # of which only the planted digest was wrong
    (base / "written").write_text("written")
    desk.restore_all("content")


names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
acts = st.tuples(
    st.sampled_from(
        ("write", "mkdir", "remove", "move", "link", "symlink", "chmod", "utime", "xattr", "fifo")
    ),
    paths,
    paths,
    st.integers(0, 3),
)
MODES = (0o755, 0o600, 0o700, 0o000)


def act(top: bytes, step: tuple[str, bytes, bytes, int]) -> None:
    """Do a step, or nothing where the tree does not allow the step."""
    kind, first, second, number = step
    path, other = top + b"/" + first, top + b"/" + second
    try:
        match kind:
            case "write":
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
                with open(os.open(path, flags, 0o644), "wb") as file:
                    file.write(b"%d" % number * number * 500)
            case "mkdir":
                os.makedirs(path)
            case "remove":
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            case "move":
                os.rename(path, other)
            case "link":
                os.link(path, other, follow_symlinks=False)
            case "symlink":
                os.symlink(second, path)
            case "chmod":
                os.chmod(path, MODES[number], follow_symlinks=False)
            case "utime":
                os.utime(path, ns=(number, number), follow_symlinks=False)
            case "xattr":
                os.setxattr(path, "user.n", b"%d" % number, follow_symlinks=False)
            case "fifo":
                os.mkfifo(path)
    except (OSError, NotImplementedError):
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(built=st.lists(acts, max_size=15), polluted=st.lists(acts, max_size=15))
@pytest.mark.root  # drawn modes of 000 hide the tree from another judge
def test_any_tree_is_as_before_after_any_pollution(
    tmp_path_factory: pytest.TempPathFactory,
    built: list[tuple[str, bytes, bytes, int]],
    polluted: list[tuple[str, bytes, bytes, int]],
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    base = folder / "base"
    base.mkdir()
    desk = Desk(base, folder / "state")
    try:
        for step in built:
            act(os.fsencode(base), step)
        before = facts(base)
        desk.create()
        assert desk.verify().n_differences == 0
        for step in polluted:
            act(os.fsencode(base), step)
        now = facts(base)
        assert (desk.verify().n_differences > 0) is (now != before)
        desk.restore_all()
        assert facts(base) == before
        assert desk.verify("content").n_differences == 0
    finally:
        desk.close()
        shutil.rmtree(folder)


@both_ways
def test_excluded_paths_in_created_directories_stay(desk: Desk, base: Path, how: How) -> None:
    make_tree(base)
    settle()
    desk.create(exclude=["**/*.keep", "**/node_modules"])
    before = facts(base)
    kept = [base / "new/deep/a.keep", base / "app/node_modules/x/index.js", base / "src/b.keep"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (base / "new/deep/other").write_text("goes")
    (base / "app/src/more").mkdir(parents=True)
    desk.restore_all(how)
    assert [path.read_text() for path in kept] == ["mine"] * 3
    assert desk.kinds() == {}
    stays = {b"/new", b"/new/deep", b"/app"}
    excluded = {b"/new/deep/a.keep", b"/src/b.keep"}
    left = facts(base)
    assert {
        path: each
        for path, each in left.items()
        if path not in stays | excluded and not path.startswith(b"/app/node_modules")
    } == before


def test_a_directory_with_excluded_paths_in_the_place_of_a_file_is_named(
    desk: Desk, base: Path
) -> None:
    make_tree(base)
    desk.create(exclude=["**/*.keep"])
    (base / "run.sh").unlink()
    (base / "run.sh/below").mkdir(parents=True)
    (base / "run.sh/below/a.keep").write_text("mine")
    (base / "run.sh/other").write_text("goes")
    done = desk.restore()
    assert "holds excluded files, which stay; remove them first" in {
        each.message for each in done.troubles
    }
    assert str(base / "run.sh") in {each.path for each in desk.verify().differences}
    assert (base / "run.sh/below/a.keep").read_text() == "mine"
    assert not (base / "run.sh/other").exists()


def test_a_root_comes_back_with_the_directories_above(desk: Desk, base: Path) -> None:
    root = base / "a/b/root"
    root.mkdir(parents=True)
    make_tree(root)
    desk.create(["a/b/root"])
    before = facts(root)
    shutil.rmtree(base / "a")
    (base / "a").write_text("in the way")
    done = desk.restore()
    assert len(done.troubles) == 1
    assert (done.restored, done.unchanged) == (0, 0)
    (base / "a").unlink()
    desk.restore_all()
    assert facts(root) == before


def test_created_files_take_no_entries(
    desk: Desk, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(base)
    desk.create()
    before = facts(base)
    (base / "new").mkdir()
    for number in range(200):
        (base / f"{number}").touch()
        (base / f"new/{number}").touch()
    monkeypatch.setattr(scan, "MAX_MANIFEST_BYTES", 100_000)
    with pytest.raises(PayloadTooLarge):
        desk.changes()
    assert desk.verify().n_differences == 1
    assert desk.restore_all().removed == 401
    assert facts(base) == before
