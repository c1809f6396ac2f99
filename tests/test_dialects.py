from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from execd import dialects
from execd.config import ConfigError, environment_name

if TYPE_CHECKING:
    from typing import NoReturn

ROOT = Path(__file__).parents[1]


def test_without_a_dialect_no_entry_point_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise AssertionError("entry points were read")

    monkeypatch.setattr(dialects, "_installed", refuse)
    assert dialects.choose({}, {}) == []


def test_execd_knows_the_names_of_all_wings_of_the_repository() -> None:
    folders = {
        name: str(project.parent.relative_to(ROOT))
        for project in ROOT.glob("wings/*/pyproject.toml")
        for name in tomllib.loads(project.read_text())["project"]["entry-points"][dialects.GROUP]
    }
    assert folders == dialects.FOLDERS


def test_the_wings_of_the_repository_are_installed_under_the_names_that_execd_knows() -> None:
    found = dialects.choose({"dialect": [f"{name}=1" for name in dialects.FOLDERS]}, {})
    assert len(found) == len(dialects.FOLDERS)
    for dialect in found:
        assert dialect.module.TITLE
        assert dialect.module.SETTINGS_NAME.isidentifier()
        assert dialect.settings == dialect.module.Settings()


def test_settings_come_from_the_variables_of_the_name() -> None:
    variables = {"EXECD_E2B_OPEN_CONTEXTS": " on ", "EXECD_OPENSANDBOX_LINE_ENDS": " "}
    flags: dict[str, object] = {"dialect": ["e2b-envd=1", "opensandbox=2"]}
    envd, opensandbox = dialects.choose(flags, variables)
    assert envd.settings == envd.module.Settings(open_contexts="on")
    assert opensandbox.settings == opensandbox.module.Settings()


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        ({}, {"EXECD_OPENSANDBOX_LINE_ENDS": "maybe"}, "EXECD_OPENSANDBOX_LINE_ENDS"),
        ({"opensandbox_line_ends": "maybe"}, {}, "--opensandbox-line-ends"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_name_that_was_given(
    flags: dict[str, object], variables: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: Invalid enum value 'maybe'"):
        dialects.choose({"dialect": ["opensandbox=1"], **flags}, variables)


def test_an_unknown_dialect_is_refused_with_the_names_that_are_installed() -> None:
    with pytest.raises(ConfigError, match=r"has the dialect 'nosuch' .*installed are e2b-code, "):
        dialects.choose({"dialect": ["nosuch=1"]}, {})


def test_a_dialect_that_is_not_installed_is_refused_with_the_wing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialects, "_installed", lambda _: {})
    with pytest.raises(ConfigError, match="install wings/e2b of execd's repository"):
        dialects.choose({"dialect": ["e2b-envd=1"]}, {})
    with pytest.raises(ConfigError, match="no dialect is installed"):
        dialects.choose({"dialect": ["nosuch=1"]}, {})


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
        dialects.choose({"dialect": ["twice=1"]}, {})
    with pytest.raises(ConfigError, match=r"lost: cannot import nowhere\.port: No module named"):
        dialects.choose({"dialect": ["lost=1"]}, {})


def test_a_dialect_that_nobody_asks_for_is_not_imported() -> None:
    program = (
        "import sys, execd.cli, execd.server\nexecd.server.load_api()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('execd_')))\n"
        "print('importlib.metadata' in sys.modules, 'execd.api.wire_api' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.split() == [b"False", b"False"]


def test_ports_of_dialects_come_from_flags_variables_and_older_settings() -> None:
    assert dialects.read_ports({}, {}) == {}
    assert dialects.read_ports({"dialect": ("e2b-envd=1", "other=2")}, {}) == {
        "e2b-envd": 1,
        "other": 2,
    }
    assert dialects.read_ports({}, {"EXECD_DIALECT": "e2b-envd=1, other=0"}) == {
        "e2b-envd": 1,
        "other": 0,
    }
    for name, dialect in dialects.PORT_FLAGS.items():
        older = [({name: "7"}, {}), ({}, {environment_name(name): " 7 "})]
        for flags, environment in older:
            found = dialects.read_ports({"dialect": ("other=2",), **flags}, environment)
            assert found == {"other": 2, dialect: 7}


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"dialect": ("e2b-envd",)}, {}, "--dialect: 'e2b-envd' is not NAME=PORT"),
        ({"dialect": ("=1",)}, {}, "--dialect: '=1' is not NAME=PORT"),
        ({"dialect": ("E2B=1",)}, {}, "--dialect: 'E2B=1' is not NAME=PORT"),
        ({"dialect": ("e2b-envd=65536",)}, {}, "--dialect: e2b-envd: '65536' is no port"),
        ({}, {"EXECD_DIALECT": "a=1,a=2"}, "EXECD_DIALECT: a: given twice"),
        ({"e2b_envd_port": "65536"}, {}, "--e2b-envd-port: '65536' is no port"),
        ({}, {"EXECD_E2B_ENVD_PORT": "http"}, "EXECD_E2B_ENVD_PORT: 'http' is no port"),
        ({"e2b_envd_port": ""}, {}, "--e2b-envd-port: '' is no port"),
        ({"runtime_init": "true"}, {}, "--runtime-init: needs --dialect opensandbox=PORT"),
        ({"runtime_init": ""}, {"EXECD_OPENSANDBOX_RUNTIME_INIT": "1"}, "--runtime-init: empty"),
        ({}, {"EXECD_RUNTIME_INIT": "yes"}, "EXECD_RUNTIME_INIT: needs"),
        (
            {},
            {"EXECD_RUNTIME_INIT": "0", "EXECD_OPENSANDBOX_RUNTIME_INIT": "1"},
            "EXECD_OPENSANDBOX_RUNTIME_INIT: needs",
        ),
        ({}, {"EXECD_OPENSANDBOX_RUNTIME_INIT": "1"}, "EXECD_OPENSANDBOX_RUNTIME_INIT: needs"),
    ],
)
def test_a_wrong_port_of_a_dialect_is_refused_naming_the_setting_and_the_rule(
    flags: dict[str, object], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        dialects.choose(flags, environment)


def test_of_several_ports_of_a_dialect_the_flag_and_the_newer_setting_hold() -> None:
    variables = {"EXECD_DIALECT": "e2b-envd=2", "EXECD_E2B_ENVD_PORT": "1"}
    assert dialects.read_ports({}, variables) == {"e2b-envd": 2}
    assert dialects.read_ports({"e2b_envd_port": "3"}, variables) == {"e2b-envd": 3}
    flags = {"e2b_envd_port": "3", "dialect": ("e2b-envd=4",)}
    assert dialects.read_ports(flags, variables) == {"e2b-envd": 4}
    (chosen,) = dialects.choose({"runtime_init": "true", "opensandbox_port": "1"}, {})
    assert chosen.port == 1
    assert chosen.settings == chosen.module.Settings(runtime_init=True)


def test_older_settings_stand_for_the_variables_of_dialects() -> None:
    flags = {"opensandbox_line_ends": "strip"}
    environment = {"EXECD_ENVS": "/env", "EXECD_E2B_OPEN_CONTEXTS": "on", "OTHER": "x"}
    variables, sources = dialects.read_variables(flags, environment)
    assert variables == {
        **environment,
        "EXECD_OPENSANDBOX_LINE_ENDS": "strip",
        "EXECD_OPENSANDBOX_ENV_FILE": "/env",
    }
    assert sources == {
        "EXECD_OPENSANDBOX_LINE_ENDS": "--opensandbox-line-ends",
        "EXECD_OPENSANDBOX_ENV_FILE": "EXECD_ENVS",
    }


def test_a_flag_wins_over_the_variable_of_a_dialect_and_that_over_its_older_name() -> None:
    both = {"EXECD_ENVS": "/older", "EXECD_OPENSANDBOX_ENV_FILE": "/newer"}
    for flags, value in (({}, "/newer"), ({"opensandbox_env_file": "/flag"}, "/flag")):
        variables, _ = dialects.read_variables(flags, both)
        assert variables["EXECD_OPENSANDBOX_ENV_FILE"] == value
