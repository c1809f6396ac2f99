from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from execd.files import read, resolve, write
from execd.files.root import TRIES, Root, TreeChanged, retry_on_change
from tests.files.conftest import entries, on_small_tmpfs, unprivileged
from tests.profiles import examples


def content(root: Root, path: str) -> bytes:
    file = read.open_file(root, path)
    try:
        return file.read(0, 1 << 20)
    finally:
        file.close()


def put(root: Root, path: str, data: bytes) -> None:
    draft = write.create(root, path)
    draft.write(data)
    draft.commit()


# The meaning of a path


def test_leading_slashes_mean_the_base_dir(root: Root, base: Path) -> None:
    (base / "etc").mkdir()
    (base / "etc/passwd").write_bytes(b"ours")
    assert content(root, "/etc/passwd") == b"ours"
    assert content(root, "///etc//./passwd") == b"ours"


def test_an_absolute_path_below_the_base_dir_means_itself(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"x")
    assert content(root, f"{base}/x") == b"x"
    put(root, f"{base}/new/y", b"y")
    assert (base / "new/y").read_bytes() == b"y"
    assert [entry.name for entry in entries(root, str(base))] == ["new", "x"]


def test_the_re_rooted_reading_wins_only_when_it_alone_exists(root: Root, base: Path) -> None:
    nested = Path(f"{base}/{base}")
    nested.mkdir(parents=True)
    (nested / "x").write_bytes(b"old reading")
    assert content(root, f"{base}/x") == b"old reading"
    put(root, f"{base}/x", b"still the old one")
    assert (nested / "x").read_bytes() == b"still the old one"
    (base / "x").write_bytes(b"new reading")
    assert content(root, f"{base}/x") == b"new reading"


def test_a_sibling_that_begins_with_the_name_of_the_base_dir_is_not_below_it(
    root: Root, base: Path
) -> None:
    put(root, f"{base}2/x", b"x")
    assert Path(f"{base}/{base}2/x").read_bytes() == b"x"
    assert not Path(f"{base}2").exists()


def test_the_real_name_of_a_base_dir_that_is_a_link_means_itself_too(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(base)
    root = Root(str(tmp_path / "link"))
    (base / "x").write_bytes(b"x")
    assert content(root, f"{tmp_path}/link/x") == b"x"
    assert content(root, f"{base}/x") == b"x"


@pytest.mark.parametrize("path", ["a\0b", "\0", "/\0", "../\0"])
def test_a_nul_byte_is_denied(root: Root, path: str) -> None:
    for operation in (read.open_file, read.exists, entries, write.create):
        with pytest.raises(PermissionDenied, match=r"^Access denied$"):
            operation(root, path)


def test_names_and_paths_too_long_for_the_kernel_are_invalid(root: Root) -> None:
    for path in ("y" * 256, "a/" + "y" * 256 + "/b", "é" * 128, "a/" * 2048, "é/" * 1500):
        for operation in (read.open_file, read.exists, entries, write.create):
            with pytest.raises(InvalidArgument, match=r"at most (255|4095) bytes"):
                operation(root, path)


def test_a_surrogate_that_stands_for_no_byte_is_invalid(root: Root) -> None:
    with pytest.raises(InvalidArgument, match="stands for no byte"):
        read.exists(root, "\ud800")


# Where a path leads

link_names = st.sampled_from(["l0", "l1", "l2", "d/l3"])
steps = st.sampled_from(
    ["d", "d/e", "f", "l0", "l1", "l2", "l3", "..", ".", "no", "g", "base", "outside", "secret"]
)
walks = st.lists(steps, min_size=1, max_size=6).map("/".join)
targets = st.tuples(st.sampled_from(["", "{base}/", "{outside}/", "/"]), walks).map("".join)


@examples(3)
@given(st.dictionaries(link_names, targets, max_size=4), st.lists(walks, min_size=1, max_size=8))
def test_a_walk_lands_where_realpath_does_and_only_inside(
    links: dict[str, str], asked: list[str]
) -> None:
    """The python-runtime's own rule (realpath of the joined path, common prefix), on unchanging
    trees."""
    top = os.path.realpath(tempfile.mkdtemp())
    try:
        base, outside = f"{top}/base", f"{top}/outside"
        os.makedirs(f"{base}/d/e")
        os.makedirs(outside)
        for file in (f"{base}/f", f"{base}/d/g", f"{outside}/secret", f"{outside}/f"):
            Path(file).touch()
        for name, target in links.items():
            os.symlink(target.format(base=base, outside=outside), f"{base}/{name}")
        root = Root(base)
        for path in asked:
            real = os.path.realpath(f"{base}/{path}")
            try:
                resolved = root.resolve(path)
            except PermissionDenied:
                assert os.path.commonpath([base, real]) != base, (path, real)
                continue
            except NotFound:
                with pytest.raises(OSError):  # noqa: PT011  # ELOOP, or ENOENT where the kernel is stricter about ".."
                    os.stat(f"{base}/{path}")
                continue
            with resolved:
                assert os.path.commonpath([base, real]) == base, (path, real)
                assert resolved.exists == os.path.exists(real), (path, real)
                if resolved.stat is not None:
                    assert os.path.samestat(resolved.stat, os.stat(real))
    finally:
        shutil.rmtree(top)


@pytest.mark.parametrize(
    "path",
    ["..", "../outside/secret", "d/../../outside/secret", "/../../../etc/passwd", "../base2"],
)
def test_leaving_the_root_is_denied(root: Root, base: Path, outside: Path, path: str) -> None:
    (base / "d").mkdir()
    for operation in (read.open_file, read.exists, entries, write.create):
        with pytest.raises(PermissionDenied, match=r"^Access denied$"):
            operation(root, path)


def test_dots_that_stay_inside_or_come_back_are_fine(root: Root, base: Path) -> None:
    (base / "d").mkdir()
    (base / "x").write_bytes(b"x")
    for path in (
        "d/../x",
        "./x",
        "d/./../x",
        "missing/../x",
        "x/../x",
        f"../{base.name}/x",
        f"d/../../{base.name}/x",
        "x/",
    ):
        assert content(root, path) == b"x", path


def test_links_that_stay_inside_are_followed_and_others_are_denied(
    root: Root, base: Path, outside: Path
) -> None:
    (base / "d").mkdir()
    (base / "d/x").write_bytes(b"x")
    (base / "relative").symlink_to("d/x")
    (base / "absolute").symlink_to(base / "d")
    (base / "out").symlink_to(outside)
    (base / "out_and_back").symlink_to(outside / ".." / base.name / "d")
    (base / "nowhere").symlink_to("/nonexistent/file")
    assert content(root, "relative") == b"x"
    assert content(root, "absolute/x") == b"x"
    assert content(root, "out_and_back/x") == b"x"
    for path in ("out", "out/secret", "out/missing", "nowhere", "nowhere/x"):
        for operation in (read.open_file, read.exists, entries, write.create):
            with pytest.raises(PermissionDenied, match=r"^Access denied$"):
                operation(root, path)
    assert os.listdir(outside) == ["secret"]


def test_what_is_outside_is_denied_alike_whether_it_exists_or_may_be_looked_at(
    root: Root, base: Path, outside: Path
) -> None:
    (outside / "locked/in").mkdir(parents=True)
    (outside / "locked").chmod(0)
    for number, target in enumerate(
        ["locked/in", "locked/in/..", "locked/missing", "missing", "secret/x"]
    ):
        (base / f"l{number}").symlink_to(outside / target)
        with pytest.raises(PermissionDenied, match=r"^Access denied$"):
            unprivileged(lambda name=f"l{number}": read.exists(root, name))
    (outside / "locked").chmod(0o700)


def test_a_directory_moved_out_in_the_middle_of_a_walk_is_no_way_out(
    root: Root, base: Path, outside: Path
) -> None:
    (base / "d/e").mkdir(parents=True)
    with root.resolve("d/e") as resolved:
        (base / "d/e").rename(outside / "e")
        resolved.walk(b"../secret")
        assert (resolved.exists, resolved.place) == (False, b"d/secret")
    with pytest.raises(NotFound):
        read.open_file(root, "d/e/../secret")


def test_the_way_up_does_not_ask_a_directory_that_was_removed_with_its_parent(
    root: Root, base: Path
) -> None:
    """gVisor ends the whole sandbox when a program opens ".." of the removed directory."""
    (base / "a/b/c").mkdir(parents=True)
    (base / "x").write_bytes(b"x")
    with root.resolve("a/b/c") as resolved:
        shutil.rmtree(base / "a")
        resolved.walk(b"../../../x")
        assert resolved.exists


def test_a_loop_of_links_leads_nowhere(root: Root, base: Path) -> None:
    (base / "a").symlink_to("b")
    (base / "b").symlink_to("a")
    with pytest.raises(NotFound, match="symbolic links"):
        read.open_file(root, "a")
    with pytest.raises(NotFound, match="symbolic links"):
        write.create(root, "a/x")
    assert not read.exists(root, "a")


def test_a_directory_without_search_permission_is_a_permission_error_that_names_it(
    root: Root, base: Path
) -> None:
    (base / "locked/in").mkdir(parents=True)
    (base / "locked").chmod(0)
    try:
        for operation in (read.open_file, read.exists, entries, write.create):
            with pytest.raises(PermissionDenied, match="'locked/in': Permission denied"):
                unprivileged(lambda operation=operation: operation(root, "locked/in"))
    finally:
        (base / "locked").chmod(0o700)


# Files never served


def test_procfs_and_sysfs_are_denied_however_they_are_reached(base: Path) -> None:
    (base / "proc").symlink_to("/proc")
    (base / "magic").symlink_to(f"/proc/self/root{base}/x")
    (base / "x").write_bytes(b"x")
    for root in (Root(str(base)), Root("/")):
        prefix = "" if root.base_dir != "/" else str(base)
        for path in (f"{prefix}/proc/self/environ", f"{prefix}/magic"):
            with pytest.raises(PermissionDenied, match=r"^Access denied$"):
                read.open_file(root, path)
    (base / "stdin").symlink_to("/proc/self/fd/0")
    for path in ("/proc/self/environ", "/proc", "/sys/kernel", "/dev/fd/0", str(base / "stdin")):
        with pytest.raises(PermissionDenied, match=r"^Access denied$"):
            read.exists(Root("/"), path)


def test_folder_sys_of_an_image_that_is_no_mount_denies_nothing(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "sys").mkdir()
    monkeypatch.setattr("execd.files.root.KERNEL_MOUNTS", ("/proc", str(base / "sys")))
    (base / "x").write_bytes(b"x")
    for root in (Root(str(base)), Root("/")):
        assert read.exists(root, f"{base}/x")


def test_the_state_dir_is_denied_with_all_below_it_under_any_name(
    base: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "logs/1").write_bytes(b"log")
    (tmp_path / "other_name").symlink_to(state / "logs")
    root = Root("/", str(state))
    for path in (
        state,
        state / "logs/1",
        state / "missing",
        tmp_path / "other_name/1",
        base / "../state/logs",
    ):
        for operation in (read.open_file, read.exists, entries, write.create):
            with pytest.raises(PermissionDenied, match=r"^Access denied$"):
                operation(root, str(path))
    assert os.listdir(state) == ["logs"]
    shutil.move(state, tmp_path / "moved")
    # The setting names the state dir by path. Nothing is at the path now.
    assert read.exists(root, f"{tmp_path}/moved/logs/1")
    assert content(Root("/"), f"{tmp_path}/moved/logs/1") == b"log"


def test_only_regular_files_open_and_nothing_blocks(root: Root, base: Path) -> None:
    (base / "d").mkdir()
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(base / "socket"))
        for path in ("", "d", "fifo", "socket", "missing", "fifo/x"):
            with pytest.raises(NotFound):
                read.open_file(root, path)
        for path in ("fifo", "socket"):
            assert read.exists(root, path)
            with pytest.raises(InvalidArgument, match="not a regular file"):
                write.create(root, path)
    for path in ("null", "full", "zero"):
        with pytest.raises(NotFound):
            read.open_file(Root("/dev"), path)
        with pytest.raises(InvalidArgument, match="not a regular file"):
            write.create(Root("/dev"), path)


BOUND = """
import ctypes, os
from execd.errors import PermissionDenied
from execd.files import read
from execd.files.root import Root
libc = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096
# The device of /proc is known to the root. The device of /dev/pts is known by its type only.
for source in "/proc/version", "/dev/pts/ptmx", "/dev/pts":
    target = mount_point + "/" + os.path.basename(source)
    os.mkdir(target) if os.path.isdir(source) else open(target, "w").close()
    if libc.mount(source.encode(), target.encode(), None, MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), source)
    result[source] = []
    for operation in read.open_or_describe, read.open_file, read.exists:
        try:
            operation(Root(mount_point), os.path.basename(source))
            result[source].append("opened")
        except PermissionDenied as error:
            result[source].append(error.message)
"""


def test_a_file_of_the_kernel_under_a_bind_mount_is_denied(base: Path) -> None:
    denials = ["Access denied"] * 3
    assert on_small_tmpfs(base, BOUND) == {
        "/proc/version": denials,
        "/dev/pts/ptmx": denials,
        "/dev/pts": denials,
    }


LEASE = """
import fcntl, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
with open(sys.argv[1], "r+b") as file:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("held", flush=True)
    signal.sigwait({signal.SIGIO})
"""


@pytest.mark.linux_only("gVisor has no leases")
def test_a_lease_of_user_code_is_a_conflict_and_not_a_wait(root: Root, base: Path) -> None:
    """The kernel asks the holder of a lease to let go, and an open without O_NONBLOCK waits for the
    holder. This holder lets go when asked, so an open that waits is an open that succeeds."""
    (base / "x").write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", LEASE, str(base / "x")], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict):
            read.open_file(root, "x")
    assert holder.returncode == 0
    assert content(root, "x") == b"x"


# The base dir


def test_a_removed_base_dir_is_made_again_by_every_operation(tmp_path: Path) -> None:
    base = tmp_path / "a/b"
    root = Root(str(base))
    assert entries(root, "") == []
    shutil.rmtree(tmp_path / "a")
    assert not read.exists(root, "x")
    assert base.is_dir()
    base.rmdir()
    with pytest.raises(NotFound):
        read.open_file(root, "x")
    assert base.is_dir()
    shutil.rmtree(tmp_path / "a")
    put(root, "d/x", b"x")
    assert (base / "d/x").read_bytes() == b"x"
    shutil.rmtree(tmp_path / "a")
    root.ensure()
    assert base.is_dir()


def test_a_base_dir_that_is_a_link_is_resolved_for_every_operation(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(name.encode())
    link = tmp_path / "base"
    link.symlink_to("one")
    root = Root(str(link))
    assert content(root, "x") == b"one"
    link.unlink()
    link.symlink_to("two")
    assert content(root, "x") == b"two"
    shutil.rmtree(tmp_path / "two")
    assert entries(root, "") == []
    assert (tmp_path / "two").is_dir()


def test_a_base_dir_that_cannot_be_made_is_said_so(base: Path) -> None:
    base.rmdir()
    base.write_bytes(b"")
    with pytest.raises(Conflict, match=r"base dir '.*/base' is not a directory"):
        entries(Root(str(base)), "")
    with pytest.raises(Conflict, match=r"base dir '.*/base/below' is not a directory"):
        Root(str(base / "below")).ensure()
    base.unlink()
    base.parent.chmod(0o500)
    try:
        with pytest.raises(
            PermissionDenied, match=r"base dir '.*/base' cannot be made again: Permission denied"
        ):
            unprivileged(lambda: entries(Root(str(base)), ""))
    finally:
        base.parent.chmod(0o700)


def test_a_tree_that_never_holds_still_is_a_conflict_after_bounded_tries() -> None:
    rounds = []

    def restless() -> None:
        rounds.append(1)
        raise TreeChanged

    with pytest.raises(Conflict, match="'x' kept changing"):
        retry_on_change(restless, "x")
    assert len(rounds) == TRIES


def test_a_walk_holds_no_more_descriptors_than_it_may(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "MAX_DEPTH", 10)
    nine = "a/" * 9
    (base / nine / nine).mkdir(parents=True)
    (base / nine / "on").symlink_to(nine)
    (base / "far").symlink_to(nine + "on")
    assert read.exists(root, nine)
    assert read.exists(root, nine + "../" * 9 + nine), (
        "it counts where the walk is, not how long it was"
    )
    for look in (read.exists, write.create):
        with pytest.raises(InvalidArgument, match="more than 10"):
            look(root, "far/x")
    with pytest.raises(InvalidArgument, match="more than 10"):
        write.create(root, nine + "new/newer/x")


def test_the_base_dir_comes_back_for_a_relative_path_of_the_whole_tree_only(tmp_path: Path) -> None:
    base = tmp_path / "base"
    for path in ("/", "x"):
        with Root.whole_tree(str(base)).resolve(path):
            assert base.is_dir() == (path == "x")
