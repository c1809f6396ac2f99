"""Documentation that the code can contradict. Promises have tests, and links have targets. The
reference pages name all settings, limits, exit reasons, errors, routes and capabilities; the
architecture page names all modules."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from execd import cli, config
from execd.api import app
from execd.api.v1.execution_request import LimitsRequest
from execd.api.wire.errors import V1_HTTP_STATUS
from execd.kernel import mime_bundles
from execd.model import ExitReason, Limits
from tests.engine.conftest import running
from tests.waiting import wait_until_async

ROOT = Path(__file__).parent.parent
TEST_NAMES = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text())
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"


def _promises() -> list[str]:
    """The items of behaviour.md's lists, without the remark in parentheses at the end. An item may
    go on in indented lines."""
    text = re.sub(r"\n  (?=\S)", " ", (ROOT / "docs" / "behaviour.md").read_text())
    lines = text.splitlines()
    return [re.sub(r" \(.*\)$", "", line[2:]) for line in lines if line.startswith("* ")]


def _test_name(promise: str) -> str:
    return "test_" + re.sub(r"[^a-z0-9]+", "_", promise.lower()).strip("_")


@pytest.mark.parametrize("promise", _promises())
def test_promise_is_the_name_of_a_test(promise: str) -> None:
    assert _test_name(promise) in TEST_NAMES


def _attacks() -> list[list[str]]:
    """The cells of each row of the threat model's tables of attacks."""
    text = (
        (ROOT / "docs" / "threat-model.md")
        .read_text()
        .partition("\n## Attacks\n")[2]
        .partition("\n##")[0]
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


@pytest.mark.parametrize("row", _attacks(), ids=lambda row: row[0][:60])
def test_attack_has_a_test_or_is_said_not_to_be_defended(row: list[str]) -> None:
    attack, _shapes, _holds, proof = row
    names = re.findall(r"`(test_\w+)`", proof)
    assert names or proof.startswith("not "), attack
    assert set(names) <= TEST_NAMES


def _reference(name: str) -> str:
    return (REFERENCE / name).read_text()


@pytest.mark.parametrize("setting", [field.name for field in msgspec.structs.fields(config.Config)])
def test_setting_is_in_the_reference(setting: str) -> None:
    assert f"| `{config.flag(setting)}` |" in _reference("settings.md")


@pytest.mark.parametrize("setting", ["max_running", "max_queued", "processes"])
def test_help_text_and_reference_say_the_same_of_a_bound(setting: str) -> None:
    [option] = [option for option in cli.serve.params if option.name == setting]
    assert isinstance(option, click.Option)
    help_text = (option.help or "").partition(" [default: ")[0]
    meaning = _reference("settings.md").partition(f"| `{config.flag(setting)}` |")[2].split("|")[1]
    assert meaning.strip().replace("`", "") == help_text


@pytest.mark.parametrize("reason", list(ExitReason))
def test_exit_reason_is_explained(reason: ExitReason) -> None:
    assert f"| `{reason}` |" in _reference("exit-reasons.md")


def test_readme_counts_the_exit_reasons() -> None:
    assert f"one of {len(ExitReason)}\n  [exit reasons]" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", sorted(V1_HTTP_STATUS))
def test_error_is_in_the_reference(code: str) -> None:
    assert re.search(
        rf"^\| `{code}` \| {V1_HTTP_STATUS[code]}\b", _reference("http.md"), re.MULTILINE
    )


def _capability_names(found: dict[str, Any], above: str = "") -> set[str]:
    """The names of the fields, with the names of the objects above."""
    names: set[str] = set()
    for name, value in found.items():
        is_object = isinstance(value, dict)
        names |= _capability_names(value, f"{above}{name}.") if is_object else {above + name}
    return names


async def test_capabilities_and_their_page_have_the_same_fields(tmp_path: Path) -> None:
    async with running(tmp_path, python=sys.executable, sessions="eager") as engine:
        await wait_until_async(lambda: engine.capabilities()["sessions"]["ready"], 60)
        found = engine.capabilities()
    rows = re.findall(r"^\| (`.*?) \|", _reference("capabilities.md"), re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(described) == len(set(described))
    assert set(described) == _capability_names(found)


def test_each_limit_of_a_request_is_in_the_page_of_limits_and_no_other() -> None:
    named = set(re.findall(r"`limits\.(\w+)`", _reference("limits.md")))
    assert named == set(LimitsRequest.__struct_fields__)


def test_the_page_of_limits_names_each_setting_of_a_limit_and_only_settings() -> None:
    settings = set(config.Config.__struct_fields__)
    limits = {name for name in settings if name.startswith("max_") or name.endswith("timeout")}
    limits |= settings & set(Limits.__struct_fields__)
    limits -= {"shutdown_timeout"}  # a limit of the daemon, not of programs and callers
    named = set(re.findall(r"`(--[\w-]+)`", _reference("limits.md")))
    assert {config.flag(name) for name in limits} <= named
    assert named <= {config.flag(name) for name in settings}


@pytest.mark.parametrize("reason", [reason for reason in ExitReason if "limit" in reason.value])
def test_the_page_of_limits_names_each_exit_reason_of_a_limit(reason: ExitReason) -> None:
    assert f"`{reason}`" in _reference("limits.md")


def test_the_page_of_limits_has_the_bounds_of_displays() -> None:
    [row] = re.findall(r"^\| displays of a cell \|.*$", _reference("limits.md"), re.MULTILINE)
    assert f"{mime_bundles.CELL_EVENTS:,}" in row
    assert f"{mime_bundles.CELL_BYTES >> 20} MiB" in row


def _routes() -> list[str]:
    """Method and path of each route, as http.md writes them: without patterns and final slashes."""
    found = set()
    for route in app.routes():
        for stream in "stdout", "stderr":
            path = route.path.replace("{stream:stdout|stderr}", stream)
            path = re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)
            found.add(f"{route.method} {path if path == '/' else path.rstrip('/')}")
    return sorted(found)


@pytest.mark.parametrize("route", _routes())
def test_route_is_in_the_reference(route: str) -> None:
    assert re.search(
        rf"^\| `{re.escape(route)}(/\{{path\}}|\?path=)?` \|", _reference("http.md"), re.M
    )


def _modules() -> dict[str, set[str]]:
    """The modules of each folder of execd."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "execd").rglob("*.py"):
        if path.name != "__init__.py":
            found.setdefault(str(path.parent.relative_to(ROOT)), set()).add(path.name)
    return found


@pytest.mark.parametrize("folder", sorted(_modules()))
def test_architecture_describes_the_modules_of_a_folder(folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition(f"\n## {folder}/\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == _modules()[folder]


def _definitions() -> set[tuple[str, str]]:
    """(class, method) with inherited methods, and (module, function or class)."""
    methods: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    found = set()
    for path in (ROOT / "execd").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            found.add((path.stem, node.name))
            if isinstance(node, ast.ClassDef):
                own = methods.setdefault(node.name, set())
                own |= {item.name for item in node.body if isinstance(item, _FUNCTIONS)}
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    for name in methods:
        above = [name]
        while above:
            ancestor = above.pop()
            found |= {(name, method) for method in methods.get(ancestor, ())}
            above += bases.get(ancestor, ())
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _functions_on_trips() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    trips = page.partition("\n## Four trips\n")[2].partition("\n## ")[0]
    return sorted(set(re.findall(r"`(\w+)\.(?!py`)(\w+)`", trips)))


def test_functions_on_the_four_trips_exist() -> None:
    named = _functions_on_trips()
    assert len(named) > 50
    assert set(named) <= _definitions()


def _links() -> list[tuple[Path, str]]:
    """The link targets inside the project, without links to other sites."""
    return [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if "://" not in target
    ]


@pytest.mark.parametrize(("page", "target"), _links(), ids=lambda value: str(value)[-60:])
def test_link_has_a_target(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    assert file.exists()
    if anchor:
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        assert anchor in {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    """The anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cited_paragraphs() -> list[tuple[str, str, str]]:
    """(page, title, the sentence before) of each citation ``(docs/PAGE.md, "TITLE")`` in the code,
    with the folded lines of the comment joined."""
    found = []
    for path in sorted((ROOT / "execd").rglob("*.py")):
        text = re.sub(r"\n *#? *", " ", path.read_text())
        found += re.findall(r"([^.]*)\((docs/[\w/-]+\.md), \"([^\"]+)\"\)", text)
    return [(page, title, sentence) for sentence, page, title in found]


@pytest.mark.parametrize(("page", "title", "sentence"), _cited_paragraphs())
def test_a_cited_paragraph_exists_and_has_the_long_words_of_the_citing_sentence(
    page: str, title: str, sentence: str
) -> None:
    paragraph = (ROOT / page).read_text().partition(f"\n**{title}.** ")[2]
    paragraph = re.split(r"\n\*\*|\n## ", paragraph)[0]
    long_words = set(re.findall(r"[a-z]{7,}", sentence))
    assert long_words <= set(re.findall("[a-z]+", paragraph))
