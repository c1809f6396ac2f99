from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from execd import dialects
from execd.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn


def test_without_a_dialect_no_entry_point_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise AssertionError("entry points were read")

    monkeypatch.setattr(dialects, "_installed", refuse)
    assert dialects.choose([], {}, {}) == []


def test_the_wings_of_the_repository_are_installed_under_the_names_that_execd_knows() -> None:
    found = dialects.choose([(name, 1) for name in dialects.FOLDERS], {}, {})
    assert len(found) == len(dialects.FOLDERS)
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


def test_a_dialect_that_is_not_installed_is_refused_with_the_wing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialects, "_installed", lambda _: {})
    with pytest.raises(ConfigError, match="install wings/e2b of execd's repository"):
        dialects.choose([("e2b-envd", 1)], {}, {})
    with pytest.raises(ConfigError, match="no dialect is installed"):
        dialects.choose([("nosuch", 1)], {}, {})


def package(folder: Path, name: str, entry_points: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "entry_points.txt").write_text(entry_points)


def test_entry_points_are_read_as_importlib_reads_them(tmp_path: Path) -> None:
    text = "[console_scripts]\nno = no:no\n\n[execd.dialects]\na-b=mine.port\n# c = d\n e = f\n"
    package(tmp_path, "mine-1.dist-info", text)
    package(tmp_path, "other.egg-info", "[ execd.dialects ]\nb = mine.port\n[x]\nno = no\n")
    (tmp_path / "none-1.dist-info").mkdir()
    found = dialects._installed([f"{tmp_path}/nothing", str(tmp_path)])
    assert found == {"a-b": {"mine.port"}, "e": {"f"}, "b": {"mine.port"}}
    for points in metadata.distributions(path=[str(tmp_path)]):
        for point in points.entry_points:
            if point.group == dialects.GROUP:
                assert found[point.name] == {point.value}


def test_a_name_in_two_packages_and_a_module_that_cannot_be_imported_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "one-1.dist-info", "[execd.dialects]\ntwice = one\nlost = nowhere.port\n")
    package(tmp_path, "two-1.dist-info", "[execd.dialects]\ntwice = two\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="twice: in two packages, one and two"):
        dialects.choose([("twice", 1)], {}, {})
    with pytest.raises(ConfigError, match=r"lost: cannot import nowhere\.port: No module named"):
        dialects.choose([("lost", 1)], {}, {})


def test_a_dialect_that_nobody_asks_for_is_not_imported() -> None:
    program = (
        "import sys, execd.cli, execd.server\nexecd.server.load_api()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('execd_')))\n"
        "print('importlib.metadata' in sys.modules, 'execd.api.wire_api' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.split() == [b"False", b"False"]
