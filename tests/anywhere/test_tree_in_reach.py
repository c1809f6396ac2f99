"""A tree that the commands' user may write or move: what the walls hold, and what is found at the
start without walls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.anywhere.conftest import PLACES, TREE, in_image, serving
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.anywhere.conftest import Daemon

EXIT_CANNOT_START = 1
ANOTHER_UID = 4321
# Makes a directory of the commands' user, and has the single file unpack there.
UNPACK_BELOW = """
import os, sys
os.mkdir("/state/opt")
os.environ["EXECD_UNPACK_DIR"] = "/state/opt"
os.execv(sys.argv[1], sys.argv[1:])
"""
# Tries to move the tree's parent, first as a command may, then in namespaces of its own.
MOVE_PARENT = """
import os
for flags in 0, os.CLONE_NEWUSER | os.CLONE_NEWNS:
    if os.fork():
        os.wait()
        continue
    try:
        if flags:
            os.unshare(flags)
        os.rename("/state/opt", "/state/moved")
        print("moved", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("uid", [0, 1000])
def test_directory_above_the_tree_cannot_be_renamed(uid: int, place: str) -> None:
    single = Path(os.environ["EXECD_SINGLE"])
    python = f"/opt/execd/{os.path.relpath(str(TREE), single.parent)}/bin/python3"
    command = in_image("scratch", uid, place, {"/opt/execd": str(single.parent)})
    command += [python, "-c", UNPACK_BELOW, f"/opt/execd/{single.name}"]
    with serving("scratch", uid, place, command) as daemon:
        assert protection(daemon) is True
        done = daemon.execute(argv=["python3", "-c", MOVE_PARENT])
        busy, in_namespaces = done["stdout"].splitlines()
        assert busy == os.strerror(16), done  # EBUSY
        # Natively the kernel locks the mount; gVisor refuses the namespaces.
        assert in_namespaces in {os.strerror(number) for number in (1, 16)}, done  # EPERM, EBUSY


def protection(daemon: Daemon) -> bool:
    held: bool = daemon.client.get("/v1/capabilities").json()["protections"]["tree_unchangeable"]
    return held


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's are closed."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def tree(folder: Path) -> Path:
    shutil.copytree(str(TREE), folder / "tree", symlinks=True)
    return folder / "tree"


def settings(folder: Path, uid: int = 0) -> list[str]:
    """Without walls, whatever the kernel allows."""
    for name in "base", "state":
        (folder / name).mkdir(exist_ok=True)
        os.chown(folder / name, uid, uid)
    return [f"--base-dir={folder}/base", f"--state-dir={folder}/state", "--namespaces=off"]


def refusal(tree: Path, folder: Path) -> str:
    """The log of a start that is refused."""
    done = subprocess.run(
        [tree / "bin/execd", "serve", "--port=0", *settings(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_CANNOT_START, done
    return done.stderr


def test_changed_tree_in_reach_starts_no_daemon_and_no_warden_without_walls(
    tree: Path, folder: Path
) -> None:
    changed = tree / "app/execd/kernel/zygote.py"
    with serving("debian12", 0, "native", [str(tree / "bin/execd")], settings(folder)) as daemon:
        assert protection(daemon) is False
        done = daemon.execute(command=f"echo '# changed' >>{changed}")
        assert done["exit_code"] == 0, done
        [warden] = psutil.Process(daemon.pid).children()
        warden.send_signal(signal.SIGKILL)
        # Without the check the next warden would start, and the daemon would log nothing of this.
        wait_until(lambda: "cannot start a warden" in daemon.log.read_text())
        assert str(changed) in daemon.log.read_text()
        assert daemon.client.get("/readyz").status_code == 503
    log = refusal(tree, folder)
    assert f'"step":"tree","path":"{changed}"' in log
    assert "not the digest of" in log


def test_tree_written_in_part_starts_no_daemon_without_walls(tree: Path, folder: Path) -> None:
    (tree / "app/execd/kernel/worker.py").write_text("")
    assert "app/execd/kernel/worker.py" in refusal(tree, folder)


def test_tree_of_root_is_out_of_reach_of_another_user_without_walls(
    tree: Path, folder: Path
) -> None:
    with (tree / "app/execd/kernel/zygote.py").open("a") as file:
        file.write("# not looked at, because the commands' user could not have written this\n")
    command = ["setpriv", f"--reuid={ANOTHER_UID}", f"--regid={ANOTHER_UID}", "--clear-groups"]
    command += [str(tree / "bin/execd")]
    with serving(
        "debian12", ANOTHER_UID, "native", command, settings(folder, ANOTHER_UID)
    ) as daemon:
        assert protection(daemon) is True
