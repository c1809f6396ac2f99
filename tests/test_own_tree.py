from __future__ import annotations

import re
import sys
from pathlib import Path

from execd import config, own_tree

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
