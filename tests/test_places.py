from __future__ import annotations

import os
import pwd
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from execd import config, places
from execd.config import ConfigError, load

if TYPE_CHECKING:
    from pathlib import Path

    from execd.config import Config

OTHER_UID = 54321


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the image's root, with a WORKDIR that can be written."""
    monkeypatch.setattr(places, "BASE_DIR", str(tmp_path / "workspace"))
    (tmp_path / "app").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm").chmod(0o1777)
    monkeypatch.chdir(tmp_path / "app")
    return tmp_path


def choose(image: Path, tree: str = "/opt/execd", **flags: Any) -> Config:
    home = {"HOME": str(image / "home")}
    state_dirs = [str(image / place) for place in ("lib/execd", "run/execd", "shm/execd-0")]
    return places.choose(load(flags, home, in_tree=True), home, tree, state_dirs)


def found(image: Path, **flags: Any) -> tuple[str, str]:
    """The two directories, below the image."""
    chosen = choose(image, **flags)
    return (
        os.path.relpath(chosen.base_dir, image),
        os.path.relpath(chosen.state_dir, image),
    )


def close(folder: Path) -> None:
    """Nobody makes a file below, not even root: a file has the place of the folder."""
    folder.write_text("")


def test_base_dir_in_a_tree_is_the_workdir(image: Path) -> None:
    assert found(image) == ("app", "lib/execd")
    assert (image / "lib/execd").stat().st_mode & 0o7777 == 0o711


def test_base_dir_is_the_next_writable_place_where_the_workdir_is_none(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert found(image) == ("home", "lib/execd")
    (image / "workspace").mkdir()
    assert found(image) == ("workspace", "lib/execd")
    (image / "workspace").rmdir()
    (image / "home").rmdir()
    assert found(image) == ("lib/execd-workspace", "lib/execd")
    assert found(image, state_dir=str(image / "mine")) == ("mine-workspace", "mine")


def test_workdir_that_commands_cannot_write_is_no_base_dir(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    closed = str(image / "app")
    monkeypatch.setattr(
        os, "access", lambda path, *rest, **named: path != closed and access(path, *rest, **named)
    )
    assert found(image) == ("home", "lib/execd")


def test_workdir_that_is_gone_and_one_inside_the_tree_are_no_base_dir(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(image, tree=str(image / "app"))[0] == "home"
    (image / "gone").mkdir()
    monkeypatch.chdir(image / "gone")
    (image / "gone").rmdir()
    assert found(image)[0] == "home"


def test_explicit_directories_win_in_a_tree(image: Path) -> None:
    base_dir, state_dir = str(image / "mine"), str(image / "state")
    assert found(image, base_dir=base_dir, state_dir=state_dir) == ("mine", "state")
    assert found(image, base_dir=base_dir) == ("mine", "lib/execd")
    assert not (image / "state").exists(), "only the directory that execd chooses is made here"


def test_state_dir_is_the_first_place_that_can_be_made(image: Path) -> None:
    close(image / "lib")
    assert found(image) == ("app", "run/execd")
    (image / "run/execd").rmdir()
    (image / "run").rmdir()
    close(image / "run")
    assert found(image) == ("app", "shm/execd-0")
    assert (image / "shm/execd-0").stat().st_mode & 0o7777 == 0o700
    assert found(image) == ("app", "shm/execd-0"), "at the next start, too"


def test_state_dir_never_lies_inside_the_base_dir_nor_the_base_dir_or_the_tree_inside_it(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(image, base_dir=str(image / "lib")) == ("lib", "run/execd")
    assert found(image, base_dir=str(image / "lib/execd/x")) == ("lib/execd/x", "run/execd")
    assert found(image, tree=str(image / "lib/execd/tree")) == ("app", "run/execd")
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError, match="is inside the base dir"):
        found(image, state_dir=str(image / "home/state"))
    with pytest.raises(ConfigError, match=f"lib/execd: this place and the base dir {image} lie"):
        found(image, base_dir=str(image))


def test_start_without_a_place_for_the_state_dir_lists_each_place_with_the_reason(
    image: Path,
) -> None:
    close(image / "lib")
    close(image / "run")
    (image / "shm/execd-0").mkdir(0o755)
    with pytest.raises(ConfigError) as raised:
        choose(image)
    message = str(raised.value)
    assert message.startswith("--state-dir: no place for the state dir: ")
    for place, reason in {
        "lib/execd": "Not a directory",
        "run/execd": "Not a directory",
        "shm/execd-0": "has mode 0755, so others may have put files there; remove it",
    }.items():
        assert f"{image}/{place}: {reason}" in message, place


def test_daemon_without_a_place_ends_with_2() -> None:
    """Each place is inside this base dir."""
    command = [sys.executable, "-m", "execd", "serve", "--base-dir=/", "--state-dir=auto"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == config.EXIT_USAGE
    assert ended.stderr.startswith("execd: --state-dir: no place for the state dir: ")
    for place in places.STATE_DIRS:
        reason = "this place and the base dir / lie one inside the other"
        assert f"{place}: {reason}" in ended.stderr


@pytest.mark.root
def test_planted_state_dir_is_refused(image: Path) -> None:
    close(image / "lib")
    close(image / "run")
    planted = image / "shm/execd-0"
    planted.mkdir(0o700)
    os.chown(planted, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match=f"belongs to uid {OTHER_UID}, which may have planted"):
        choose(image)
    planted.rmdir()
    planted.symlink_to(image / "home")
    with pytest.raises(ConfigError, match="no directory, but another file has the name"):
        choose(image)


@pytest.mark.root
def test_planted_base_dir_beside_the_state_dir_is_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (image / "home").rmdir()
    planted = image / "mine-workspace"
    planted.mkdir()
    os.chown(planted, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match=f"mine-workspace belongs to uid {OTHER_UID}"):
        choose(image, state_dir=str(image / "mine"))
    assert found(image, state_dir=str(image / "mine"), run_as=str(OTHER_UID))[0] == "mine-workspace"


@pytest.mark.root
def test_places_are_those_of_the_user_of_the_commands(image: Path) -> None:
    user = pwd.getpwnam("nobody")
    for folder in (*image.parents, image):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    run_as = f"{user.pw_uid}:{user.pw_gid}"
    os.chown(image / "home", user.pw_uid, user.pw_gid)
    assert found(image, run_as=run_as) == ("home", "lib/execd")
    assert (image / "lib/execd").stat().st_mode & 0o7777 == 0o711, "they pass through to bin"


def test_outside_a_tree_the_directories_are_where_they_were(image: Path) -> None:
    outside = places.choose(load({}, {}), {}, None)
    assert outside == load({}, {})
    assert outside.base_dir == str(image / "app/workspace")
    assert config.AUTO not in (outside.base_dir, outside.state_dir)
