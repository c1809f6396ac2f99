"""The two modules that a wing may import. Their names are a promise to wings of others: a name may
be added here, and a name that leaves breaks wings. The wings of the repository import nothing else
of execd."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from execd.api import wire_api
from execd.engine import engine_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {wire_api.__name__, engine_api.__name__}
WIRE = """
Access BYTES CHUNK_BYTES ConnectionLimits ENGINE EPISODE_HEADER EXPECT_EPISODE_HEADER
ErrorRenderers FACTS FILE_HEADERS FORM GATE
HttpService INSTANCE_HEADER PATH PIECES_BYTES PortContext PortServer Route SocketViewer
TOKEN_HEADERS TOKEN_SUBPROTOCOL TokenGate Turn V1_HTTP_STATUS WireEvent
abort_when_stalled body_chunks cancel_and_wait code_of_http form_events json_reply lease_of
make_http_port multipart note_started origin_of parse_json presented_tokens query_of raw_path_of
read_body replace_surrogates request_id send_events send_file send_stream signal_number
trace_environment trace_id unacknowledged_bytes upload_chunks
"""
ENGINE = """
BashSession CellOptions Change Command Config Conflict DescribedEntry Description DialectName
DisplayEvent DisplayMessage Dropped Engine ErrorCode Excerpt ExecdError Execution ExitReason
ExitedEvent FileKind Heartbeat Internal InvalidArgument Lease MAX_ID
MAX_SESSION_VARIABLES Match NOT_EXECUTABLE_EXIT_CODE NOT_FOUND_EXIT_CODE NamedTerminal News NoSpace
NotFound NotSupported OpenedFile Origin Output PayloadTooLarge PermissionDenied Program
ProgramStarted RangeNotSatisfiable ReadOnly Replacement RequestTimeout ResourceExhausted Restore
Result SearchResult Session State Stream Submission TerminalColumns TerminalRows TerminalSize
Unauthenticated Unavailable Upload Watching argv_program check_environment code_program
incomplete_tail_bytes line_program passwd read_lines read_machine replace_text shell_program
"""
FROZEN = {wire_api: WIRE.split(), engine_api: ENGINE.split()}
MODULES = sorted(ROOT.glob("wings/*/execd_*/**/*.py"))


def names_of(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name != "annotations" and not name.startswith("_")]


EXPORTED = [(module, name) for module in FROZEN for name in names_of(module)]


@pytest.mark.parametrize("module", FROZEN, ids=lambda module: module.__name__)
def test_the_names_for_wings_are_those_that_wings_know(module: ModuleType) -> None:
    assert sorted(names_of(module)) == sorted(FROZEN[module])


@pytest.mark.parametrize(("module", "name"), EXPORTED, ids=lambda part: getattr(part, "name", part))
def test_an_exported_class_or_function_has_a_docstring(module: ModuleType, name: str) -> None:
    found = getattr(module, name)
    if inspect.isclass(found) or inspect.isroutine(found) or inspect.ismodule(found):
        # A class would inherit the docstring of its base, and a dataclass makes one of its fields.
        text = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
        assert text
        assert not text.startswith(f"{name}(")


def imported(source: str) -> Iterator[str]:
    """The modules of all imports: also those for types, and in functions."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                # ``from execd.api import wire_api`` names the module at the end.
                whole = {f"{module}.{alias.name}" for alias in names}
                yield from whole if whole <= MAY_IMPORT else {module}
            case ast.ImportFrom():
                yield "a relative import"


def strangers(source: str, package: str, libraries: set[str]) -> list[str]:
    """What a module of the wing ``package`` imports and may not."""
    known = {package, *libraries} - {"execd"} | sys.stdlib_module_names
    return sorted(
        name
        for name in set(imported(source))
        if name not in MAY_IMPORT and name.partition(".")[0] not in known
    )


def libraries_of(project: str) -> set[str]:
    """The modules of the distributions that the text of a pyproject.toml names."""
    named = tomllib.loads(project)["project"]["dependencies"]
    found = {match[0] for each in named if (match := re.match(r"[\w-]+", each))}
    return {{"protobuf": "google"}.get(name, name) for name in found}


def test_each_wing_is_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[1] for path in MODULES} == {
        path.parent.name for path in ROOT.glob("wings/*/pyproject.toml")
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_wing_imports_of_execd_the_two_modules_only(path: Path) -> None:
    wing = ROOT.joinpath(*path.relative_to(ROOT).parts[:2])
    libraries = libraries_of((wing / "pyproject.toml").read_text())
    assert strangers(path.read_text(), path.relative_to(wing).parts[0], libraries) == []


@pytest.mark.parametrize(
    ("line", "stranger"),
    [
        ("from execd.model import Command", "execd.model"),
        ("import execd.engine.engine", "execd.engine.engine"),
        ("from execd.api import wire_api, routes", "execd.api"),
        ("from execd.engine import engine", "execd.engine"),
        ("if TYPE_CHECKING:\n    from execd.config import Config", "execd.config"),
        ("def late():\n    import execd.errors", "execd.errors"),
        ("import execd", "execd"),
        ("from . import table", "a relative import"),
        ("import click", "click"),
        ("from execd_e2b import table", "execd_e2b"),
    ],
)
def test_an_import_that_a_wing_may_not_have_is_found(line: str, stranger: str) -> None:
    assert strangers(line, "execd_toy", {"execd", "aiohttp"}) == [stranger]


def test_imports_that_a_wing_may_have_are_none_of_these() -> None:
    source = """
import json
from aiohttp import web
from execd.api import wire_api as wire
from execd.engine.engine_api import Command
from execd_toy.port import Settings
"""
    assert strangers(source, "execd_toy", {"execd", "aiohttp"}) == []
