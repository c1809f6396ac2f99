from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from typing import TYPE_CHECKING, get_origin, get_type_hints

import msgspec
import pytest

from execd import __version__, config
from execd.cli import flag_words, split_words
from execd.command_line import make_group

if TYPE_CHECKING:
    from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def execd(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "execd", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=cwd,
        env=env,
    )


def test_help_names_every_setting_its_variable_and_its_default(tmp_path: Path) -> None:
    done = execd("serve", "--help", cwd=tmp_path)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for field in msgspec.structs.fields(config.Config):
        assert config.flag(field.name) in text
        assert f"[env: {config.environment_name(field.name)}]" in text
    assert "[default: 8888]" in text
    assert "[default: 0.25]" in text
    assert "execd serve [OPTIONS] [-- CMD ARG...]" in text
    assert "--detach Return when the daemon listens" in text


def test_version_is_the_package_s() -> None:
    assert importlib.metadata.version("execd") == __version__


def test_version(tmp_path: Path) -> None:
    done = execd("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"execd, version {__version__}")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--port", "http"], {}, "--port: Expected `int`, got `str`"),
        ([], {"EXECD_PORT": "70000"}, "EXECD_PORT: Expected `int` <= 65535"),
        (["--base-dir", "x", "--state-dir", "x/state"], {}, "--state-dir: "),
        (["--no-such-setting", "1"], {}, "--no-such-setting"),
        (["--port"], {}, "--port"),
        (["surplus"], {}, "surplus"),
        (["surplus", "--", "true"], {}, "surplus"),
        (["--"], {}, "--: the name of a program must follow"),
        (["--port=http", "--", "true", "--port=1"], {}, "--port: Expected `int`"),
        (["--detach", "--", "true"], {}, "--detach: not together with `-- CMD`"),
        (["--detach", "--port=http"], {}, "--port: Expected `int`"),
        (["--detach=1"], {}, "--detach"),
        (["--namespaces", "maybe"], {}, "--namespaces: Invalid enum value 'maybe'"),
    ],
)
def test_a_bad_setting_is_exit_code_2_and_a_message_that_names_it(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    done = execd("serve", *arguments, cwd=tmp_path, **environment)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_without_a_subcommand_it_shows_how_to_use_it(tmp_path: Path) -> None:
    done = execd(cwd=tmp_path)
    assert done.returncode == 2
    assert "serve" in done.stdout + done.stderr


def click_flags(arguments: list[str]) -> dict[str, object] | None:
    """The flags as click reads them; None: click ends the process instead."""
    found: list[dict[str, object]] = []
    with pytest.raises(SystemExit) as end:
        make_group(found.append)(arguments)
    assert bool(found) == (end.value.code == 0 and "--help" not in arguments)
    return {name: given for name, given in found[0].items() if given} if found else None


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "--port=1", "--host", "::1"],
        ["serve", "--port=1", "--detach"],
        ["serve", "--port", "--detach"],
        ["serve", "--detach=1"],
        ["serve", "--port=1", "--port", "2"],
        ["serve", "--preload=a=b", "--preload", "c", "--pass-env=,"],
        ["serve", "--base-dir", "--port=1"],
        ["serve", "--port=-1", "--port", "-1"],
        ["serve", "--port="],
        ["serve", "--port"],
        ["serve", "--por=1"],
        ["serve", "--base_dir=x"],
        ["serve", "--port=1", "surplus"],
        ["serve", "--port=1", "--", "--port=2"],
        ["serve", "--"],
        ["serve", "-port=1"],
        ["serve", ""],
        ["serve", "--port=1", "--help"],
        ["serve", "--host", "\udcff", "--host=\n"],
        ["--port=1", "serve"],
        ["other"],
        [],
    ],
    ids=" ".join,
)
def test_the_short_way_reads_words_as_click_does(arguments: list[str]) -> None:
    """Or leaves the words to click."""
    found = flag_words(arguments)
    if found is not None:
        assert {name: given for name, given in found.items() if given} == click_flags(arguments)


def test_usual_words_need_no_click() -> None:
    words = ["serve", "--port=1", "--host", "::1", "--preload=a", "--preload=b"]
    assert flag_words(words) == {"port": "1", "host": "::1", "preload": ("a", "b")}


def test_words_after_the_first_dashes_are_the_program_s() -> None:
    assert split_words(["serve", "--port=1"]) == (["serve", "--port=1"], False, [])
    assert split_words(["serve", "--"]) == (["serve"], True, [])
    words = ["sh", "--", "--port=1"]
    assert split_words(["serve", "--port=2", "--", *words]) == (["serve", "--port=2"], True, words)


def test_settings_that_are_lists_are_repeatable() -> None:
    lists = {
        name for name, kind in get_type_hints(config.Config).items() if get_origin(kind) is tuple
    }
    assert lists == set(config.REPEATABLE)


def test_an_error_of_a_value_looks_like_an_error_of_a_word(tmp_path: Path) -> None:
    of_a_value = execd("serve", "--port=http", cwd=tmp_path).stderr
    of_a_word = execd("serve", "--port=1", "surplus", cwd=tmp_path).stderr
    usage, separator, _ = of_a_word.partition("Error: ")
    assert separator
    assert of_a_value.startswith(usage + separator)
