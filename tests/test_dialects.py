from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from execd import dialects
from execd.config import ConfigError

if TYPE_CHECKING:
    from typing import NoReturn


def test_without_a_dialect_no_entry_point_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> NoReturn:
        raise AssertionError("entry points were read")

    monkeypatch.setattr(metadata, "entry_points", refuse)
    assert dialects.choose([], {}, {}) == []


def test_the_wings_of_the_repository_are_installed_under_the_names_that_execd_knows() -> None:
    found = dialects.choose([(name, 1) for name in dialects.DISTRIBUTIONS], {}, {})
    assert len(found) == len(dialects.DISTRIBUTIONS)
    for dialect in found:
        assert dialect.module.TITLE
        assert dialect.module.NAME.isidentifier()
        assert dialect.settings == dialect.module.Settings()


def test_settings_come_from_the_variables_of_the_name() -> None:
    variables = {"EXECD_E2B_OPEN_CONTEXTS": " on ", "EXECD_OPENSANDBOX_LINE_ENDS": " "}
    envd, opensandbox = dialects.choose([("e2b-envd", 1), ("opensandbox", 2)], variables, {})
    assert envd.settings == envd.module.Settings(open_contexts="on")
    assert opensandbox.settings == opensandbox.module.Settings()


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ({}, "EXECD_OPENSANDBOX_LINE_ENDS"),
        ({"EXECD_OPENSANDBOX_LINE_ENDS": "--opensandbox-line-ends"}, "--opensandbox-line-ends"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_name_that_was_given(
    sources: dict[str, str], named: str
) -> None:
    variables = {"EXECD_OPENSANDBOX_LINE_ENDS": "maybe"}
    with pytest.raises(ConfigError, match=f"^{named}: Invalid enum value 'maybe'"):
        dialects.choose([("opensandbox", 1)], variables, sources)


def test_an_unknown_dialect_is_refused_with_the_names_that_are_installed() -> None:
    with pytest.raises(ConfigError, match=r"has the dialect 'nosuch' .*installed are e2b-code, "):
        dialects.choose([("nosuch", 1)], {}, {})


def test_a_dialect_that_is_not_installed_is_refused_with_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [])
    with pytest.raises(ConfigError, match="install the package execd-e2b beside execd"):
        dialects.choose([("e2b-envd", 1)], {}, {})
    with pytest.raises(ConfigError, match="no dialect is installed"):
        dialects.choose([("nosuch", 1)], {}, {})


def test_a_dialect_that_nobody_asks_for_is_not_imported() -> None:
    program = (
        "import sys, execd.cli, execd.server\nexecd.server.load_api()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('execd_')))\n"
        "print('importlib.metadata' in sys.modules, 'execd.api.wire_api' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.split() == [b"False", b"False"]
