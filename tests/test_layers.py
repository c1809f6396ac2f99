"""Imports go downwards only, and each module can be imported alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "execd").rglob("*.py"))
    if path.name != "__main__.py"
}

# What each part may import of execd, besides itself. Further down is further in.
BASE = {"execd", "execd.model", "execd.errors", "execd.config", "execd.logging_setup", "execd.metrics"}
ALLOWED = {
    "execd.proc": {"execd.model", "execd"},
    "execd.files": {"execd.errors", "execd.model", "execd"},
    "execd.sessions": {"execd.proc", *BASE},
    "execd.engine": {"execd.sessions", "execd.files", "execd.proc", *BASE},
    "execd.api": {"execd.engine", *BASE},
    "execd.server": {"execd.api", "execd.engine", *BASE},
    "execd.cli": {"execd.server", *BASE},
}
# The words of all layers know each other, and nothing else.
ALLOWED |= dict.fromkeys(BASE, BASE)

FORBIDDEN_OUTSIDE = {
    "execd.engine": {"aiohttp"},
    "execd.files": {"aiohttp"},
    "execd.proc": {"aiohttp"},
    "execd.model": {"aiohttp", "asyncio"},
    "execd.errors": {"aiohttp", "asyncio"},
    "execd.config": {"aiohttp", "asyncio"},
}
PURE = {
    "execd.model", "execd.errors", "execd.proc.messages", "execd.engine.executions.exit_status", "execd.warden.tree_kill", "execd.engine.output.head_tail", "execd.warden.scan_schedule", "execd.engine.executions.admission",
    "execd.engine.executions.registry", "execd.engine.output.event_index", "execd.engine.in_flight", "execd.api.wire.connections", "execd.engine.sessions.session_state", "execd.kernel.frames", "execd.engine.sessions.worker_messages",
}  # fmt: skip
DIALECTS = ["execd.api.python_runtime.handlers", "execd.api.v1", "execd.api.sandboxd", "execd.api.opensandbox"]


def imported(path: Path) -> set[str]:
    """Absolute names of all modules imported anywhere in the file, also for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in MODULES)
    return names


def part(module: str) -> str:
    """The layer: a package of execd, or a module beside them."""
    return ".".join(module.split(".")[:2])


def test_every_module_belongs_to_a_layer() -> None:
    assert {part(module) for module in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_only(module: str) -> None:
    own = part(module)
    of_execd = {part(name) for name in imported(MODULES[module]) if name.split(".")[0] == "execd"}
    assert of_execd <= ALLOWED[own] | {own}


@pytest.mark.parametrize("module", MODULES)
def test_layers_know_nothing_of_the_wire_below_it(module: str) -> None:
    outside = {name.split(".")[0] for name in imported(MODULES[module])}
    assert not outside & FORBIDDEN_OUTSIDE.get(part(module), set())


@pytest.mark.parametrize("module", sorted(PURE & set(MODULES)))
def test_pure_modules_have_no_loop_no_processes_and_no_files(module: str) -> None:
    assert not imported(MODULES[module]) & {"asyncio", "subprocess", "socket", "threading", "pathlib", "shutil"}


def test_dialects_never_import_each_other() -> None:
    for dialect in DIALECTS:
        for module in MODULES:
            if module == dialect or module.startswith(dialect + "."):
                others = [
                    name
                    for name in imported(MODULES[module])
                    for other in DIALECTS
                    if other != dialect and (name == other or name.startswith(other + "."))
                ]
                assert others == [], module


def python(program: str, *flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_warden_is_the_standard_library_and_the_pure_parts_it_shares() -> None:
    text = python(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import execd.warden.main; print(*sys.modules)", "-I", "-S")
    modules = set(text.split())
    assert {name for name in modules if name.split(".")[0] == "execd"} == {
        "execd", "execd.proc", "execd.warden.main", "execd.proc.spawn", "execd.proc.process_tree", "execd.proc.channel", "execd.warden.tree_kill", "execd.proc.messages",
        "execd.warden.job", "execd.proc.memory", "execd.proc.memory_meter", "execd.warden.adoption", "execd.warden.rest", "execd.warden.fork_bombs", "execd.proc.task_meter", "execd.warden.brake", "execd.warden.spawn_watch", "execd.proc.self_process", "execd.warden.scan_schedule", "execd.warden.supervisor", "execd.proc.process_caps",
    }  # fmt: skip
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
    assert {name.split(".")[0] for name in modules} <= set(sys.stdlib_module_names) | {"execd", "__main__"}


def test_every_module_can_be_imported_alone() -> None:
    """Each in a fresh set of modules, so that no cycle hides behind an earlier import."""
    program = f"""
import importlib, sys
sys.path.insert(0, {str(ROOT)!r})
import aiohttp.web, msgspec, click, uvloop, asyncio
for name in {list(MODULES)!r}:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "execd"]:
        del sys.modules[loaded]
    importlib.import_module(name)
print("all")
"""
    assert python(program) == "all\n"


def test_the_command_line_does_not_pay_for_the_server() -> None:
    text = python(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import execd.cli; print(*sys.modules)")
    assert not {"aiohttp", "uvloop"} & set(text.split())
