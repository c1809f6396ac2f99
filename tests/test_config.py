from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execd import config
from execd.config import Config, ConfigError, load

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [field.name for field in msgspec.structs.fields(Config)]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = load({}, {})
    assert settings == Config(
        base_dir=f"{tmp_path}/workspace", state_dir=f"{tmp_path}/.execd-state"
    )
    assert (settings.host, settings.port, settings.timeout, settings.max_running) == (
        "127.0.0.1",
        8888,
        300.0,
        256,
    )


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    assert load({"port": "1"}, {"EXECD_PORT": "2"}).port == 1
    assert load({"port": None}, {"EXECD_PORT": "2"}).port == 2
    assert load({}, {"EXECD_PORT": ""}).port == 8888


def test_a_blank_variable_is_an_unset_one_and_spaces_around_a_value_do_not_count() -> None:
    assert load({}, {"EXECD_PORT": "  ", "SANDBOX_BASE_DIR": ""}).port == 8888
    assert load({}, {"EXECD_PORT": " 2 "}).port == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_flag_a_variable_and_a_help_text(name: str) -> None:
    assert config.flag(name).startswith("--")
    assert config.environment_name(name) == {
        "base_dir": "SANDBOX_BASE_DIR",
        "timeout": "SANDBOX_EXEC_TIMEOUT_SECONDS",
    }.get(name, f"EXECD_{name.upper()}")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("port", "65536", "<= 65535"),
        ("port", "-1", ">= 0"),
        ("port", "http", "`int`"),
        ("token_sha256", "secret", "regex"),
        ("token_sha256", "0" * 63, "regex"),
        ("run_as", "root", "regex"),
        ("run_as", "1:", "regex"),
        ("run_as", "-1", "regex"),
        ("run_as", "\u0661", "regex"),
        ("run_as", "4294967295", "largest id"),
        ("run_as", "4294967296", "largest id"),
        ("run_as", "1:4294967296", "largest id"),
        ("python", "/nope/python3", "not the path of a program"),
        ("python", "/", "not the path of a program"),
        ("python", "/dev/null", "not the path of a program"),
        ("namespaces", "maybe", "Invalid enum value 'maybe'"),
        ("on_disconnect", "wait", "Invalid enum value 'wait'"),
        ("log_level", "loud", "Invalid enum value 'loud'"),
        ("log_fd", "-1", ">= 0"),
        ("log_fd", "2147483648", "< 2147483648|<= 2147483647"),
        ("log_fd", "stderr", "int"),
        ("log_fd", "1000000", "not a descriptor that is open for writing"),
        ("max_running", "0", "> 0|>= 1"),
        ("max_running", "1.5", "int"),
        ("max_queued", "-1", ">= 0"),
        ("queue_wait_seconds", "0", "> 0"),
        ("queue_wait_seconds", "inf", "<= 1|finite"),
        ("queue_wait_seconds", "nan", "finite|> 0"),
        ("timeout_grace_seconds", "-1", ">= 0"),
        ("timeout_grace_seconds", "inf", "finite"),
        ("cancel_grace_seconds", "nan", "finite|>= 0"),
        ("drain_grace_seconds", "inf", "finite"),
        ("retention_seconds", "nan", "finite|>= 0"),
        ("stream_memory_bytes", "1", ">= 4096"),
        ("pod_cpus", "inf", "finite"),
        ("pod_cpus", "0", "> 0"),
        ("cpu_seconds", "0", "> 0|>= 1"),
        ("log_bytes", "64MiB", "`int`"),
        ("port", "\udc80", "not UTF-8"),
        ("namespaces", "\udc80", "not UTF-8"),
    ],
)
def test_a_value_that_breaks_its_rule_is_refused_naming_the_setting_and_the_rule(
    name: str, value: str, rule: str
) -> None:
    for flags, environment, source in (
        ({name: value}, {}, config.flag(name)),
        ({}, {config.environment_name(name): value}, config.environment_name(name)),
    ):
        with pytest.raises(ConfigError, match=f"^{source}: .*({rule})"):
            load(flags, environment)


@pytest.mark.parametrize(
    "name",
    [field.name for field in msgspec.structs.fields(Config) if isinstance(field.default, float)],
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_duration_is_infinite_or_no_number(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "timeout":  # the python-runtime's rule
        assert load({name: value}, {}).timeout == 300.0
        assert "using 300 s" in capsys.readouterr().err
    else:
        with pytest.raises(ConfigError, match=config.flag(name)):
            load({name: value}, {})


@pytest.mark.parametrize(
    ("flags", "timeout", "max_timeout"),
    [
        ({}, 300.0, 86400.0),
        ({"timeout": 10}, 10.0, 10.0),
        ({"timeout": 10, "max_timeout": 20}, 10.0, 20.0),
        ({"max_timeout": 300}, 300.0, 300.0),
        ({"timeout": 10**6}, 1e6, 1e6),
    ],
)
def test_a_set_timeout_is_the_longest_unless_a_longest_is_set(
    flags: dict[str, float], timeout: float, max_timeout: float
) -> None:
    loaded = load(flags, {})
    assert (loaded.timeout, loaded.max_timeout) == (timeout, max_timeout)


def test_a_longest_timeout_below_the_default_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--max-timeout: 5 is less than the 300 of --timeout$"):
        load({"max_timeout": 5}, {})
    with pytest.raises(ConfigError, match="is less than the 9 of SANDBOX_EXEC_TIMEOUT_SECONDS"):
        load({"max_timeout": 5}, {"SANDBOX_EXEC_TIMEOUT_SECONDS": "9"})


@pytest.mark.parametrize(
    ("value", "seconds", "warned"),
    [
        ("10", 10.0, False),
        ("0.5", 0.5, False),
        (" 7 ", 7.0, False),
        ("0", 300.0, True),
        ("-1", 300.0, True),
        ("", 300.0, False),
        ("abc", 300.0, True),
        ("1e400", 300.0, True),
    ],
)
def test_an_unusable_timeout_is_the_default_and_a_warning(
    value: str, seconds: float, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load({}, {"SANDBOX_EXEC_TIMEOUT_SECONDS": value}).timeout == seconds
    assert ("SANDBOX_EXEC_TIMEOUT_SECONDS" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("relation", ["same", "below", "by a link", "dotted"])
def test_a_state_dir_inside_the_base_dir_is_refused(tmp_path: Path, relation: str) -> None:
    (tmp_path / "base/below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "base")
    state_dir = {
        "same": "base",
        "below": "base/below/state",
        "by a link": "link/state",
        "dotted": "other/../base/state",
    }[relation]
    with pytest.raises(ConfigError, match=r"--state-dir: .* inside the base dir"):
        load({"base_dir": "base", "state_dir": state_dir}, {})


def test_a_base_dir_inside_the_state_dir_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--base-dir: .* inside the state dir"):
        load({"base_dir": "state/base", "state_dir": "state"}, {})


def test_neighbours_with_a_common_beginning_are_not_inside_each_other(tmp_path: Path) -> None:
    assert (
        load({"base_dir": "app", "state_dir": "app-state"}, {}).state_dir == f"{tmp_path}/app-state"
    )


def test_a_base_dir_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "app").symlink_to(tmp_path / "real")
    assert load({"base_dir": "app"}, {}).base_dir == f"{tmp_path}/app"


def test_python_is_the_path_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    assert load({"python": "python3"}, {}).python == "python3"
    assert load({"python": sys.executable}, {}).python == sys.executable


def test_an_empty_host_is_refused_as_it_would_mean_every_address() -> None:
    with pytest.raises(ConfigError, match=r"^--host: "):
        load({"host": ""}, {})


def test_passed_on_variables_are_repeated_flags_or_one_list() -> None:
    assert load({"pass_env": ("AWS_*", "LANG")}, {}).pass_env == ("AWS_*", "LANG")
    assert load({"pass_env": ()}, {"EXECD_PASS_ENV": "AWS_*, LANG,"}).pass_env == ("AWS_*", "LANG")


@pytest.mark.not_root
def test_without_root_another_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="--run-as: only a daemon that is root"):
        load({"run_as": "5"}, {})


@given(st.sampled_from(NAMES), st.text(max_size=20))
@example("log_level", " - at `$.")
def test_any_text_for_any_setting_is_a_config_or_a_config_error_that_names_it(
    name: str, value: str
) -> None:
    error = config.flag(name)
    try:
        assert isinstance(load({name: value}, {}), Config)
    except ConfigError as caught:
        error = str(caught)
    except ValueError:
        error = f"{config.flag(name)}: a NUL" if "\0" in value else ""
    assert config.flag(name) in error or "-dir: " in error


@pytest.mark.parametrize(("seconds", "is_accepted"), [("1e9", True), ("1000000001", False)])
def test_a_time_of_more_than_thirty_years_is_a_mistake(seconds: str, is_accepted: bool) -> None:
    """The sum of a clock and such a time still has milliseconds."""
    if is_accepted:
        assert load({"keep_alive_seconds": seconds}, {}).keep_alive_seconds == 1e9
    else:
        with pytest.raises(ConfigError):
            load({"keep_alive_seconds": seconds}, {})
