from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from execd import own_tree

if TYPE_CHECKING:
    from pathlib import Path


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
