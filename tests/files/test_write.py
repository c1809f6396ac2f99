from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.errors import Conflict, InvalidArgument, NoSpace, PayloadTooLarge, PermissionDenied
from execd.files import append, read, write
from tests.files.conftest import on_small_tmpfs, unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root


def put(root: Root, path: str, data: bytes) -> None:
    draft = write.create(root, path)
    try:
        draft.write(data)
        draft.commit()
    finally:
        draft.abort()


def test_a_file_appears_whole_and_only_at_commit(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"old")
    draft = write.create(root, "x")
    draft.write(b"new ")
    draft.write(bytearray(b"con"))
    draft.write(memoryview(b"tent"))
    assert (base / "x").read_bytes() == b"old"
    draft.commit()
    draft.abort()
    assert (base / "x").read_bytes() == b"new content"
    assert os.listdir(base) == ["x"]


def test_an_abort_leaves_the_old_file_and_no_temporary(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"old")
    draft = write.create(root, "x")
    draft.write(b"new")
    draft.abort()
    draft.abort()
    assert (base / "x").read_bytes() == b"old"
    assert os.listdir(base) == ["x"]


def test_an_abort_cleans_up_though_the_directory_has_the_number_of_standard_input(
    root: Root, base: Path
) -> None:
    """A daemon that was started without a standard input gives the number 0 to any file."""
    draft = write.create(root, "x")
    draft.write(b"new")
    kept = os.dup(0)
    try:
        os.dup2(draft._directory, 0)
        os.close(draft._directory)
        draft._directory = 0
        draft.abort()
        assert os.listdir(base) == []
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_missing_parents_are_made_less_the_umask(root: Root, base: Path) -> None:
    umask = os.umask(0o027)
    try:
        put(root, "a/b/c/x", b"x")
    finally:
        os.umask(umask)
    assert (base / "a/b/c/x").read_bytes() == b"x"
    assert stat.S_IMODE((base / "a/b").stat().st_mode) == 0o750
    assert stat.S_IMODE((base / "a/b/c/x").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444, 0o666, 0o1644])
def test_the_mode_of_a_replaced_file_is_kept(root: Root, base: Path, mode: int) -> None:
    (base / "x").write_bytes(b"old")
    (base / "x").chmod(mode)
    put(root, "x", b"new")
    assert (base / "x").read_bytes() == b"new"
    assert stat.S_IMODE((base / "x").stat().st_mode) == mode


def test_a_replaced_file_loses_set_user_id_as_by_any_write(root: Root, base: Path) -> None:
    (base / "x").write_bytes(b"old")
    (base / "x").chmod(0o4755)
    put(root, "x", b"new")
    assert stat.S_IMODE((base / "x").stat().st_mode) == 0o755


def test_a_chmod_during_the_upload_is_kept_and_private_bytes_are_private_throughout(
    root: Root, base: Path
) -> None:
    (base / "x").write_bytes(b"old")
    (base / "x").chmod(0o640)
    draft = write.create(root, "x")
    (temporary,) = set(os.listdir(base)) - {"x"}
    assert stat.S_IMODE((base / temporary).stat().st_mode) == 0o600
    (base / "x").chmod(0o700)
    draft.commit()
    assert stat.S_IMODE((base / "x").stat().st_mode) == 0o700


def test_a_replaced_file_keeps_its_owner_where_the_daemon_may_give_files_away(
    root: Root, base: Path
) -> None:
    (base / "x").write_bytes(b"old")
    owner = 4242 if os.geteuid() == 0 else os.getuid()
    os.chown(base / "x", owner, -1)
    put(root, "x", b"new")
    assert (base / "x").stat().st_uid == owner
    assert (base / "x").read_bytes() == b"new"


def test_an_upload_through_a_link_writes_its_target(root: Root, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d/x").write_bytes(b"old")
    (base / "link").symlink_to("d/x")
    (base / "dangling").symlink_to(base / "new/y")
    put(root, "link", b"new")
    put(root, "dangling", b"y")
    assert (base / "link").is_symlink()
    assert (base / "d/x").read_bytes() == b"new"
    assert (base / "dangling").is_symlink()
    assert (base / "new/y").read_bytes() == b"y"
    assert sorted(os.listdir(base)) == ["d", "dangling", "link", "new"]


@pytest.mark.parametrize("path", ["", ".", "/", "d", "d/", "missing/..", "link"])
def test_a_directory_as_target_is_invalid(root: Root, base: Path, path: str) -> None:
    (base / "d").mkdir()
    (base / "link").symlink_to("d")
    with pytest.raises(InvalidArgument, match="is a directory"):
        write.create(root, path)
    assert sorted(os.listdir(base)) == ["d", "link"]


def test_a_file_as_a_parent_is_invalid(root: Root, base: Path) -> None:
    (base / "f").write_bytes(b"f")
    for path in ("f/x", "f/a/b"):
        with pytest.raises(InvalidArgument, match="parent is not a directory"):
            write.create(root, path)
    assert (base / "f").read_bytes() == b"f"


def test_a_target_that_became_a_directory_is_refused_at_commit_and_nothing_is_left(
    root: Root, base: Path
) -> None:
    draft = write.create(root, "x")
    (base / "x").mkdir()
    with pytest.raises(InvalidArgument, match="is a directory"):
        draft.commit()
    assert os.listdir(base) == ["x"]


def test_a_target_that_became_a_link_is_replaced_and_not_followed(
    root: Root, base: Path, outside: Path
) -> None:
    draft = write.create(root, "x")
    draft.write(b"x")
    (base / "x").symlink_to(outside / "secret")
    draft.commit()
    assert not (base / "x").is_symlink()
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_directory_removed_during_the_upload_is_a_conflict(root: Root, base: Path) -> None:
    draft = write.create(root, "d/x")
    shutil.rmtree(base / "d")
    draft.write(b"x")
    with pytest.raises(Conflict, match="removed during the upload"):
        draft.commit()
    assert os.listdir(base) == []


def test_an_upload_past_its_limit_ends_with_nothing_left(root: Root, base: Path) -> None:
    draft = write.create(root, "x", write.Writing(max_bytes=10))
    draft.write(b"1234567890")
    with pytest.raises(PayloadTooLarge, match="at most 10 bytes"):
        draft.write(b"1")
    assert os.listdir(base) == []
    draft = write.create(root, "x", write.Writing(max_bytes=10))
    draft.write(b"1234567890")
    draft.commit()
    assert (base / "x").read_bytes() == b"1234567890"


@pytest.mark.parametrize(
    "raw", [b"a\nb", b'"quoted"', b"\xff\xfe", "ü€".encode(), b"y" * 255, b"\\", b"%2F", b" "]
)
def test_any_name_can_be_written(root: Root, base: Path, raw: bytes) -> None:
    put(root, raw.decode("utf-8", "surrogateescape"), raw)
    assert os.listdir(os.fsencode(base)) == [raw]
    with open(os.fsencode(base) + b"/" + raw, "rb") as f:
        assert f.read() == raw


def test_a_directory_that_cannot_be_written_is_a_permission_error(root: Root, base: Path) -> None:
    base.chmod(0o500)
    try:
        for path in ("x", "d/x"):
            with pytest.raises(PermissionDenied, match=f"'{path}': Permission denied"):
                unprivileged(lambda path=path: write.create(root, path))
    finally:
        base.chmod(0o700)
    assert os.listdir(base) == []


FILL = """
import os
from execd.errors import NoSpace
from execd.files import write
from execd.files.root import Root
root = Root(mount_point)
with open(mount_point + "/x", "wb") as f:
    f.write(b"old")
draft = write.create(root, "x")
try:
    for _ in range(100):
        draft.write(bytes(10_000))
except NoSpace as error:
    result["error"] = error.message
result["names"] = os.listdir(mount_point)
with open(mount_point + "/x", "rb") as f:
    result["old"] = f.read().decode()
again = write.create(root, "x")
again.write(b"there is room again")
again.commit()
with open(mount_point + "/x", "rb") as f:
    result["new"] = f.read().decode()
"""


def test_a_full_disk_ends_the_upload_with_the_old_file_in_place_and_the_space_free(
    base: Path,
) -> None:
    assert on_small_tmpfs(base, FILL) == {
        "error": "'x': No space left on device",
        "names": ["x"],
        "old": "old",
        "new": "there is room again",
    }


READ_ONLY = """
from execd.errors import ReadOnly
from execd.files import append, read, write
from execd.files.root import Root
root = Root(mount_point)
for path in ("x", "d/x"):
    try:
        write.create(root, path)
    except ReadOnly as error:
        result[path] = error.message
result["exists"] = read.exists(root, "x")
"""


def test_a_read_only_file_system_is_said_so(base: Path) -> None:
    assert on_small_tmpfs(base, READ_ONLY, read_only=True) == {
        "x": "'x': Read-only file system",
        "d/x": "'d/x': Read-only file system",
        "exists": False,
    }


def test_a_file_size_limit_of_the_daemon_ends_the_upload_with_nothing_left(
    root: Root, base: Path
) -> None:
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    draft = write.create(root, "x")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(PayloadTooLarge):
            draft.write(bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(base) == []


# An upload makes a missing slot. The upload's slot lasts for a moment, and the swapper removes the
# slot.
SWAP = """
import os, shutil, sys
os.chdir(sys.argv[1])
print(flush=True)
def until_done(step, *args):
    while True:
        try:
            return step(*args)
        except OSError:
            shutil.rmtree("slot", ignore_errors=True)
while True:
    os.rename("slot", "aside"); until_done(os.symlink, sys.argv[2], "slot")
    os.unlink("slot"); until_done(os.rename, "aside", "slot")
"""


def test_a_component_that_flips_between_directory_and_link_lets_nothing_in_or_out(
    root: Root, base: Path, outside: Path
) -> None:
    """At every moment, a read gives inside bytes or an error, and an upload lands inside or
    nowhere."""
    (outside / "f").write_bytes(b"outside")
    (base / "slot").mkdir()
    (base / "slot/f").write_bytes(b"inside")
    outcomes: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", SWAP, str(base), str(outside)], stdout=subprocess.PIPE
    ) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            for number in range(3000):
                for path in ("slot/f", "slot/../slot/f"):
                    try:
                        file = read.open_file(root, path)
                    except Exception as error:
                        outcome = type(error).__name__
                    else:
                        assert file.read(0, 100) == b"inside"
                        file.close()
                        outcome = "read"
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
                try:
                    put(root, f"slot/new{number % 5}/x", b"upload")
                    outcome = "written"
                except Exception as error:
                    outcome = "upload " + type(error).__name__
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
        finally:
            swapper.kill()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {
        "f": b"outside",
        "secret": b"secret",
    }
    assert set(outcomes) <= {
        "read", "written", "PermissionDenied", "NotFound", "Conflict",
        "upload PermissionDenied", "upload Conflict", "upload InvalidArgument",
    }, outcomes  # fmt: skip
    for outcome in ("read", "written", "PermissionDenied"):
        assert outcomes.get(outcome, 0) > 0, outcomes


def test_with_fsync_a_file_is_on_the_disk_before_it_has_its_name(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []

    def fsync(fd: int) -> None:
        synced.append((os.fstat(fd).st_size, (base / "x").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    draft = write.create(root, "x", write.Writing(syncs=True))
    draft.write(b"12345")
    draft.commit()
    for offset in (None, 7):
        extension = append.extend(root, "x", write.Writing(syncs=True), offset=offset)
        extension.write(b"67")
        extension.commit()
    assert synced == [(5, False), (7, True), (9, True)]


def test_a_file_that_does_not_reach_the_disk_leaves_the_old_one(
    root: Root, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (base / "x").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fsync)
    draft = write.create(root, "x", write.Writing(syncs=True))
    draft.write(b"new")
    with pytest.raises(NoSpace):
        draft.commit()
    assert (os.listdir(base), (base / "x").read_bytes()) == (["x"], b"old")


def test_unless_asked_for_nothing_waits_for_the_disk(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    put(root, "x", b"x")
    extension = append.extend(root, "x")
    extension.write(b"x")
    extension.commit()
    assert synced == []
