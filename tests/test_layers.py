"""Imports go downwards only, without circles; each module can be imported alone; and the checker
itself finds violations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.layer_rules import (
    KERNEL_FOR_THE_DAEMON,
    KERNEL_FOR_THE_WARDEN,
    LAYERS,
    WARDEN_MAY_IMPORT,
    violations,
    violations_of_wings,
)

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "execd").rglob("*.py"))
}
SOURCES = {module: path.read_text() for module, path in MODULES.items()}
WINGS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts[2:]): path.read_text()
    for path in sorted(ROOT.glob("wings/*/execd_*/**/*.py"))
}


def test_execd_keeps_every_rule_of_its_layers() -> None:
    assert violations(SOURCES) == []


def test_the_table_is_a_ladder() -> None:
    rows = list(LAYERS)
    for index, (row, layer) in enumerate(LAYERS.items()):
        assert set(layer.below.split()) <= set(rows[:index]), (
            f"{row} names a layer that is not below"
        )


PLANTED = {
    "upward": (
        "execd.files.read",
        "from execd.engine.engine import Engine",
        "imports execd.engine.engine, which is not below",
    ),
    "upward, for types only": (
        "execd.proc.child",
        "if TYPE_CHECKING:\n    from execd.engine.engine import Engine",
        "imports execd.engine.engine, which is not below",
    ),
    "upward, in a function": (
        "execd.files.read",
        "def late():\n    import execd.server",
        "imports execd.server, which is not below",
    ),
    "upward, in a string": (
        "execd.proc.namespaces",
        "PROGRAM = 'from execd.warden import main'",
        "imports execd.warden.main, which is not below",
    ),
    "relative": ("execd.files.read", "from . import write", "a relative import"),
    "one dialect to another": (
        "execd.api.v1.files",
        "from execd.api.python_runtime import reply",
        "a dialect imports another, execd.api.python_runtime.reply",
    ),
    "a library of another layer": (
        "execd.engine.engine",
        "import aiohttp",
        "imports aiohttp, which is not for this layer",
    ),
    "the warden beyond the standard library": (
        "execd.warden.job",
        "import msgspec",
        "imports msgspec, which is not for this layer",
    ),
    "the warden beyond its part of proc": (
        "execd.warden.job",
        "from execd.proc import client",
        "imports execd.proc.client, which the warden does not load",
    ),
    "below the warden, beyond the standard library": (
        "execd.proc.messages",
        "from execd.model import Limits",
        "imports execd.model, and the warden loads the standard library only",
    ),
    "the kernel beyond its folder": (
        "execd.kernel.worker",
        "from execd.proc import spawn",
        "imports execd.proc.spawn, which is not below",
    ),
    "the daemon into the kernel": (
        "execd.engine.sessions.session",
        "from execd.kernel import shell",
        "imports execd.kernel.shell, which runs in the user's interpreter only",
    ),
    "pure, with a clock": ("execd.files.glob", "import time", "pure, and imports time"),
    "pure, with a file": ("execd.files.glob", "open('/proc/self/stat')", "pure, and calls open"),
    "pure, with the system": (
        "execd.files.glob",
        "import os\nos.getpid()",
        "pure, and uses os.getpid",
    ),
    "pure, and nobody checks": (
        "execd.files.read",
        "# Pure.",
        "calls something pure, and is not in the list",
    ),
    "a name of another class": (
        "execd.files.write",
        "class Config: ...",
        "the class Config is also execd.config's",
    ),
    "a circle of modules": (
        "execd.files.paths",
        "from execd.files import read",
        "the module is part of a circle of imports",
    ),
    "a circle of folders": (
        "execd.engine.output.log",
        "from execd.engine.executions import registry",
        "the folder is part of a circle of imports",
    ),
}
"""The planted violation, the place, and the sentence that the checker finds."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    module, line, sentence = PLANTED[name]
    found = violations({**SOURCES, module: f"{SOURCES[module]}\n{line}\n"})
    culprit = module.rpartition(".")[0] if "folders" in name else module
    assert f"{culprit}: {sentence}" in found


def test_the_wings_keep_the_rules_that_hold_for_them_too() -> None:
    assert violations_of_wings(WINGS, SOURCES) == []


@pytest.mark.parametrize(
    ("module", "line", "sentence"),
    [
        ("execd_e2b.connect", "import time", "pure, and imports time"),
        ("execd_e2b.connect", "open('/proc/self/stat')", "pure, and calls open"),
        ("execd_sandboxd.grpc_status", "import os\nos.getpid()", "pure, and uses os.getpid"),
        (
            "execd_opensandbox.requests",
            "# Pure.",
            "calls something pure, and is not in the list",
        ),
        (
            "execd_e2b.settings",
            "def late():\n    from execd_e2b.table import make_service",
            "the module is part of a circle of imports",
        ),
        ("execd_e2b.table", "class Config: ...", "the class Config is also execd.config's"),
        (
            "execd_sandboxd.listener",
            "class Sandbox: ...",
            "the class Sandbox is also execd_e2b.sandbox's",
        ),
    ],
)
def test_a_planted_violation_of_a_wing_is_found(module: str, line: str, sentence: str) -> None:
    planted = {**WINGS, module: f"{WINGS[module]}\n{line}\n"}
    assert f"{module}: {sentence}" in violations_of_wings(planted, SOURCES)


def test_a_pure_module_that_is_gone_is_found() -> None:
    left = {name: text for name, text in WINGS.items() if name != "execd_e2b.connect"}
    assert violations_of_wings(left, SOURCES) == [
        "execd_e2b.connect: in the list of pure modules, and does not exist"
    ]


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("execd.utilities.read", "the folder is no layer"),
        ("execd.warden.read", "the file name is also execd.files.read's"),
    ],
)
def test_a_module_in_a_wrong_place_is_found(module: str, sentence: str) -> None:
    assert f"{module}: {sentence}" in violations({**SOURCES, module: ""})


def python(program: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_warden_is_the_standard_library_and_the_parts_that_it_shares() -> None:
    text = python(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "import execd.warden.main; print(*sys.modules)",
        "-I",
        "-S",
    )
    modules = set(text.split())
    of_execd = {name for name in modules if name.split(".")[0] == "execd"}
    assert {name for name in of_execd if name.startswith("execd.proc.")} <= {
        f"execd.proc.{name}" for name in WARDEN_MAY_IMPORT
    }
    assert {".".join(name.split(".")[:2]) for name in of_execd} == {
        "execd",
        "execd.kernel",
        "execd.proc",
        "execd.warden",
    }
    assert {name for name in of_execd if name.startswith("execd.kernel.")} == {
        f"execd.kernel.{name}" for name in KERNEL_FOR_THE_WARDEN
    }
    assert not modules & {
        "asyncio",
        "msgspec",
        "aiohttp",
        "uvloop",
        "click",
        "subprocess",
        "threading",
        "logging",
        "concurrent.futures",
    }
    assert {name.split(".")[0] for name in modules} <= set(sys.stdlib_module_names) | {
        "execd",
        "__main__",
    }


def test_the_daemon_loads_nothing_of_the_kernel_but_its_frames() -> None:
    text = python(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import execd.server; "
        "execd.server.load_api(); print(*sys.modules)"
    )
    loaded = {
        name.removeprefix("execd.kernel.")
        for name in text.split()
        if name.startswith("execd.kernel.")
    }
    assert loaded == KERNEL_FOR_THE_DAEMON


IMPORTS = """
import builtins, importlib, importlib.machinery, sys

executing = []  # the modules whose code runs at present, the innermost last
circles = []
plain_import = builtins.__import__


class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or name.split(".")[0] != PACKAGE:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            executing.append(name)
            try:
                execute(module)
            finally:
                executing.pop()

        spec.loader.exec_module = exec_module
        return spec


def note_import(name, globals=None, locals=None, fromlist=(), level=0):
    assert not level or name.split(".")[0] != PACKAGE, "no relative imports"
    for asked in (name, *(f"{name}.{part}" for part in fromlist or ())):
        if asked in executing:
            circles.append(f"{executing[-1]} imports {asked}, which is not imported yet")
    return plain_import(name, globals, locals, fromlist, level)


sys.path.insert(0, FOLDER)
sys.meta_path.insert(0, Finder())
builtins.__import__ = note_import
for name in NAMES:
    importlib.import_module(name)
print("\\n".join(circles) or "none")
"""


def circles(folder: Path, names: list[str]) -> str:
    """Import the modules of a package, each once. Return the imports of modules whose own import
    is under way: a circle has such an import, whichever of its modules comes first."""
    facts = {"FOLDER": str(folder), "PACKAGE": names[0].split(".")[0], "NAMES": names}
    return python("".join(f"{name} = {value!r}\n" for name, value in facts.items()) + IMPORTS)


def test_every_module_can_be_imported_alone() -> None:
    """No import of a module needs an earlier import of another: all can be imported, and no circle
    makes the order matter."""
    assert circles(ROOT, sorted(set(MODULES) - {"execd.__main__"})) == "none\n"


@pytest.mark.parametrize("names", [["a", "b", "c"], ["c", "b", "a"]])
def test_circle_is_found_whichever_module_comes_first(tmp_path: Path, names: list[str]) -> None:
    planted = {
        "a": "from p.b import thing\nother = 1",
        "b": "import sys\nthing = 1\nimport p.c",
        "c": "from p import a",
    }
    (tmp_path / "p").mkdir()
    (tmp_path / "p/__init__.py").touch()
    for name, text in planted.items():
        (tmp_path / f"p/{name}.py").write_text(text)
    found = circles(tmp_path, ["p", *(f"p.{name}" for name in names)])
    assert found.endswith(", which is not imported yet\n")


def test_the_command_line_does_not_pay_for_the_server() -> None:
    text = python(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import execd.cli; print(*sys.modules)"
    )
    assert not {"aiohttp", "uvloop"} & set(text.split())
