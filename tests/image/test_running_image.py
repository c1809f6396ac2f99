"""A look around inside the running image, by the only way in: POST /execute at EXECD_URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Look

LEAN = os.environ.get("EXECD_USER_PACKAGES") == "lean"
DATA_PACKAGES = ["numpy", "pandas", "matplotlib", "sklearn", "sympy"]


def test_the_kernel_is_gvisors(look: Look) -> None:
    assert "Starting gVisor" in look("dmesg")


def test_commands_are_uid_1000_and_have_no_capabilities(look: Look) -> None:
    assert look("id -u; id -g; id -un").split() == ["1000", "1000", "sandbox"]
    capabilities = look("grep ^Cap /proc/self/status")
    assert {line.split()[1] for line in capabilities.splitlines() if "CapBnd" not in line} == {
        "0" * 16
    }


def test_the_root_file_system_is_read_only_and_the_base_dir_is_not(look: Look) -> None:
    root = next(line for line in look("cat /proc/mounts").splitlines() if line.split()[1] == "/")
    assert "ro" in root.split()[3].split(",")
    assert look("pwd; echo content > written; cat written; rm written").split() == [
        "/app",
        "content",
    ]


def test_temporary_files_work_wherever_they_go(look: Look) -> None:
    assert (
        look('python3 -c \'import tempfile; tempfile.TemporaryFile().write(b"x"); print("ok")\'')
        == "ok"
    )
    assert look('f=$(mktemp) && echo ok > "$f" && cat "$f" && rm "$f"') == "ok"


def test_python_and_python3_are_one_interpreter_and_not_execds(look: Look) -> None:
    program = "import os, sys; print(os.path.realpath(sys.executable), sys.prefix)"
    said = {
        look(f"{name} -c '{program}'") for name in ("python", "python3", "/usr/bin/env python3")
    }
    assert len(said) == 1
    assert "/opt/execd" not in said.pop()


@pytest.mark.parametrize("module", ["execd", "aiohttp", "uvloop", "msgspec"])
def test_the_users_python_knows_nothing_of_execd(look: Look, module: str) -> None:
    assert "ModuleNotFoundError" in look(f"python3 -c 'import {module}'", fails=True)


@pytest.mark.parametrize("module", ["execd", "aiohttp", "psutil", "msgspec"])
def test_execds_lent_ipython_brings_no_package_of_execds(look: Look, module: str) -> None:
    """A Python without packages (-S), with the folder that a session of such a Python gets."""
    program = (
        "import sys; sys.path.append('/opt/execd/share/execd/ipython/py311'); import IPython; "
        f"print(IPython.__file__); import {module}"
    )
    said = look(f'python3 -I -S -c "{program}"', fails=True)
    assert said.startswith("/opt/execd/share/execd/ipython/py311/IPython/")
    assert f"ModuleNotFoundError: No module named '{module}'" in said


def test_both_folders_of_lent_ipython_are_there_and_the_newer_is_compiled(look: Look) -> None:
    folder = "/opt/execd/share/execd/ipython"
    assert look(f"cd {folder} && ls -d py*/IPython").split() == ["py311/IPython", "py39/IPython"]
    assert look(f"ls {folder}/py311/IPython/__pycache__/__init__.*.pyc")


def test_the_users_python_has_ipython(look: Look) -> None:
    assert look("python3 -c 'import IPython; print(\"ok\")'") == "ok"


@pytest.mark.parametrize("module", DATA_PACKAGES)
def test_data_packages_are_in_the_full_image_and_only_there(look: Look, module: str) -> None:
    found = look(
        "python3 -c 'import importlib.util; "
        f'print(importlib.util.find_spec("{module}") is not None)\''
    )
    assert found == str(not LEAN)


def test_no_program_acts_as_another_user(look: Look) -> None:
    """Neither setuid nor setgid. The second name shows that the command finds files."""
    found = look("find / -xdev \\( -perm /6000 -o -path /usr/bin/env \\) 2>/dev/null || true")
    assert found == "/usr/bin/env"


def test_there_is_no_compiler(look: Look) -> None:
    assert look("command -v gcc || command -v cc || echo none") == "none"


def test_bytecode_is_there_for_the_library_and_the_packages(look: Look) -> None:
    """A read-only root allows no caching: every process that needs a missing .pyc compiles the
    module anew."""
    program = (
        "import asyncio, importlib.util, json, os, pathlib, sys\n"
        "sources = [*map(pathlib.Path, sys.argv[1:])]\n"
        "sources = [s for folder in sources for s in folder.rglob('*.py')]\n"
        "for package in (asyncio, json): "
        "sources += pathlib.Path(package.__file__).parent.glob('*.py')\n"
        "print(len(sources) > 100, [str(s) for s in sources if not "
        "os.path.exists(importlib.util.cache_from_source(s))])\n"
    )
    own = f'/opt/execd/bin/python3 -c "{program}" /opt/execd/app /opt/execd/lib/python3.13'
    assert look(own) == "True []"
    ipython = look("python3 -c 'import IPython; print(IPython.__path__[0])'")
    assert look(f'python3 -c "{program}" {ipython}') == "True []"


def test_pip_is_the_users_and_its_build_settings_are_gone(look: Look) -> None:
    assert look("python3 -m pip --version").startswith("pip ")
    assert (
        look("ls /etc/pip.conf /run/pip/pip.conf /run/pip/ca.pem", fails=True).count("No such file")
        == 3
    )


def test_files_for_servers_of_opensandbox_are_there(look: Look) -> None:
    """Whole: the archive begins behind the program, so a part would not unpack. A command sees
    root's folders as another user's, and so cannot unpack itself."""
    size, magic = look(
        "cd / && test -x bootstrap.sh && test -x execd && stat -c %s execd; "
        "head -c 4 /execd | tail -c 3"
    ).split()
    assert int(size) > 20_000_000
    assert magic == "ELF"
