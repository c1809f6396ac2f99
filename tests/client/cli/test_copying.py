"""Files by ``execctl cp``, ``ls``, ``cat`` and ``rm``; a killed copy goes on."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.client.cli.conftest import EXECCTL, ended
from tests.client.conftest import AT_ONCE
from tests.client.proxies import CuttingProxy, cutting_proxy
from tests.conformance.target import Target, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pexpect

    from execd_client import Execd

    Run = Callable[..., subprocess.CompletedProcess[str]]

CONTENT = random.Random(3).randbytes(8 << 20)


@pytest.fixture
def proxy(target: Target) -> Iterator[CuttingProxy]:
    with cutting_proxy(target.address, random.Random(3)) as made:
        made.stalls = True
        yield made


def test_files_go_in_and_out(execctl: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    assert execctl("cp", "a", "b", ":both/").returncode == 0
    assert execctl("cp", "a", ":one").returncode == 0
    assert execctl("ls", ":both").stdout == "a\nb\n"
    assert execctl("ls", "-l", "both").stdout.count("0644") == 2
    assert [entry["name"] for entry in json.loads(execctl("ls", "--json", "both").stdout)] == [
        "a",
        "b",
    ]
    assert execctl("cat", "both/a", ":one").stdout == "aa"
    assert execctl("cp", ":both/a", "out/").returncode == 0
    assert (tmp_path / "out/a").read_bytes() == b"a"
    assert execctl("rm", "both").returncode == 125
    assert execctl("rm", "-r", "both", "one").returncode == 0
    assert execctl("cat", "one").returncode == 125


def test_directories_go_in_and_out(execctl: Run, tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_bytes(CONTENT)
    assert execctl("cp", "tree", ":copied").returncode == 0
    assert execctl("cp", "tree", ":copied").returncode == 0
    assert execctl("ls", "copied").stdout == "deep/\ntree/\n"
    assert execctl("cp", ":copied/deep", "back").returncode == 0
    assert (tmp_path / "back/file").read_bytes() == CONTENT


def test_a_link_is_copied_under_its_own_name(execctl: Run, sandbox: Execd, tmp_path: Path) -> None:
    (tmp_path / "named").write_bytes(b"x")
    (tmp_path / "link").symlink_to("named")
    assert execctl("cp", "link", ":by-link/").returncode == 0
    assert execctl("ls", "by-link").stdout == "link\n"


def test_links_that_lead_out_are_named_on_stderr(execctl: Run, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/out").symlink_to("/etc")
    done = execctl("cp", "project", ":linked/")
    assert done.returncode == 0
    assert done.stderr.startswith("execctl: out is left out: the link leads out")


@AT_ONCE
def test_a_killed_upload_goes_on(
    execctl: Run, proxy: CuttingProxy, sandbox: Execd, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(CONTENT)
    proxy.cut(100, 6 << 20)
    url = f"http://127.0.0.1:{proxy.port}"
    command = [EXECCTL, "--url", url, "cp", "large", ":killed/large"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        wait_until(lambda: sent_bytes(sandbox) > 1 << 20, 60, "some of the file has arrived")
        process.kill()
    before = settled(proxy, lambda: sent_bytes(sandbox))
    assert execctl("--url", url, "cp", "large", ":killed/large").returncode == 0
    assert proxy.n_bytes < len(CONTENT) - before + (1 << 20)
    assert sandbox.files.read("killed/large") == CONTENT
    assert [entry.name for entry in sandbox.files.list("killed")] == ["large"]


def settled(proxy: CuttingProxy, size: Callable[[], int]) -> int:
    """Reset what the killed copy has left, and wait until no more bytes arrive."""
    proxy.cut(0, 1)
    proxy.stalls = False
    sizes = [-1]

    def is_settled() -> bool:
        sizes.append(size())
        return len(sizes) > 5 and len(set(sizes[-5:])) == 1

    wait_until(is_settled, 60, "no more bytes arrive")
    proxy.n_bytes = 0
    return sizes[-1]


def sent_bytes(sandbox: Execd) -> int:
    if not sandbox.files.exists("killed"):
        return 0
    return sum(entry.size for entry in sandbox.files.list("killed"))


@AT_ONCE
def test_a_killed_download_goes_on(
    execctl: Run, proxy: CuttingProxy, sandbox: Execd, tmp_path: Path
) -> None:
    sandbox.files.write("source", CONTENT)
    proxy.cut(100, 6 << 20)
    url = f"http://127.0.0.1:{proxy.port}"
    with subprocess.Popen([EXECCTL, "--url", url, "cp", ":source", "got"], cwd=tmp_path) as process:
        wait_until(lambda: local_bytes(tmp_path) > 1 << 20, 60, "some of the file has arrived")
        process.kill()
    before = settled(proxy, lambda: local_bytes(tmp_path))
    assert execctl("--url", url, "cp", ":source", "got").returncode == 0
    assert proxy.n_bytes < len(CONTENT) - before + (1 << 20)
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["got"]


def local_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


PARTS = 64
"""Files of the tree: 128 KiB each."""


def make_tree(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    size = len(CONTENT) // PARTS
    for number in range(PARTS):
        (folder / f"deep/{number}").write_bytes(CONTENT[number * size : (number + 1) * size])
    (folder / "large").write_bytes(CONTENT * 2)


def is_the_tree(folder: Path) -> bool:
    content = b"".join((folder / f"deep/{n}").read_bytes() for n in range(PARTS))
    names = sorted(os.listdir(folder))
    return (names, content, (folder / "large").read_bytes()) == (
        ["deep", "large"],
        CONTENT,
        CONTENT * 2,
    )


@AT_ONCE
def test_a_killed_upload_of_a_directory_goes_on(
    execctl: Run, proxy: CuttingProxy, sandbox: Execd, tmp_path: Path
) -> None:
    """The small files arrive, and the large file arrives in part, before the copy is killed."""
    make_tree(tmp_path / "tree")
    proxy.cut(100, 20 << 20, 14 << 20)
    url = f"http://127.0.0.1:{proxy.port}"
    command = [EXECCTL, "--url", url, "cp", "tree", ":trees/tree"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        wait_until(lambda: tree_bytes(sandbox) > 12 << 20, 60, "most of the tree has arrived")
        process.kill()
    before = settled(proxy, lambda: tree_bytes(sandbox))
    done = execctl("--url", url, "cp", "tree", ":trees/tree")
    assert (done.returncode, done.stderr) == (0, "")
    assert proxy.n_bytes < 3 * len(CONTENT) - before + (1 << 20)
    sandbox.files.download_dir("trees", tmp_path / "back")
    assert os.listdir(tmp_path / "back") == ["tree"]
    assert is_the_tree(tmp_path / "back/tree")


def tree_bytes(sandbox: Execd) -> int:
    sizes = sandbox.run("find trees -type f -printf '%s\\n'").stdout
    return sum(int(size) for size in sizes.split())


@AT_ONCE
def test_a_killed_download_of_a_directory_goes_on(
    execctl: Run, proxy: CuttingProxy, sandbox: Execd, tmp_path: Path
) -> None:
    make_tree(tmp_path / "made")
    sandbox.files.upload_dir(tmp_path / "made", "source-tree")
    folder = tmp_path / "empty"
    folder.mkdir()
    proxy.cut(100, 6 << 20)
    url = f"http://127.0.0.1:{proxy.port}"
    command = [EXECCTL, "--url", url, "cp", ":source-tree", "got"]
    with subprocess.Popen(command, cwd=folder) as process:
        wait_until(lambda: local_bytes(folder) > 1 << 20, 60, "some of the tree has arrived")
        process.kill()
    before = settled(proxy, lambda: local_bytes(folder))
    done = execctl("--url", url, "cp", ":source-tree", "got", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert proxy.n_bytes < 3 * len(CONTENT) - before + (1 << 20)
    assert os.listdir(folder) == ["got"]
    assert is_the_tree(folder / "got")


def test_a_terminal_shows_the_progress(
    terminal: Callable[..., pexpect.spawn[str]], tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(CONTENT)
    child = terminal("cp", "large", ":shown")
    child.expect(r"8\.4/8\.4 MB")
    assert ended(child) == 0


def test_mistakes_are_named(execctl: Run) -> None:
    for wrong in (["a", "b"], [":a", ":b"], ["missing", ":x"]):
        done = execctl("cp", *wrong)
        assert done.returncode == 2
        assert "':'" in done.stderr or "no such file" in done.stderr


def test_rm_deletes_the_other_files_after_an_error(execctl: Run, sandbox: Execd) -> None:
    for name in ("first", "second"):
        sandbox.files.write(f"doomed/{name}", name)
    done = execctl("rm", "doomed/first", "doomed/missing", "doomed/second")
    assert done.returncode == 125
    assert done.stderr.count("doomed/missing") == 1
    assert "first" not in done.stderr
    assert sandbox.files.list("doomed") == []
