"""Documentation that the code can contradict. Promises have tests, and links have targets. The page
of limits names all limits; the architecture page names all modules. tests/docs compares the
generated sections of the reference."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from benchmarks import gvisor_facts
from docs.generate.tables import dialects
from execd import config
from execd.api.v1.execution_request import LimitsRequest
from execd.kernel import mime_bundles
from execd.model import ExitReason, Limits
from execd.proc.kernel_traits import KernelTraits
from tests.conformance.test_notions import NOTIONS
from tests.promises import has_promises, name_of_test, promises

ROOT = Path(__file__).parent.parent
TEST_NAMES = {
    name
    for path in (*(ROOT / "tests").rglob("test_*.py"), *ROOT.glob("wings/*/tests/**/test_*.py"))
    for name in re.findall(r"def (test_\w+)\(", path.read_text())
}
WINGS = [path.parent for path in sorted(ROOT.glob("wings/*/pyproject.toml"))]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(wing / "README.md" for wing in WINGS),
]
REFERENCE = ROOT / "docs" / "reference"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_each_promise_is_the_name_of_a_test() -> None:
    pages = [page for page in PAGES if has_promises(page)]
    found = [promise for page in pages for promise in promises(page.read_text())]
    assert len(found) > 500
    assert [promise for promise in found if name_of_test(promise) not in TEST_NAMES] == []


def test_the_page_about_gvisor_has_each_probe_and_each_trait() -> None:
    page = (ROOT / "docs/gvisor.md").read_text()
    facts = set(re.findall(r"^\| `?([^|`]+?)`? \|", page, re.MULTILINE))
    assert {*gvisor_facts.probes, *gvisor_facts.times} <= facts
    assert set(KernelTraits._fields) <= facts


ATTACK = re.compile(
    r"^## (?P<title>.+)\n\n\* \*\*Attack:\*\* (?P<attack>[^*]+)\* \*\*Shapes:\*\* (?P<shapes>[^*]+)"
    r"\* \*\*What holds:\*\* (?P<holds>[^*]+)\* \*\*Test:\*\* (?P<proof>[^*#]+)",
    re.MULTILINE,
)


def _attacks() -> list[re.Match[str]]:
    """The attacks of the pages of the threat model."""
    pages = sorted((ROOT / "docs" / "attacks").glob("*.md"))
    return [attack for page in pages for attack in ATTACK.finditer(page.read_text())]


def test_each_heading_of_an_attack_has_the_attack_the_shapes_what_holds_and_the_test() -> None:
    headings = [
        heading
        for page in sorted((ROOT / "docs" / "attacks").glob("*.md"))
        for heading in re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    ]
    assert [attack["title"] for attack in _attacks()] == headings
    assert len(headings) > 80


@pytest.mark.parametrize("attack", _attacks(), ids=lambda attack: attack["title"])
def test_attack_has_a_test_or_is_said_not_to_be_defended(attack: re.Match[str]) -> None:
    names = re.findall(r"`(test_\w+)`", attack["proof"])
    assert names or attack["proof"].startswith("Not "), attack["title"]
    assert set(names) <= TEST_NAMES


def _reference(name: str) -> str:
    return (REFERENCE / name).read_text()


def test_readme_has_the_defaults() -> None:
    defaults = config.Config(base_dir="", state_dir="")
    text = (ROOT / "README.md").read_text()
    assert (
        f"a run time limit ({defaults.timeout:g} s) and a limit of {defaults.processes} processes"
        in text
    )
    assert f"{defaults.host}:{defaults.port}" in text


def test_readme_counts_the_exit_reasons() -> None:
    assert f"one of {len(ExitReason)}\n  [exit reasons]" in (ROOT / "README.md").read_text()


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


def test_page_of_notions_has_the_notions_that_routes_are_held_to() -> None:
    page = _reference("notions.md")
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) == list(NOTIONS)


def _modules() -> dict[str, set[str]]:
    """The modules of each folder of execd."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "execd").rglob("*.py"):
        if path.name != "__init__.py":
            found.setdefault(str(path.parent.relative_to(ROOT)), set()).add(path.name)
    return found


@pytest.mark.parametrize("folder", sorted(_modules()))
def test_architecture_describes_the_modules_of_a_folder(folder: str) -> None:
    pages = [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/architecture").glob("*.md"))]
    [section] = [
        text.partition(f"\n## {folder}/\n")[2].partition("\n## ")[0]
        for text in (page.read_text() for page in pages)
        if f"\n## {folder}/\n" in text
    ]
    assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == _modules()[folder]


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: wing.name)
def test_the_page_of_a_wing_describes_its_modules(wing: Path) -> None:
    page = (wing / "README.md").read_text()
    section = page.partition("\n## Modules\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == {
        path.name for path in wing.glob("execd_*/**/*.py") if path.name != "__init__.py"
    }


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: wing.name)
def test_the_page_of_a_wing_names_its_dialects_and_its_settings(wing: Path) -> None:
    page = (wing / "README.md").read_text()
    own = {
        name: module
        for name, module in dialects().items()
        if module.__name__.partition(".")[0] == f"execd_{wing.name}"
    }
    assert own
    for name, module in own.items():
        assert f"`{name}`" in page
        assert f"--dialect {name}=" in page
        for field in module.Settings.__struct_fields__:
            assert f"| `EXECD_{module.SETTINGS_NAME.upper()}_{field.upper()}` |" in page


def test_tests_that_a_page_names_exist() -> None:
    for page in PAGES:
        named = set(re.findall(r"`(test_\w+)`", page.read_text()))
        assert named <= TEST_NAMES, page


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


INSTALLED_PROGRAMS = {"pip", "python", "pytest", "execd", "ruff", "mypy", "yamllint"}
"""Programs of the virtual environment. Outside, a machine may have none of them, or another one:
Debian has no `python`, and its `pip` installs nothing."""


def _commands(page: str) -> list[str]:
    """Commands with arguments: the lines of indented blocks, and code within a sentence, without
    the variables in front. The rows of tables define words and show no commands to type."""
    page = re.sub(r"^\|.*$", "", page, flags=re.MULTILINE)
    lines = re.findall(r"^    (?:\$ )?(\S.*)$", page, re.MULTILINE)
    # A sentence may name a subcommand: `execd serve` is no command to type.
    inline = [code for code in re.findall(r"`([^`\n]+)`", page) if not code.startswith("execd ")]
    found = [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", command) for command in lines + inline]
    return [command for command in found if " " in command]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_of_a_page_work_outside_the_virtual_environment(page: Path) -> None:
    programs = {command.split()[0] for command in _commands(page.read_text())}
    assert not programs & INSTALLED_PROGRAMS


def test_a_command_of_the_virtual_environment_is_found_in_a_page() -> None:
    page = "    $ A=1 pytest tests\n\nCall `B=http://x python -m y`, a flag of `execd serve`.\n"
    assert _commands(page) == ["pytest tests", "python -m y"]


def _links(page: Path) -> list[str]:
    """The link targets inside the project, without links to other sites."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [target for target in targets if "://" not in target]


def _has_target(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not anchor or anchor in _anchors(file))


@functools.cache
def _anchors(file: Path) -> set[str]:
    return {_anchor(heading) for heading in re.findall(r"^#+ (.+)$", file.read_text(), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_link_of_a_page_has_a_target(page: Path) -> None:
    assert [target for target in _links(page) if not _has_target(page, target)] == []


def test_link_without_a_target_is_found() -> None:
    page = ROOT / "README.md"
    assert _links(page)
    for target in ("docs/no-such-page.md", "#no-such-heading", "docs/guide.md#no-such-heading"):
        assert not _has_target(page, target)


GENERATED = {"routes.md", "objects.md"}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_page_has_at_most_600_lines_and_no_row_over_300_characters(page: Path) -> None:
    if page.name not in GENERATED:
        lines = page.read_text().splitlines()
        assert len(lines) <= 600
        assert [line for line in lines if line.startswith("|") and len(line) > 300] == []


def _anchor(heading: str) -> str:
    """The anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cited_paragraphs() -> list[tuple[str, str, str]]:
    """(page, title, the sentence before) of each citation ``(docs/PAGE.md, "TITLE")`` in the code,
    with the folded lines of the comment joined."""
    found = []
    for path in sorted((ROOT / "execd").rglob("*.py")):
        text = re.sub(r"\n *#? *", " ", path.read_text())
        if "(docs/" not in text:
            continue  # the pattern takes long in text without any
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
