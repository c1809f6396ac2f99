"""The rules of a command: refused requests, and how a request becomes a command."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from execd.engine.executions.command import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS_BYTES,
    PYTHON,
    SHELL,
    argv_program,
    complete,
    line_program,
    shell_program,
)
from execd.engine.executions.submission import Submission
from execd.errors import InvalidArgument
from execd.model import Command
from tests.engine.conftest import finish, make_config, sh

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.engine import Engine


def made(
    folder: Path,
    settings: dict[str, Any] | None = None,
    command: str = "true",
    shell: list[str] | None = None,
    **fields: Any,
) -> Command:
    program = shell_program(command, SHELL if shell is None else shell)
    return complete(make_config(folder, **(settings or {})), Command(program=program, **fields))


def refusal(folder: Path, settings: dict[str, Any] | None = None, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        made(folder, settings, **fields)
    return caught.value


@pytest.mark.parametrize("user", ["0", "0:0", "1001", "1000:0", "1000:1001"])
def test_run_as_holds_whatever_user_is_asked_for(tmp_path: Path, user: str) -> None:
    error = refusal(tmp_path, {"run_as": "1000"}, user=user)
    assert error.message == "user: this daemon runs everything as 1000 (--run-as)"
    assert error.details == {"field": "user"}


@pytest.mark.root
@pytest.mark.parametrize("user", ["1000", "1000:1000", "01000"])
def test_user_may_be_the_one_of_run_as(tmp_path: Path, user: str) -> None:
    assert made(tmp_path, {"run_as": "1000"}, user=user).user == user


@pytest.mark.root
def test_without_run_as_any_user_that_there_can_be_is_taken(tmp_path: Path) -> None:
    assert made(tmp_path, user="1234:5678").user == "1234:5678"
    # setresuid(2) reads this number as "keep the present uid".
    assert refusal(tmp_path, user="4294967295").details == {"field": "user"}


@pytest.mark.not_root
def test_without_root_no_user_is_taken(tmp_path: Path) -> None:
    assert refusal(tmp_path, user="1234").details == {"field": "user"}


@pytest.mark.parametrize("name", ["root", "daemon"])
async def test_user_is_a_number_or_a_name_of_the_passwd_file(engine: Engine, name: str) -> None:
    command = Command(program=shell_program("true"), user=name)
    entry = pwd.getpwnam(name)
    named = await engine.with_account(command)
    assert named.user == f"{entry.pw_uid}:{entry.pw_gid}"
    assert named.env == {"USER": name, "LOGNAME": name, "HOME": entry.pw_dir}
    own = msgspec.structs.replace(command, env={"HOME": "/own"})
    assert (await engine.with_account(own)).env == {**named.env, "HOME": "/own"}


LONG = "true #" + "x" * MAX_ARGUMENT_BYTES


async def test_a_long_text_in_python_has_the_same_surroundings_as_a_short_text(
    engine: Engine,
) -> None:
    """The long text comes by a descriptor, and leaves none open."""
    text = "import os, sys; print(__name__, sys.argv, sorted(os.listdir('/proc/self/fd')), 'é')"
    outputs = []
    for padding in "", " #" + "x" * MAX_ARGUMENT_BYTES:
        command = Command(program=shell_program(text + padding, PYTHON))
        execution = engine.submit(Submission(command)).execution
        await execution.wait()
        outputs.append((await execution.view.excerpt("stdout", 1000)).head)
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(b"__main__ ['-c'] ['0', '1', '2', ")


@pytest.mark.parametrize(
    "shell",
    [
        None,
        ["bash", "-c"],
        ["/usr/bin/bash", "-lc"],
        ["bash", "-o", "pipefail", "-c"],
        ["zsh", "-c"],
    ],
)
def test_a_long_command_is_a_script_that_the_shell_reads(
    tmp_path: Path, shell: list[str] | None
) -> None:
    command = made(tmp_path, command=LONG, shell=shell)
    assert command.program.argv == (*(shell or SHELL), ". /proc/self/fd/3")
    assert (command.program.script, command.program.display) == (f"exec 3<&-; {LONG}", LONG)


@pytest.mark.parametrize(
    "shell",
    [
        ["python3.13", "-c"],
        ["node", "-e"],
        ["bash"],
        ["bash", "-c", "-x"],
        ["env", "-S"],
        ["perl", "-c"],
    ],
)
def test_a_long_command_for_what_is_no_shell_is_refused_and_a_short_one_runs(
    tmp_path: Path, shell: list[str]
) -> None:
    error = refusal(tmp_path, command=LONG, shell=shell)
    assert str(MAX_ARGUMENT_BYTES) in error.message
    assert error.details == {"field": "command"}
    short = LONG[:MAX_ARGUMENT_BYTES]
    assert made(tmp_path, command=short, shell=shell).program.argv == (*shell, short)


@pytest.mark.parametrize("shell", [None, ["bash", "-c"], ["bash", "-lc"]])
async def test_a_long_script_has_no_descriptor_more_than_a_short_one(
    engine: Engine, shell: list[str] | None
) -> None:
    text = "#!/bin/sh\nls /proc/self/fd; sh -c 'ls /proc/self/fd'; echo $LINENO"
    outputs = []
    for padding in "", " #" + "x" * MAX_ARGUMENT_BYTES:
        execution = engine.submit(
            Submission(Command(program=shell_program(text + padding, shell)))
        ).execution
        outputs.append((await finish(execution)).stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(b"0\n1\n2\n3\n")


NAMES = ["-", "-c", "-x", "-o", "--", "--version", "+", "+x", "+o"]


@pytest.mark.parametrize(
    "shell", [None, ["bash", "-c"], ["bash", "--norc", "-ec"], ["env", "bash", "-lc"]]
)
async def test_a_line_that_begins_as_an_option_is_a_command(
    engine: Engine, tmp_path: Path, shell: list[str] | None
) -> None:
    for name in NAMES:
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$0" "$@"\n')
        program.chmod(0o755)
    for name in NAMES:
        line = f'{name} one "two" -x'
        programs = [shell_program(line, shell)]
        if shell is None or shell[0] == "bash":
            programs.append(line_program([*(shell or SHELL), line]))
        for program in programs:
            command = Command(program=program, env={"PATH": f"{tmp_path}:{os.defpath}"})
            ended = await finish(engine.submit(Submission(command)).execution)
            assert ended.text == f"{tmp_path}/{name} one two -x"


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "-x", "-e"],
        ["sh", "script", "-c", "-x"],
        ["bash", "--norc", "-i"],
        ["grep", "-c", "-x"],
        ["sh", "-c", "true", "-x"],
        ["sh", "-c"],
    ],
)
def test_a_vector_that_has_no_line_is_left_alone(argv: list[str]) -> None:
    assert line_program(argv).argv == tuple(argv)


@pytest.mark.parametrize(
    "spelled", [None, "", ".", "./", ".//.", "{base}", "{base}/", "{base}/./", "{parent}//base"]
)
def test_cwd_that_is_the_base_dir_is_none_however_it_is_spelled(
    tmp_path: Path, spelled: str | None
) -> None:
    cwd = None if spelled is None else spelled.format(base=tmp_path / "base", parent=tmp_path)
    assert made(tmp_path, cwd=cwd).cwd is None


@pytest.mark.parametrize("cwd", ["sub", "a/..", "..", "/", "/tmp"])
def test_cwd_that_may_be_elsewhere_is_a_path(tmp_path: Path, cwd: str) -> None:
    assert made(tmp_path, cwd=cwd).cwd == os.path.join(tmp_path / "base", cwd)


@pytest.mark.parametrize("cwd", ["a\0b", "\ud800"])
def test_cwd_that_no_directory_can_have_is_refused(tmp_path: Path, cwd: str) -> None:
    assert refusal(tmp_path, cwd=cwd).message.startswith("cwd: ")


@pytest.mark.parametrize("cwd", [None, ".", "{base}"])
async def test_base_dir_that_was_removed_is_made_again_for_a_command(
    engine: Engine, tmp_path: Path, cwd: str | None
) -> None:
    shutil.rmtree(tmp_path / "base")
    cwd = None if cwd is None else cwd.format(base=tmp_path / "base")
    assert (await sh(engine, "pwd", cwd=cwd)).text == f"{tmp_path}/base"


@pytest.mark.parametrize(
    "argv", [["true", *["a"] * (MAX_ARGUMENTS_BYTES // 10)], ["true", *["a" * 100_000] * 21]]
)
def test_more_arguments_than_any_kernel_takes_are_refused_before_each_is_looked_at(
    argv: list[str],
) -> None:
    with pytest.raises(InvalidArgument, match=f"^argv: .*{MAX_ARGUMENTS_BYTES}"):
        argv_program(argv)


def test_more_variables_than_any_kernel_takes_are_refused_before_each_is_looked_at(
    tmp_path: Path,
) -> None:
    env = {f"a{number}": "" for number in range(MAX_ARGUMENTS_BYTES // 9 + 1)}
    error = refusal(tmp_path, env=env)
    assert re.match(f"^env: .*{MAX_ARGUMENTS_BYTES}", error.message)
