from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from execd import __version__, config

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
