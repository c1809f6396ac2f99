"""The single file: one program that unpacks the tree in any image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.anywhere.conftest import PLACES, in_image, serving

if TYPE_CHECKING:
    from collections.abc import Callable

NO_PLACE = 78
FIND = "import glob; print(*glob.glob('/state/.execd-*'))"
Run = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture(scope="session")
def single() -> Path:
    return Path(os.environ["EXECD_SINGLE"])


@pytest.fixture
def run(single: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a copy of the single file; the tree goes below ``tmp_path``."""
    program = tmp_path / "bin" / "execd"
    program.parent.mkdir()
    shutil.copy(single, program)
    (tmp_path / "place").mkdir()

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"EXECD_UNPACK_DIR": str(tmp_path / "place")} | variables
        return subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("name", ["scratch", "musl"])
def test_unpacked_tree_serves_and_user_code_cannot_change_it(
    single: Path, name: str, uid: int, place: str
) -> None:
    command = in_image(name, uid, place, {"/opt/execd": str(single.parent)})
    command[-1:] = ["--env=EXECD_UNPACK_DIR=/state", "--", f"/opt/execd/{single.name}"]
    with serving(name, uid, place, command) as daemon:
        assert all(daemon.client.get("/v1/capabilities").json()["protections"].values())
        code = """
import glob, os
[tree] = glob.glob("/state/.execd-*")
for change in (
    lambda: open(f"{tree}/app/__main__.py", "a"),
    lambda: os.rename(tree, "/state/moved"),
    lambda: os.unlink(f"{tree}/bin/execd"),
):
    try:
        change()
        print("changed")
    except OSError as error:
        print(error.strerror)
"""
        tree = daemon.execute(argv=["python3", "-c", FIND])["stdout"].strip()
        for method, path in (("PUT", f"{tree}/app/__main__.py"), ("DELETE", tree)):
            answer = daemon.client.request(method, "/v1/fs/file", params={"path": path})
            assert answer.status_code == 403, answer.text
        moved = {"src": tree, "dest": "/state/moved"}
        assert daemon.client.post("/v1/fs/move", json=moved).status_code == 403
        done = daemon.execute(argv=["python3", "-c", code])
        assert done["stdout"].splitlines() == [
            "Read-only file system",
            "Device or resource busy",
            "Read-only file system",
        ], done
        assert daemon.client.post("/v1/code", json={"code": "1 + 1"}).json()["exit_code"] == 0


def test_second_start_takes_the_tree_of_the_first(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert run("--version").stdout.startswith("execd, version")
        [tree] = (tmp_path / "place").iterdir()
    assert (tree / ".complete").stat().st_size == 16


def test_starts_at_once_leave_one_tree(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "execd"
    environment = {"EXECD_UNPACK_DIR": str(tmp_path / "place")}
    starts = [subprocess.Popen([program, "--version"], env=environment) for _ in range(4)]
    assert [start.wait() for start in starts] == [0] * 4
    assert len(list((tmp_path / "place").iterdir())) == 1


def test_part_of_a_killed_start_is_swept(run: Run, tmp_path: Path) -> None:
    part = tmp_path / "place" / ".execd-part-abcdef"
    (part / "lib").mkdir(parents=True)
    (part / "lib" / "file").write_text("rest")
    assert run("--version").returncode == 0
    assert not part.exists()


def replace_by_a_link(path: Path) -> None:
    moved = path.parent / "moved"
    path.rename(moved)
    path.symlink_to(moved.name)


def give_away(path: Path) -> None:
    os.chown(path, 4321, 4321)


def name_another_archive(mark: Path) -> None:
    id = mark.read_text()
    mark.write_text(id[:-1] + ("0" if id[-1] != "0" else "1"))


def cut(mark: Path) -> None:
    """As a crash of the machine could leave a file."""
    mark.write_text("")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda _: None, ""),
        (lambda path: path.chmod(0o777), "."),
        (replace_by_a_link, "."),
        (give_away, "."),
        (Path.unlink, ".complete"),
        (replace_by_a_link, ".complete"),
        (give_away, ".complete"),
        (name_another_archive, ".complete"),
        (cut, ".complete"),
        (give_away, "bin/execd"),
        (replace_by_a_link, "bin/execd"),
    ],
)
def test_planted_folder_is_refused_with_the_reason(
    run: Run, single: Path, tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    archive_id = single.read_bytes()[-16:].decode()
    tree = tmp_path / "place" / f".execd-{archive_id}"
    (tree / "bin").mkdir(parents=True)
    (tree / ".complete").write_text(archive_id)
    shutil.copy("/bin/echo", tree / "bin/execd")
    change(tree / name)
    done = run("planted")
    if not name:  # without a fault the folder is taken
        assert done.stdout == "planted\n"
        return
    assert done.returncode == NO_PLACE
    assert "holds something else under the tree's name" in done.stderr


def test_tree_is_on_the_disk_before_its_mark_and_its_name(single: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    subprocess.run(
        ["strace", "-e", "trace=openat,syncfs,fsync,rename", "-o", trace, single, "--version"],
        env={"EXECD_UNPACK_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    unpacking, rename, _ = trace.read_text().partition("rename(")
    assert rename
    steps = re.findall(r'^(?:openat\(.*"(.*)", .*O_CREAT|(\w+)\()', unpacking, re.MULTILINE)
    *files, last_file, sync, mark, sync_mark, sync_folder = [file or call for file, call in steps]
    assert len(files) > 1000
    assert last_file not in {"syncfs", "fsync"}
    assert (sync, mark, sync_mark, sync_folder) == ("syncfs", ".complete", "fsync", "fsync")


def test_place_of_another_user_is_refused(run: Run, tmp_path: Path) -> None:
    os.chown(tmp_path / "place", 4321, 4321)
    done = run("--version")
    assert done.returncode == NO_PLACE
    assert "belongs to another user" in done.stderr


def test_cut_file_and_a_changed_file_are_refused(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "execd"
    whole = program.read_bytes()
    program.write_bytes(whole[:-1000])
    done = run("--version")
    assert (done.returncode, "cut or changed" in done.stderr) == (NO_PLACE, True)
    middle = len(whole) // 2
    program.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    done = run("--version")
    assert (done.returncode, "cannot unpack: Bad message" in done.stderr) == (NO_PLACE, True)
    assert list((tmp_path / "place").iterdir()) == []


def test_place_that_is_none_is_told(run: Run, tmp_path: Path) -> None:
    done = run("--version", EXECD_UNPACK_DIR=str(tmp_path / "nowhere"))
    assert done.returncode == NO_PLACE
    assert f"{tmp_path}/nowhere: no such directory" in done.stderr


def test_unpack_fills_an_empty_directory_and_no_other(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for _ in range(2):  # a container's second start
        assert run("--unpack", str(target)).returncode == 0
        assert (target / "bin" / "execd").exists()
    id = (target / ".complete").read_text()
    name_another_archive(target / ".complete")
    done = run("--unpack", str(target))
    assert (done.returncode, "holds another execd" in done.stderr) == (1, True)
    (target / ".complete").write_text(id)
    assert run("--unpack", str(target)).returncode == 0
    give_away(target / ".complete")
    done = run("--unpack", str(target))
    assert (done.returncode, "another user's" in done.stderr) == (1, True)
    (target / ".complete").unlink()
    done = run("--unpack", str(target))
    assert (done.returncode, "is no empty directory" in done.stderr) == (1, True)
    (target / ".part").touch()  # as a killed start leaves it
    (target / "half").mkdir()
    assert run("--unpack", str(target)).returncode == 0
    assert not (target / "half").exists()
    assert (target / ".complete").exists()
    assert not (target / ".part").exists()
