"""The folder of bash sessions: removed with the daemon, or by the next daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.engine.bash_sessions import LOCK, PREFIX, make_folder, remove_leftovers

if TYPE_CHECKING:
    from pathlib import Path

DAEMON = """
import sys
from execd.engine.bash_sessions import make_folder
print(make_folder(sys.argv[1]).path, flush=True)
sys.stdin.read()
"""


def test_folder_of_a_killed_daemon_is_removed_and_that_of_a_live_daemon_stays(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        path = daemon.stdout.readline().strip()
        remove_leftovers(str(tmp_path))
        assert os.path.isdir(path)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
    os.mkdir(f"{path}/session")
    remove_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_folder_ends_with_its_content_and_its_lock(tmp_path: Path) -> None:
    folder = make_folder(str(tmp_path))
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    (tmp_path / folder.path / "state").write_text("A=secret")
    folder.remove()
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder.lock)


def test_what_is_no_leftover_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / LOCK).write_text("")
    (tmp_path / f"{PREFIX}link").symlink_to("elsewhere")
    (tmp_path / f"{PREFIX}file").write_text("")
    (tmp_path / f"{PREFIX}without-lock").mkdir()
    (tmp_path / f"{PREFIX}odd").mkdir()
    (tmp_path / f"{PREFIX}odd" / LOCK).symlink_to(tmp_path / "elsewhere" / LOCK)
    before = sorted(os.listdir(tmp_path))
    remove_leftovers(str(tmp_path))
    remove_leftovers(f"{tmp_path}/missing")
    assert sorted(os.listdir(tmp_path)) == before
