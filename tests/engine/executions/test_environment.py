from __future__ import annotations

import os
import pwd
import sys
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.executions import passwd
from execd.engine.executions.environment import (
    GIT,
    LOGIN_BASH,
    MARKER,
    USUAL_DIRS,
    ChildEnvironment,
    is_virtual_environment,
    restore_locale,
)
from tests.engine.conftest import make_config, running, sh

if TYPE_CHECKING:
    from pathlib import Path

DAEMONS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/root",
    "SECRET": "s3cret",
    "EXECD_TOKEN_SHA256": "0" * 64,
    "AWS_KEY": "k",
    "AWS_REGION": "eu",
    "LANG": "de_DE",
}


def build(
    folder: Path,
    requested: dict[str, str] | None = None,
    *,
    python: str = "/usr/bin/python3",
    **settings: Any,
) -> dict[str, str]:
    environment = ChildEnvironment(
        make_config(folder, **settings), DAEMONS, bin_dir="/state/bin", python=python
    )
    env, marker = environment.build("id", requested or {})
    assert marker == f"{MARKER}=id"
    assert env[MARKER] == "id"
    assert next(iter(env)) == MARKER
    return env


def test_it_is_built_from_scratch(tmp_path: Path) -> None:
    assert build(tmp_path) == {
        MARKER: "id",
        "HOME": f"{tmp_path}/base",
        "LANG": "C.UTF-8",
        "USER": pwd.getpwuid(os.geteuid()).pw_name,
        "PATH": f"/state/bin:{tmp_path}/base/.local/bin:{USUAL_DIRS}",
        "TMPDIR": "/tmp",
        **GIT,
    }


@pytest.mark.parametrize("line", ["", "a\0b:x:{}:0:::", "a\udcff:x:{}:0:::", ":x:{}:0:::"])
def test_user_without_a_usable_name_is_called_by_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(os.fsencode(line.format(os.geteuid())))
    monkeypatch.setattr(passwd, "PATH", str(path))
    assert build(tmp_path)["USER"] == str(os.geteuid())


def test_passwd_file_that_never_answers_holds_up_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "passwd")
    monkeypatch.setattr(passwd, "PATH", str(tmp_path / "passwd"))
    assert build(tmp_path)["USER"] == str(os.geteuid())


def test_only_what_is_passed_on_by_name_or_glob_comes_through(tmp_path: Path) -> None:
    env = build(tmp_path, pass_env=("AWS_*", "LANG", "HOM", "secret"))
    assert {name: env.get(name) for name in DAEMONS} == {
        "PATH": f"/state/bin:{tmp_path}/base/.local/bin:{USUAL_DIRS}",
        "HOME": f"{tmp_path}/base",
        "SECRET": None,
        "EXECD_TOKEN_SHA256": None,
        "AWS_KEY": "k",
        "AWS_REGION": "eu",
        "LANG": "de_DE",
    }


def test_a_passed_on_path_still_begins_with_the_python_links(tmp_path: Path) -> None:
    env = build(tmp_path, pass_env=("PATH", "HOME"))
    assert env["PATH"] == "/state/bin:/root/.local/bin:/usr/bin:/bin"


@pytest.mark.parametrize(("home", "programs"), [("/h", "/h/.local/bin:"), ("h", ""), ("/a:b", "")])
def test_programs_of_pip_are_those_below_the_home(tmp_path: Path, home: str, programs: str) -> None:
    assert build(tmp_path, {"HOME": home})["PATH"] == f"/state/bin:{programs}{USUAL_DIRS}"


def test_a_pattern_passes_no_setting_of_the_daemon_on_and_a_name_does(tmp_path: Path) -> None:
    env = build(tmp_path, pass_env=("*",))
    assert {name: env.get(name) for name in DAEMONS if name != "PATH"} == {
        **{name: DAEMONS[name] for name in DAEMONS if name != "PATH"},
        "EXECD_TOKEN_SHA256": None,
    }
    env = build(tmp_path, pass_env=("EXECD_TOKEN_SHA256",))
    assert env["EXECD_TOKEN_SHA256"] == "0" * 64


def test_what_a_request_sets_wins_but_for_the_marker(tmp_path: Path) -> None:
    env = build(tmp_path, {"HOME": "/h", "PATH": "/p", "TMPDIR": "/t", MARKER: "forged", "NEW": ""})
    assert (env["HOME"], env["PATH"], env["TMPDIR"], env["NEW"], env[MARKER]) == (
        "/h",
        "/p",
        "/t",
        "",
        "id",
    )


def test_the_pods_cpus_are_what_libraries_size_their_pools_by(tmp_path: Path) -> None:
    assert build(tmp_path, pod_cpus=3.7)["OMP_NUM_THREADS"] == "3"
    assert build(tmp_path, pod_cpus=0.25)["PYTHON_CPU_COUNT"] == "1"
    assert "OMP_NUM_THREADS" not in build(tmp_path)


@pytest.mark.parametrize(("run_as", "user"), [("0", "root"), ("0:5", "root"), ("54321", "54321")])
def test_the_user_is_the_one_that_commands_run_as(tmp_path: Path, run_as: str, user: str) -> None:
    assert build(tmp_path, run_as=run_as)["USER"] == user


def make_program(
    folder: Path, *, venv: bool = False, content: bytes = b"\x7fELF...", mode: int = 0o755
) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python3").write_bytes(content)
    (folder / "bin/python3").chmod(mode)
    if venv:
        (folder / "pyvenv.cfg").touch()
    return str(folder / "bin/python3")


def test_a_virtual_environments_python_is_used_in_its_place(tmp_path: Path) -> None:
    venv = make_program(tmp_path / "venv", venv=True)
    assert is_virtual_environment(venv)
    assert not is_virtual_environment(make_program(tmp_path / "plain"))
    assert build(tmp_path, python=venv)["PATH"].startswith(f"{tmp_path}/venv/bin:")


async def test_python_and_python3_are_the_interpreter_set(tmp_path: Path) -> None:
    async with running(tmp_path, DAEMONS, python="/usr/bin/python3") as engine:
        for name in "python", "python3":
            assert (await sh(engine, f"command -v {name}")).text == f"{tmp_path}/state/bin/{name}"
            assert (await sh(engine, f"{name} -c 'print(1 + 1)'")).text == "2"


@pytest.mark.parametrize(
    ("line", "is_login"),
    [
        ("/bin/bash -l -c true", True),
        ("bash -lc 'python -V'", True),
        ("cd x; bash -o pipefail -e --login script", True),
        ("bash -i -l", True),
        ("bash -euo pipefail -lc true", True),
        ("bash --noprofile --norc -c 'ls -l'", False),
        ("bash -c 'ls -l'", False),
        ("bash script -l", False),
        ("mybash -l", False),
        ("bash -" + "l" * 100_000 + "!", False),
    ],
)
def test_login_bash_is_recognized_by_its_options(line: str, is_login: bool) -> None:
    assert bool(LOGIN_BASH.search(line)) == is_login


async def test_a_virtual_environments_packages_are_there(tmp_path: Path) -> None:
    assert is_virtual_environment(sys.executable), "these tests run in one"
    async with running(tmp_path, python=sys.executable) as engine:
        assert (
            await sh(engine, "python -c 'import msgspec; print(msgspec.__name__)'")
        ).text == "msgspec"


async def test_without_a_tmp_the_temporary_folder_is_there_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        assert (await sh(engine, "mktemp && rm $(mktemp)")).text.startswith("/tmp/")


@pytest.fixture
def no_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, *rest, **named: path != "/tmp" and access(path, *rest, **named)
    )


@pytest.mark.usefixtures("no_tmp")
async def test_where_tmp_cannot_be_written_the_temporary_folder_is_in_the_base_dir(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        for _ in range(2):  # user code may remove the folder
            text = (await sh(engine, "echo $TMPDIR; stat -c %a $TMPDIR; rm -rf $TMPDIR")).text
            assert text == f"{tmp_path}/base/.tmp\n1777"


@pytest.mark.usefixtures("no_tmp")
async def test_a_link_in_the_place_of_a_new_temporary_folder_opens_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User code acts before the daemon's next call. A chmod by path would follow the link."""
    mkdir, victim = os.mkdir, tmp_path / "victim"
    victim.mkdir(mode=0o700)

    def make_and_swap(path: str, *mode: int, **named: Any) -> None:
        mkdir(path, *mode, **named)
        if os.path.basename(path) == ".tmp":
            (tmp_path / "base/.tmp").rmdir()
            (tmp_path / "base/.tmp").symlink_to(victim)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    async with running(tmp_path) as engine:
        assert (await sh(engine, "readlink $TMPDIR")).text == str(victim)
    assert victim.stat().st_mode & 0o7777 == 0o700


IMAGES = {
    "PATH": "/opt/conda/bin:/usr/bin:/bin",
    "JAVA_HOME": "/opt/java",
    "LD_LIBRARY_PATH": "/opt/lib",
    "LANG": "de_DE.UTF-8",
    "TMPDIR": "/scratch",
    "HOSTNAME": "pod-1",
    "NOT_UTF_8": "\udcff",
    "KUBERNETES": "no setting of the pod",
}
NOT_THE_IMAGES = {
    "EXECD_TOKEN_SHA256": "0" * 64,
    "EXECD_LOADER_LD_PRELOAD": "x",
    "SANDBOX_BASE_DIR": "/b",
    "OTEL_SERVICE_NAME": "execd",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "PWD": "/somewhere",
    "OLDPWD": "/elsewhere",
    "SHLVL": "1",
    "_": "/usr/bin/execd",
}


def images_environment(
    folder: Path,
    environment: dict[str, str],
    requested: dict[str, str] | None = None,
    **settings: Any,
) -> dict[str, str]:
    config = make_config(folder, image_env="on", **settings)
    made = ChildEnvironment(
        config, environment, bin_dir="/state/bin", python="/usr/bin/python3", temporary_dir="/tmp"
    )
    return made.build("id", requested or {})[0]


def test_commands_see_the_environment_of_the_image(tmp_path: Path) -> None:
    """With ``--image-env on``: all of it, and nothing of the daemon's settings or of the pod."""
    env = images_environment(tmp_path, {**IMAGES, **NOT_THE_IMAGES, "HOME": "/home/image"})
    assert env == {
        MARKER: "id",
        **IMAGES,
        "HOME": "/home/image",
        "USER": pwd.getpwuid(os.geteuid()).pw_name,
        **GIT,
    }


def test_hidden_variables_of_the_image_reach_no_command(tmp_path: Path) -> None:
    environment = {**IMAGES, "DB_PORT": "tcp://10.0.0.2:1", "DB_SERVICE_HOST": "10.0.0.2"}
    env = images_environment(tmp_path, environment, hide_env=("*_PORT", "*_SERVICE_HOST"))
    assert env.keys() & environment.keys() == IMAGES.keys()
    # A variable that is passed by name and hidden by a glob is hidden.
    assert "AWS_KEY" not in build(tmp_path, pass_env=("AWS_KEY",), hide_env=("AWS_*",))
    env = images_environment(tmp_path, NOT_THE_IMAGES, pass_env=("OTEL_*", "SHLVL"))
    assert env.keys() & NOT_THE_IMAGES.keys() == {"OTEL_SERVICE_NAME", "SHLVL"}


def test_path_is_that_of_the_image_with_execd_s_python_last_where_the_image_has_none(
    tmp_path: Path,
) -> None:
    python = os.path.dirname(make_program(tmp_path / "image", content=b"#!/bin/sh\n"))
    path = f"/no/such:{python}:/bin"
    assert images_environment(tmp_path, {"PATH": path})["PATH"] == path
    (tmp_path / "image/bin/python3").chmod(0o644)
    without = f"/no/such:{python}"
    assert images_environment(tmp_path, {"PATH": without})["PATH"] == f"{without}:/state/bin"
    env = images_environment(tmp_path, {"PATH": without}, {"HOME": "/h"})
    assert env["PATH"] == f"{without}:/state/bin", "a request's HOME changes nothing"
    assert images_environment(tmp_path, {})["PATH"].startswith(USUAL_DIRS)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([b"PATH=/bin"], {"PATH": "/bin"}),
        ([b"PATH=/bin", b"LC_CTYPE=C"], {"PATH": "/bin", "LC_CTYPE": "C"}),
        ([], {"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}),
    ],
    ids=["container names none", "container names C", "/proc tells nothing"],
)
def test_locale_that_the_daemon_s_python_has_set_is_none_of_the_image(
    entries: list[bytes], expected: dict[str, str]
) -> None:
    environment = {"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}
    restore_locale(environment, entries)
    assert environment == expected


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwd"
    lines = [f"me:x:{os.geteuid()}:0::/home/me:", "other:x:54321:0::/home/other:", "bad:x:7:0::x:"]
    path.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(passwd, "PATH", str(path))


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize(
    ("run_as", "home", "found"),
    [
        (None, "/of/the/image", ("/of/the/image", "me")),
        (None, "", ("/home/me", "me")),
        (None, "/home/me", ("/home/me", "me")),
        # A runtime sets the home of the container's user.
        ("54321", "/home/me", ("/home/other", "other")),
        ("54321", "/of/the/image", ("/of/the/image", "other")),
        ("54322", "/home/me", ("BASE", "54322")),
        ("7", "", ("BASE", "bad")),
    ],
)
def test_home_and_user_are_of_the_image_or_of_its_passwd_and_a_number_has_the_base_dir(
    tmp_path: Path, run_as: str | None, home: str, found: tuple[str, str]
) -> None:
    environment = {"HOME": home, "USER": "stale"}
    env = images_environment(tmp_path, environment, run_as=run_as)
    assert (env["HOME"].replace(f"{tmp_path}/base", "BASE"), env["USER"]) == found


async def test_capabilities_list_the_names_of_the_variables_that_are_passed(tmp_path: Path) -> None:
    async with running(tmp_path, {**IMAGES, **NOT_THE_IMAGES}, image_env="on") as engine:
        told = engine.capabilities()["environment"]
        assert told == {"image_env": True, "passed": sorted(IMAGES)}
    async with running(tmp_path, DAEMONS, pass_env=("AWS_*",)) as engine:
        told = engine.capabilities()["environment"]
        assert told == {"image_env": False, "passed": ["AWS_KEY", "AWS_REGION"]}


async def test_sessions_and_login_shells_of_an_image_have_its_environment(tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "ODD": "\udcff", "JAVA_HOME": "/opt/java"}
    async with running(tmp_path, environment, image_env="on") as engine:
        assert (await sh(engine, 'printf "$JAVA_HOME $ODD"')).stdout == b"/opt/java \xff"
        script = "bash -lc 'env | grep -c -e BASH_ENV -e EXECD_LOGIN'"
        assert (await sh(engine, script)).stdout == b"0\n"
