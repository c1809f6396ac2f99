from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from execd import config, own_tree

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCHER = Path(__file__).parents[1] / "image" / "tree" / "launcher.c"


def test_tree_is_the_prefix_whose_app_is_this_package(tmp_path: Path) -> None:
    package = tmp_path / "execd/app/execd"
    package.mkdir(parents=True)
    (tmp_path / "link").symlink_to("execd")
    prefix = str(tmp_path / "execd")
    assert own_tree.root(prefix, str(package)) == prefix
    assert own_tree.root(str(tmp_path / "link"), str(package)) == str(tmp_path / "link")
    assert own_tree.root(str(tmp_path), str(package)) is None
    assert own_tree.root(prefix, str(tmp_path / "elsewhere/execd")) is None


def test_installation_by_pip_is_no_tree() -> None:
    assert own_tree.root() is None


def test_own_python_is_the_trees_or_that_of_this_process() -> None:
    assert own_tree.own_python("/opt/execd") == "/opt/execd/bin/python3"
    assert own_tree.own_python(None) == sys.executable


def test_no_setting_has_a_name_that_the_launcher_gives_to_variables_of_the_image() -> None:
    [prefix] = re.findall(r'PREFIX\[\] = "(\w+)"', LAUNCHER.read_text())
    assert f'PREFIX = "{prefix}"' in LAUNCHER.with_name("sitecustomize.py").read_text()
    names = {config.environment_name(name) for name in config.Config.__struct_fields__}
    assert "EXECD_IMAGE_ENV" in names
    assert [name for name in names if name.startswith(prefix)] == []


FILES = "app/__main__.py", "app/execd/__pycache__/cli.cpython-313.pyc", "bin/execd", "lib/ld.so"
ANOTHER_UID = 4321


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "above/tree"
    for name in FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"content of {name}")
    lines = (
        f"{hashlib.sha256((tree / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES
    )
    (tree / own_tree.DIGESTS).write_text("".join(lines))
    return tree


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:-1])


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        *((cut, name, "changed") for name in FILES),
        (replace_by_a_pipe, "lib/ld.so", "changed"),
        (Path.unlink, "bin/execd", "missing"),
        (Path.touch, "app/sitecustomize.py", "not in"),
        (Path.unlink, "sha256sums", "No such file"),
    ],
)
def test_check_names_the_file_that_is_not_as_it_was_built(
    tree: Path, change: Callable[[Path], None], name: str, reason: str
) -> None:
    change(tree / name)
    with pytest.raises(OSError, match=reason) as caught:
        own_tree.check(str(tree))
    assert caught.value.filename == str(tree / name)


def test_check_of_a_list_that_was_cut_names_a_file(tree: Path) -> None:
    digests = tree / own_tree.DIGESTS
    digests.write_text(digests.read_text()[:-40])
    with pytest.raises(OSError, match=r"not in|missing"):
        own_tree.check(str(tree))


def test_check_allows_bytecode_of_other_versions_and_what_sessions_run(tree: Path) -> None:
    (tree / "app/execd/__pycache__/cli.cpython-312.pyc").touch()
    (tree / "share").mkdir()
    (tree / "share/file").touch()
    own_tree.check(str(tree))


def test_tree_is_in_reach_of_its_owner_of_root_and_of_a_user_who_may_move_it(tree: Path) -> None:
    assert own_tree.is_in_reach(str(tree), tree.stat().st_uid)
    assert own_tree.is_in_reach(str(tree), 0)
    assert not own_tree.is_in_reach(str(tree), ANOTHER_UID)
    (tree / "lib").chmod(0o777)
    assert own_tree.is_in_reach(str(tree), ANOTHER_UID)
    (tree / "lib").chmod(0o755)
    tree.parent.chmod(0o777)
    assert own_tree.is_in_reach(str(tree), ANOTHER_UID)
    tree.parent.chmod(0o1777)
    assert not own_tree.is_in_reach(str(tree), ANOTHER_UID)
    assert own_tree.is_in_reach(str(tree / "gone"), ANOTHER_UID)


def test_movable_parents_are_those_above_the_tree_that_the_user_can_rename(tree: Path) -> None:
    assert own_tree.movable_parents(str(tree), ANOTHER_UID) == []
    tree.parent.parent.chmod(0o777)
    assert own_tree.movable_parents(str(tree), ANOTHER_UID) == [str(tree.parent)]
    assert str(tree) not in own_tree.movable_parents(str(tree), 0)
    outermost, *_ = own_tree.movable_parents(str(tree), 0)
    assert Path(outermost).parent == Path("/")
