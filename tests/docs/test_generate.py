"""The generated sections of the pages are those of the code, and miss nothing."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import pytest

from docs.generate import limits, routes, tables, types
from docs.generate.markdown import anchor, paragraphs, table
from docs.generate.pages import DOCS, SECTION, SECTIONS, generated_files, pages
from docs.generate.source_docs import field_docs
from execd.api.routes import routes as table_of_routes
from execd.api.wire.errors import V1_HTTP_STATUS
from execd.config import Config
from execd.model import ExitReason

if TYPE_CHECKING:
    from pathlib import Path

ROOT = DOCS.parent
REFERENCE = DOCS / "reference"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def files() -> dict[Path, str]:
    return generated_files()


def test_pages_are_as_the_code_makes_them(files: dict[Path, str]) -> None:
    stale = [path.name for path in files if path.read_text() != files[path]]
    assert stale == [], "run `make reference`"


def test_llms_txt_has_each_page_with_a_summary_and_no_other(files: dict[Path, str]) -> None:
    found = re.findall(r"^- \[.+\]\((.+)\): (.+)$", files[ROOT / "llms.txt"], re.MULTILINE)
    pages = {*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("wings/*/README.md")}
    pages -= {DOCS / "index.md"}
    assert sorted(path for path, _ in found) == sorted(
        str(page.relative_to(ROOT)) for page in pages
    )
    assert all(summary for _, summary in found)


def test_each_kind_of_section_is_on_a_page() -> None:
    used = {match["name"] for path in pages() for match in SECTION.finditer(path.read_text())}
    assert used == SECTIONS.keys()


def test_each_mark_has_an_end() -> None:
    for path in pages():
        page = path.read_text()
        assert page.count("<!-- generated: ") == len(SECTION.findall(page)), name_of(path)
        assert page.count("<!-- end of generated -->") == len(SECTION.findall(page)), name_of(path)


def test_each_setting_is_in_one_table() -> None:
    sections = SECTION.finditer((REFERENCE / "settings.md").read_text())
    shown = [name for section in sections for name in section["arguments"].split()]
    assert sorted(shown) == sorted(Config.__struct_fields__)


def test_each_row_of_the_route_table_is_in_the_page_of_routes_once() -> None:
    shown = []
    for entry in routes.entries():
        method, path = entry.name.split()
        shown += [f"{method} {shown_path}" for shown_path in (path, *entry.also)]
    rows = [f"{row.method} {row.path.partition(':')[0]}" for row in table_of_routes()]
    assert sorted(name.partition("{path")[0] for name in shown) == sorted(
        row.partition("{path")[0] for row in rows
    )
    page = (REFERENCE / "routes.md").read_text()
    for entry in routes.entries():
        assert page.count(f"\n### `{entry.name}`\n") == 1


def test_each_route_is_in_an_overview_or_described_by_hand() -> None:
    page = (REFERENCE / "http.md").read_text()
    for entry in routes.entries():
        assert re.search(rf"^\| \[?`{re.escape(entry.name)}`", page, re.MULTILINE), entry.name


def test_each_error_has_a_meaning_and_a_remedy() -> None:
    found = routes.all_errors()
    assert [kind.code for kind in found] == list(V1_HTTP_STATUS)
    for kind in found:
        assert len(paragraphs(kind.__doc__)) == 2, kind


def test_each_exit_reason_and_each_field_of_a_log_line_has_a_docstring() -> None:
    for cls in (ExitReason, *tables.LINES.values()):
        docs = field_docs(cls)
        assert docs
        assert all(docs.values()), docs
    assert list(field_docs(ExitReason)) == [reason.name for reason in ExitReason]


class Kind(StrEnum):
    A = "a"
    """The first.

    And more."""
    B = "b"


class Inner(msgspec.Struct):
    a: int


class Outer(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(max_length=3, description="A text.")]
    inner: Inner | None = None
    """Another struct."""
    choice: Literal["x", "y"] = "x"
    kind: Kind | None = None
    numbers: list[Annotated[int, msgspec.Meta(gt=0, le=20_000)]] = []
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    reason: ExitReason | msgspec.UnsetType = msgspec.UNSET


def fields_of(struct: type) -> dict[str, msgspec.inspect.Field]:
    return {field.name: field for field in types.fields(struct)}


def test_types_are_told_in_words() -> None:
    words = {name: types.in_words(field.type) for name, field in fields_of(Outer).items()}
    assert words == {
        "text": "string (at most 3 characters)",
        "inner": "[Inner](objects.md#inner) or null",
        "choice": "`x`, `y`",
        "kind": "`a`, `b` or null",
        "numbers": "list of integers (above 0, at most 20,000)",
        "share": "number (0 to 1)",
        "reason": "an [exit reason](exit-reasons.md)",
    }


def test_defaults_are_json() -> None:
    words = {name: types.default_in_words(field) for name, field in fields_of(Outer).items()}
    assert words == {
        "text": "required",
        "inner": "`null`",
        "choice": '`"x"`',
        "kind": "`null`",
        "numbers": "`[]`",
        "share": "`0.5`",
        "reason": "",
    }
    assert types.description(Outer, fields_of(Outer)["text"]) == "A text."
    assert types.description(Outer, fields_of(Outer)["inner"]) == "Another struct."


def test_docstrings_under_fields_are_read_from_the_source() -> None:
    class Plain:
        a: int
        """One
        line."""
        b: int
        c = 1
        """Last."""

    assert field_docs(Plain) == {"a": "One line.", "b": "", "c": "Last."}
    with pytest.raises(ValueError, match="too many values"):
        field_docs(Kind)  # a row of a table has one paragraph


def test_a_table_has_no_empty_column_and_no_line_breaks() -> None:
    rows = [("a|b", "", "one\n  two"), ("", "", "")]
    assert table(("x", "y", "z"), rows) == ("| x | z |\n|---|---|\n| a\\|b | one two |\n|  |  |\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_queued", "1,024"),
        ("log_bytes", "64 MiB"),
        ("stream_memory_bytes", "256 KiB"),
        ("max_unpacked_bytes", "16 GiB"),
        ("timeout", "300 s"),
        ("drain_grace_seconds", "0.25 s"),
        ("session_idle_seconds", "1 h"),
        ("cpu_seconds", "none"),
        ("max_starting", "two a CPU"),
        ("execd.api.wire.multipart.MAX_PARTS", "1,000"),
        ("execd.api.wire.connections:ConnectionLimits.body_seconds", "30 s"),
    ],
)
def test_a_value_of_the_code_is_told_with_its_unit(name: str, words: str) -> None:
    assert limits.in_words(name) == words


def test_a_limit_is_told_with_the_names_and_values_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (
        limits.Limit(
            "run time",
            "{flag timeout}, {field limits.cpu_seconds}",
            "{timeout}",
            "{reason timeout}, {status GONE}",
        ),
        "execd.engine.in_flight.MAX_BYTES",
        "execd.engine.files.service.MAX_LARGE_LISTINGS",
    )
    monkeypatch.setitem(limits.TABLES, "some", rows)
    assert limits.limits("some").split("\n")[2:] == [
        "| run time | `--timeout`, `limits.cpu_seconds` | 300 s | `timeout`, 410 |",
        "| bodies under way, all together |  | 64 MiB | 429 with Retry-After; a single body, and "
        "each body up to 16 KiB, is never refused |",
        "| listings at once of directories with over 4,096 names |  | 4 | the next listing waits "
        "60 s, then 429 |",
        "",
    ]


@pytest.mark.parametrize(
    "words",
    ["{flag gone}", "{field gone}", "{field limits.gone}", "{reason gone}", "{status G}", "{gone}"],
)
def test_a_limit_with_words_that_the_code_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setitem(limits.TABLES, "some", (limits.Limit("a", words, "", ""),))
    with pytest.raises((AssertionError, AttributeError, KeyError, ValueError)):
        limits.limits("some")


def test_no_reference_is_left_in_the_page_of_limits() -> None:
    page = (REFERENCE / "limits.md").read_text()
    assert "{" not in page
    assert "execd.engine" not in page


def test_anchors_are_those_of_github() -> None:
    assert anchor("`GET /v1/executions/{id}`") == "get-v1executionsid"
