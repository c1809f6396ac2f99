"""A root daemon with ``--run-as``, and user code that owns directories on the daemon's paths."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_server import start as start  # a fixture
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

USER = 1234
AS_USER = "--run-as=1234:5678", "--python=/usr/bin/python3", "--sessions=off"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own folders are closed. Not in /tmp, because some
    tests hide /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def of_user(place: Path) -> Path:
    """A folder that the user owns and may change at will."""
    made = place / "of-user"
    made.mkdir()
    os.chown(made, USER, USER)
    return made


def link(path: Path, target: Path) -> None:
    """A link that belongs to the user."""
    path.symlink_to(target)
    os.lchown(path, USER, USER)


def ends_with(start: Any, *arguments: str) -> tuple[int, str]:
    """The exit code and the last line of a daemon that cannot start."""
    daemon = start(*AS_USER, *arguments)
    exit_code = daemon.process.wait(20)
    return exit_code, daemon.log_path.read_text().rstrip().rpartition("\n")[2]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of everything below a folder, and of the folder itself."""
    found = [folder, *folder.rglob("*")]
    return {str(path): (info.st_uid, info.st_mode) for path in found if (info := path.lstat())}


# The base dir.


def test_a_base_dir_that_the_user_of_run_as_cannot_reach_is_exit_code_2_and_names_the_directory(
    start: Any, place: Path
) -> None:
    closed = place / "closed"
    (closed / "base").mkdir(parents=True)
    closed.chmod(0o700)
    assert ends_with(start, f"--base-dir={closed}/base") == (
        2,
        f"execd: --base-dir: {closed}/base: Permission denied for the user of --run-as 1234:5678",
    )
    assert ends_with(start, f"--base-dir={closed}/missing/base") == (
        2,
        f"execd: --base-dir: {closed}/missing/base: "
        f"Permission denied at {closed}/missing for the user of --run-as 1234:5678",
    )


def test_a_base_dir_that_the_user_of_run_as_cannot_enter_is_exit_code_2(
    start: Any, place: Path
) -> None:
    (place / "base").mkdir(mode=0o700)
    assert ends_with(start, f"--base-dir={place}/base") == (
        2,
        f"execd: --base-dir: {place}/base: Permission denied for the user of --run-as 1234:5678",
    )


def test_a_link_of_the_user_gives_him_no_new_directory_elsewhere(
    start: Any, place: Path, of_user: Path
) -> None:
    """User code leaves the next daemon a base dir that is a link to nothing. Root could create a
    file at the link's target."""
    link(of_user / "base", place / "elsewhere")
    exit_code, words = ends_with(start, f"--base-dir={of_user}/base")
    assert (exit_code, "--base-dir" in words) == (2, True)
    assert not (place / "elsewhere").exists()


def test_a_link_of_the_user_on_the_way_gives_him_no_new_directory_elsewhere(
    start: Any, place: Path, of_user: Path
) -> None:
    (place / "elsewhere").mkdir()
    link(of_user / "link", place / "elsewhere")
    assert ends_with(start, f"--base-dir={of_user}/link/base")[0] == 2
    assert os.listdir(place / "elsewhere") == []


def test_links_of_root_lead_to_a_base_dir_as_ever(start: Any, place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    daemon = start(*AS_USER, f"--base-dir={place}/link/base")
    daemon.wait_ready()
    assert daemon.execute("pwd -P; stat -c %u:%g .")["stdout"] == f"{place}/real/base\n1234:5678\n"
    assert daemon.stop() == 128 + signal.SIGTERM


# The temporary dir: without a usable /tmp the temporary dir lies in the base dir.


WITHOUT_TMP = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    # The same /tmp, read-only: this work tree may lie there.
    'mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp && exec "$@"',
    "sh",
]


@pytest.fixture
def daemon_without_tmp(start: Any, place: Path, of_user: Path) -> Any:
    (place / "daemon").mkdir()  # pytest's own folder lies in /tmp
    places = f"--base-dir={of_user}", f"--state-dir={place}/state"
    daemon = start(*AS_USER, *places, folder=place / "daemon", under=WITHOUT_TMP)
    daemon.wait_ready()
    return daemon


def test_temporary_dir_is_made_by_the_user_that_commands_run_as(
    daemon_without_tmp: Any, of_user: Path
) -> None:
    for _ in range(2):
        assert daemon_without_tmp.execute(
            "echo $TMPDIR; stat -c '%u %a' $TMPDIR; mktemp >/dev/null && rm -rf $TMPDIR"
        )["stdout"] == (f"{of_user}/.tmp\n{USER} 1777\n")
    assert daemon_without_tmp.stop() == 128 + signal.SIGTERM


# The state dir.


def test_a_link_of_the_user_in_the_place_of_the_state_dir_leads_root_nowhere(
    start: Any, place: Path, of_user: Path
) -> None:
    """Root would put a lock and links there, replace a python, and remove every file in logs."""
    victim = place / "victim"
    for name in "bin", "logs":
        (victim / name).mkdir(parents=True)
    (victim / "bin/python3").write_text("a program")
    (victim / "logs/of-another-service").write_text("a log")
    before = listing(victim)
    link(of_user / "state", victim)
    exit_code, words = ends_with(start, f"--base-dir={place}/base", f"--state-dir={of_user}/state")
    assert exit_code == 2
    assert words == f"execd: --state-dir: {of_user}/state: a link that belongs to uid {USER}"
    assert listing(victim) == before


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_a_link_that_takes_the_place_of_the_state_dir_later_leads_root_nowhere(
    start: Any, place: Path, of_user: Path, namespaces: str
) -> None:
    victim = place / "victim"
    (victim / "bin").mkdir(parents=True)
    (victim / "bin/python3").write_text("a program")
    before = listing(victim)
    above = of_user / "above"
    above.mkdir()
    os.chown(above, USER, USER)
    daemon = start(
        *AS_USER,
        f"--base-dir={of_user}/base",
        f"--state-dir={above}/state",
        f"--namespaces={namespaces}",
    )
    daemon.wait_ready()
    daemon.execute(f"cd {of_user} && mv above moved && mkdir above && ln -s {victim} above/state")
    wait_until(lambda: "a link that belongs to uid" in daemon.log_path.read_text(), 20)
    assert listing(victim) == before
    assert daemon.execute("echo served")["stdout"] == "served\n"
    assert daemon.stop() == 128 + signal.SIGTERM


def test_a_state_dir_of_the_user_that_commands_run_as_is_exit_code_2(
    start: Any, place: Path, of_user: Path
) -> None:
    assert ends_with(start, f"--base-dir={place}/base", f"--state-dir={of_user}") == (
        2,
        f"execd: --state-dir: {of_user}: it belongs to uid {USER}, which commands run as",
    )


def test_only_root_can_write_to_the_state_dir_of_a_root_daemon(start: Any, place: Path) -> None:
    """An emptyDir is open to all: a user who renames ``logs`` chooses the files that root writes
    and removes."""
    state = place / "state"
    state.mkdir()
    state.chmod(0o777)
    daemon = start(*AS_USER, f"--base-dir={place}/base", f"--state-dir={state}", "--namespaces=off")
    daemon.wait_ready()
    assert (
        daemon.execute(f"cd {state} && mv logs away; echo >planted; python3 -c 'print(1)'")[
            "stdout"
        ]
        == "1\n"
    )
    assert {path.name for path in state.iterdir()} == {"bin", "journal", "lock", "logs"}
    assert daemon.stop() == 128 + signal.SIGTERM
