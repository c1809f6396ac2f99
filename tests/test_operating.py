"""docs/operating.md against the code: each log message, each exit code, and each setting and route
that the page names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from execd import config, server
from execd.api.routes import routes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operating.md").read_text()
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}


def _is_logger(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"log", "logger", "end_logger"}


def _pattern(message: str) -> str:
    """The message as the page writes it: `…` for what differs."""
    return re.sub(r"%[a-z]", "…", message)


def logged(source: str) -> list[tuple[str, str]]:
    """(message, level) of each call of a logger. A level that is computed is ``None``; a message in
    a variable stands for all words that a loop of the module gives the variable."""
    found = []
    tree = ast.parse(source)
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        name = call.func.attr
        if not _is_logger(call.func.value) or name not in {*LEVELS, "log"}:
            continue
        message = call.args[1] if name == "log" else call.args[0]
        level = LEVELS.get(name, "info")
        if isinstance(message, ast.Constant):
            found.append((_pattern(str(message.value)), level))
        else:
            assert isinstance(message, ast.Name), f"a message to read: {ast.unparse(call)}"
            words = _words_of_loop(tree, message.id)
            assert words, f"no loop gives {message.id} its words"
            found += [(_pattern(word), level) for word in words]
    return found


def _words_of_loop(tree: ast.Module, name: str) -> list[str]:
    """The strings that a loop over a tuple of tuples gives its first variable."""
    for loop in ast.walk(tree):
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.target, ast.Tuple)
            and isinstance(loop.target.elts[0], ast.Name)
            and loop.target.elts[0].id == name
            and isinstance(loop.iter, ast.Tuple)
        ):
            return [ast.literal_eval(row.elts[0]) for row in loop.iter.elts]  # type: ignore[attr-defined]
    return []


# logging_setup rewrites or replaces records, without a call of a logger.
REWRITTEN = {("malformed request: …", "info"), ("not logged: …", "error")}


def _logged_by_execd() -> set[tuple[str, str]]:
    found = set(REWRITTEN)
    for path in (ROOT / "execd").rglob("*.py"):
        found |= set(logged(path.read_text()))
    return found


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(title: str) -> list[list[str]]:
    lines = [line for line in _section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_each_log_message_is_explained_with_its_level_and_no_other_message_is() -> None:
    rows = _rows("Log lines")
    explained = {(row[0].strip("`"), level) for row in rows for level in row[1].split(", ")}
    explained -= {("request", "debug")}  # the level of this call depends on the route
    assert explained == _logged_by_execd()
    assert len(rows) == len({row[0] for row in rows})


@pytest.mark.parametrize("row", _rows("Log lines"), ids=lambda row: row[0][:50])
def test_a_log_message_has_a_meaning_and_an_action(row: list[str]) -> None:
    message, level, meaning, action = row
    assert meaning
    assert action
    if level in {"warning", "error"} and "session" not in message:
        assert action != "none"


def test_rewritten_messages_are_in_the_code() -> None:
    source = (ROOT / "execd" / "logging_setup.py").read_text()
    assert '"malformed request: %s"' in source
    assert 'f"not logged: {' in source


def test_the_collector_reads_messages_of_all_forms() -> None:
    source = """
log.warning("short of %s", x, extra={})
logger.exception("failed")
logger.log(level, "made")
for message, port in (("one", 1), ("two", 2)):
    log.info(message)
other.info("not a logger")
"""
    assert sorted(logged(source)) == [
        ("failed", "error"),
        ("made", "info"),
        ("one", "info"),
        ("short of …", "warning"),
        ("two", "info"),
    ]
    with pytest.raises(AssertionError, match="a message to read"):
        logged('log.info("a" + x)')


def test_the_exit_codes_of_the_page_are_the_daemons() -> None:
    codes = {server.EXIT_CANNOT_START, config.EXIT_USAGE, *server.EXIT_CODES.values()}
    assert {int(row[0]) for row in _rows("Exit codes of the daemon")} == codes


def test_settings_of_the_page_exist() -> None:
    settings = set(config.Config.__struct_fields__)
    flags = set(re.findall(r"`(--[\w-]+)[ `]", PAGE))
    assert flags
    assert flags <= {config.flag(name) for name in settings}
    variables = set(re.findall(r"`(EXECD_\w+)`", PAGE))
    assert variables
    assert variables <= {config.environment_name(name) for name in settings}


def test_routes_of_the_page_exist() -> None:
    served = {f"{route.method} {route.path}" for route in routes()}
    named = set(re.findall(r"`((?:GET|POST) /[\w/]*)`", PAGE))
    assert named
    assert named <= served
