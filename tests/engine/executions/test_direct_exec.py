from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.executions import direct_exec
from execd.engine.executions.command import argv_program, shell_program
from execd.engine.executions.direct_exec import (
    CAT,
    MAX_LAYOUTS,
    QUESTION,
    DirectExec,
    Layout,
    is_plain_environment,
    is_plain_search_path,
    parse_answer,
)
from execd.engine.executions.environment import ChildEnvironment
from execd.engine.executions.submission import Submission
from execd.model import Command, ExitReason, Limits, TerminalSize
from execd.proc.spawn import KEEP_IDENTITY
from tests.engine.conftest import finish, make_config, running, sh, shell_command
from tests.patience import patience
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from execd.engine.engine import Engine
    from execd.proc.client import WardenClient

ENV = {"EXECD_EXECUTION_ID": "1", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
STATUS = b"5 (cat) R 4 %d 4 0 -1\n"
FORKS, EXECS = STATUS % 4, STATUS % 5

SHELL_NAME = os.path.basename(os.path.realpath("/bin/sh"))
pytestmark = pytest.mark.skipif(
    SHELL_NAME not in direct_exec.KNOWN_SHELLS,
    reason="nothing is executed directly in the place of this /bin/sh",
)


def environ(*entries: str) -> bytes:
    return "".join(f"{entry}\0" for entry in entries).encode()


# The answer of the shell.


def test_layout_is_the_order_of_the_answer() -> None:
    answer = FORKS + environ("PATH=/usr/bin:/bin", "PWD=/", "LANG=C.UTF-8", "EXECD_EXECUTION_ID=1")
    entries = ["PATH", "PWD", "LANG", "EXECD_EXECUTION_ID"]
    assert parse_answer(answer, ENV) == Layout(entries, forks=True, locale=())


def test_layout_of_bash_has_its_variables_and_holds_for_one_locale() -> None:
    shown = [f"{name}={value}" for name, value in ENV.items()]
    answer = EXECS + environ(*shown, "SHLVL=0", f"_={CAT}", "PWD=/")
    layout = parse_answer(answer, ENV)
    assert layout == Layout(
        [*ENV, "SHLVL=0", "_", "PWD"], forks=False, locale=(("LANG", "C.UTF-8"),)
    )


def test_names_that_are_no_names_of_variables_may_be_dropped_and_others_not() -> None:
    shown = [f"{name}={value}" for name, value in ENV.items()]
    assert parse_answer(FORKS + environ(*shown), ENV | {"a-b": "1", "2x": ""}) is not None
    assert parse_answer(FORKS + environ(*shown), ENV | {"ab": "1"}) is None


@pytest.mark.parametrize(
    "entries",
    [
        ["X=1"],
        ["PWD=/tmp"],
        ["SHLVL=1"],
        ["_=/bin/sh"],
        ["OLDPWD=/"],
        ["LANG=C"],
        ["PWD=/", "PWD=/"],
        [""],
        ["\udcff=1"],
    ],
)
def test_an_answer_with_anything_else_means_that_the_shell_is_needed(entries: list[str]) -> None:
    shown = [f"{name}={value}" for name, value in ENV.items()]
    data = b"".join(os.fsencode(entry) + b"\0" for entry in [*shown, *entries])
    assert parse_answer(FORKS + data, ENV) is None


@pytest.mark.parametrize("status", [b"", b"\n", b"x (cat) R 1 1\n", b"5 (cat) R\n", b"5\n"])
def test_an_answer_without_a_status_means_that_the_shell_is_needed(status: bytes) -> None:
    assert parse_answer(status + environ(*(f"{k}={v}" for k, v in ENV.items())), ENV) is None


# What the shell treats in a way of its own.


@pytest.mark.parametrize(
    "name", ["IFS", "_", "PWD", "SHLVL", "BASH_FUNC_x%%", "BASHOPTS", "HISTSIZE"]
)
def test_variables_of_shells_are_not_plain(name: str) -> None:
    assert not is_plain_environment([*ENV, name])


def test_variables_that_change_the_shells_own_start_are_not_plain() -> None:
    for name in "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CHECK_":
        assert not is_plain_environment([name])
    assert is_plain_environment(["A", "TRACEPARENT", "é", "a-b", "2"])
    assert not is_plain_environment([f"A{number}" for number in range(257)])


@pytest.mark.parametrize(
    ("path", "is_plain"),
    [
        ("/bin", True),
        ("/usr/bin:/bin:/a b", True),
        ("", False),
        (":/bin", False),
        ("/bin:", False),
        ("/bin:.", False),
        ("~/bin:/bin", False),
        ("/x~y:/bin", False),
        ("/bin:/lib%func", False),
        (":".join(["/bin"] * 64), True),
        (":".join(["/bin"] * 65), False),
    ],
)
def test_plain_search_path_has_absolute_directories_only(path: str, is_plain: bool) -> None:
    assert is_plain_search_path(path) is is_plain


# The decision.


@pytest.fixture(autouse=True)
def late_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's answer may take long on a machine that stands still."""
    monkeypatch.setattr(direct_exec, "START_SECONDS", 60.0)


@pytest.fixture
async def direct(client: WardenClient, tmp_path: Path) -> AsyncIterator[DirectExec]:
    direct = make(client, tmp_path)
    await direct.start()
    yield direct
    await direct.close()


def make(client: WardenClient, folder: Path, **options: Any) -> DirectExec:
    environment = ChildEnvironment(
        make_config(folder), {"PATH": os.defpath}, bin_dir="/bin", python="/usr/bin/python3"
    )
    return DirectExec(client, environment, KEEP_IDENTITY, Limits(), **({"is_on": True} | options))


def build(direct: DirectExec, **requested: str) -> dict[str, str]:
    return direct._environment.build("some-id", requested)[0]


async def asked(direct: DirectExec) -> None:
    await wait_until_async(lambda: direct._asking is None)


def command(line: str, **fields: Any) -> Command:
    return Command(program=shell_program(line), **fields)


async def test_a_plain_line_has_a_direct_start(direct: DirectExec) -> None:
    start = direct.find(command("ls -l 'a b'"), build(direct))
    assert start is not None
    assert start.program.argv == ["ls", "-l", "a b"]
    assert set(build(direct)) <= set(start.program.env)


@pytest.mark.parametrize(
    "other",
    [
        command("ls | cat"),
        command("ls", terminal=TerminalSize()),
        Command(program=shell_program("ls", ["/bin/bash", "-c"])),
        Command(program=shell_program("ls", ["/bin/sh", "-e", "-c"])),
        Command(program=argv_program(["/bin/sh", "-c", "ls"])),
        Command(program=argv_program(["ls"])),
        command("ls " + "a" * 200_000),
    ],
)
async def test_any_other_command_has_none(direct: DirectExec, other: Command) -> None:
    assert direct.find(other, build(direct)) is None


async def test_path_of_a_caller_is_judged_each_time(direct: DirectExec) -> None:
    for path in "", ".", "~/bin":
        assert direct.find(command("ls"), build(direct, PATH=path)) is None
    assert direct.find(command("ls"), build(direct, PATH="/opt:/bin")) is not None


async def test_names_are_asked_about_when_they_come_again(direct: DirectExec) -> None:
    for number in range(2):
        assert direct.find(command("ls"), build(direct, A=f"{number}")) is None
        assert (direct._asking is not None) is (number == 1)
    await asked(direct)
    start = direct.find(command("ls"), build(direct, A="3"))
    assert start is not None
    assert "A" in start.program.env


async def test_the_question_has_no_value_of_a_caller(
    direct: DirectExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[dict[str, str]] = []
    ask = direct._ask

    async def record(env: dict[str, str]) -> bytes:
        questions.append(env)
        return await ask(env)

    monkeypatch.setattr(direct, "_ask", record)
    for _ in range(2):
        direct.find(command("ls"), build(direct, TOKEN="secret", HOME="/secret"))
    await asked(direct)
    assert len(questions) == 1
    assert "secret" not in " ".join(questions[0].values())
    assert questions[0].keys() == build(direct, TOKEN="").keys()


async def test_variables_of_shells_are_never_asked_about(direct: DirectExec) -> None:
    for _ in range(4):
        assert direct.find(command("ls"), build(direct, IFS=",")) is None
        assert direct._asking is None


async def test_names_without_end_are_forgotten(direct: DirectExec) -> None:
    for number in range(MAX_LAYOUTS * 2):
        direct.find(command("ls"), build(direct, **{f"A{number}": ""}))
    assert len(direct._seen) == MAX_LAYOUTS
    for number in range(MAX_LAYOUTS * 2):
        for _ in range(2):
            direct.find(command("ls"), build(direct, IFS="", **{f"B{number}": ""}))
    assert len(direct._layouts) == MAX_LAYOUTS


async def test_switched_off_nothing_is_asked_and_nothing_is_direct(
    client: WardenClient, tmp_path: Path
) -> None:
    direct = make(client, tmp_path, is_on=False)
    await direct.start()
    assert direct.find(command("ls"), build(direct)) is None
    assert direct._layouts == {}
    await direct.close()


def make_shell(path: Path, name: str | None) -> str:
    """A shell that is a program of its own, or a link to a shell of that name."""
    path.unlink(missing_ok=True)
    if name is None:
        shutil.copy2(os.path.realpath("/bin/sh"), path)
    else:
        path.symlink_to(os.path.realpath(name))
    return str(path)


async def test_a_shell_of_an_unknown_name_is_never_replaced(
    client: WardenClient, tmp_path: Path
) -> None:
    direct = make(client, tmp_path, shell=make_shell(tmp_path / "sh", None))
    await direct.start()
    for _ in range(3):
        assert direct.find(command("ls"), build(direct)) is None
    assert direct._asking is None
    await direct.close()


async def test_a_new_shell_is_asked_anew(client: WardenClient, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None or os.path.realpath("/bin/sh") == os.path.realpath(bash):
        pytest.skip("needs bash beside another /bin/sh")
    direct = make(client, tmp_path, shell=make_shell(tmp_path / "sh", "/bin/sh"))
    await direct.start()
    first = direct.find(command("ls"), build(direct))
    make_shell(tmp_path / "sh", bash)
    assert [direct.find(command("ls"), build(direct)) for _ in range(2)] == [None, None]
    await asked(direct)
    second = direct.find(command("ls"), build(direct))
    assert first is not None
    assert second is not None
    assert "SHLVL=0" in second.program.env
    assert first.program.env != second.program.env
    (tmp_path / "sh").unlink()
    assert direct.find(command("ls"), build(direct)) is None
    await direct.close()


async def test_a_locale_for_which_bash_was_not_asked_takes_the_shell(
    client: WardenClient, tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    direct = make(client, tmp_path, shell=make_shell(tmp_path / "sh", bash))
    await direct.start()
    assert direct.find(command("ls"), build(direct)) is not None
    assert direct.find(command("ls"), build(direct, LANG="xx_YY")) is None
    await direct.close()


@pytest.mark.parametrize("question", ["sleep 1000", "false", "kill -9 $$"])
async def test_a_shell_that_does_not_answer_holds_up_no_start_and_is_left_alone_at_last(
    client: WardenClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setattr(direct_exec, "QUESTION", question)
    monkeypatch.setattr(direct_exec, "START_SECONDS", 0.05)
    monkeypatch.setattr(direct_exec, "ANSWER_SECONDS", 0.2)
    direct = make(client, tmp_path)
    await direct.start()
    for n_asked in range(1, direct_exec.MAX_FAILURES + 1):
        assert direct._layouts == {}
        await asked(direct)
        assert direct._n_failures == n_asked
        for _ in range(2):
            assert direct.find(command("ls"), build(direct)) is None
    assert list(direct._layouts.values()) == [None]
    assert direct._asking is None
    await direct.close()


async def test_an_answer_after_failures_counts(
    direct: DirectExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_exec, "QUESTION", "false")
    for number in range(direct_exec.MAX_FAILURES - 1):
        for _ in range(2):
            direct.find(command("ls"), build(direct, **{f"A{number}": ""}))
        await asked(direct)
    monkeypatch.setattr(direct_exec, "QUESTION", QUESTION)
    direct.find(command("ls"), build(direct, A0=""))
    await asked(direct)
    assert direct.find(command("ls"), build(direct, A0="")) is not None
    assert direct._n_failures == 0


async def test_close_ends_a_question(
    client: WardenClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_exec, "QUESTION", "sleep 1000")
    monkeypatch.setattr(direct_exec, "START_SECONDS", 0.05)
    direct = make(client, tmp_path)
    await direct.start()
    await asyncio.wait_for(direct.close(), patience.seconds(5))
    assert direct._asking is None


async def test_a_question_to_a_warden_that_dies_is_asked_again(
    client: WardenClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_exec, "QUESTION", "sleep 1000")
    monkeypatch.setattr(direct_exec, "START_SECONDS", 0.05)
    direct = make(client, tmp_path)
    await direct.start()
    assert client.pid is not None
    os.kill(client.pid, 9)
    await asked(direct)
    assert direct._layouts == {}
    monkeypatch.setattr(direct_exec, "QUESTION", QUESTION)
    await client.loop.create_task(client.up.wait())
    await wait_until_async(lambda: client.up.is_set())
    for _ in range(2):
        direct.find(command("ls"), build(direct))
    await asked(direct)
    assert direct.find(command("ls"), build(direct)) is not None
    await direct.close()


# Whole executions.


async def test_a_signal_of_a_caller_ends_a_direct_command_as_it_ends_a_shell(
    tmp_path: Path,
) -> None:
    for is_on in "off", "on":
        async with running(tmp_path, direct_exec=is_on) as engine:
            execution = engine.submit(Submission(shell_command("sleep 100"))).execution
            await execution.wait_started()
            execution.signal(10)
            ran = await finish(execution)
            assert (ran.result.exit_reason, ran.result.term_signal) == (ExitReason.SIGNALED, 10)
            assert ran.stderr == b""


async def test_the_words_about_a_death_come_below_much_output_on_the_disk(engine: Engine) -> None:
    program = "import os; os.write(2, b'x' * (3 << 20)); os.kill(os.getpid(), 11)"
    ran = await sh(engine, f'python3 -c "{program}"')
    assert ran.execution.started_by == "direct"
    words = b"Segmentation fault\n" if SHELL_NAME == "dash" else b""
    assert ran.stderr == b"x" * (3 << 20) + words


async def test_a_file_size_limit_is_told_as_the_shell_tells_it(tmp_path: Path) -> None:
    both = []
    for is_on in "off", "on":
        async with running(tmp_path, direct_exec=is_on) as engine:
            limits = Limits(file_size_bytes=4096)
            ran = await sh(engine, "dd if=/dev/zero of=big bs=1k count=100", limits=limits)
            both.append((ran.result.exit_code, ran.result.exit_reason))
    assert both[0] == both[1]
    assert both[0][1] is ExitReason.FILE_SIZE_LIMIT


async def test_the_way_of_the_start_outlives_the_daemon(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        execution = engine.submit(Submission(shell_command("ls -a", detached=True))).execution
        await execution.wait()
        assert execution.started_by == "direct"
    async with running(tmp_path) as engine:
        assert engine.get(execution.id).started_by == "direct"


async def test_plain_words_run_without_a_shell_in_the_environment_of_an_image_too(
    tmp_path: Path,
) -> None:
    """HOSTNAME is in the environment of every container."""
    environment = {"PATH": os.defpath, "HOSTNAME": "pod-1", "PWD": "/", "SHLVL": "1", "_": "execd"}
    async with running(tmp_path, environment, image_env="on") as engine:
        printed = await sh(engine, "env")
        assert printed.execution.started_by == "direct"
        assert b"HOSTNAME=pod-1\n" in printed.stdout
