"""Command lines of plain words: executed without a shell, and no caller can tell but by
``started_by``."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from .target import elsewhere, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Run
    from .target import Target


def execute(client: httpx.Client, command: str, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/executions", json={"command": command, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


@pytest.fixture(autouse=True)
def known_shell(run: Run) -> str:
    """The shell behind /bin/sh, which is dash or bash."""
    shell = run.out("readlink -f /bin/sh").strip().rpartition("/")[2]
    if shell not in ("dash", "bash"):
        pytest.skip(f"no command of a {shell} is executed directly")
    return shell


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("ls -d /usr /", "/\n/usr\n"),
        (" seq\t2 \n", "1\n2\n"),
        ("seq '2'", "1\n2\n"),
        ("expr 'a  b' : \"a  b\"", "4\n"),
        ("/bin/ls -d /", "/\n"),
        ("sh -c 'echo $((6 * 7))'", "42\n"),
        ("python3 -c \"print('it is')\"", "it is\n"),
    ],
)
def test_plain_words_run_without_a_shell(client: httpx.Client, command: str, stdout: str) -> None:
    ran = execute(client, command)
    assert (ran["started_by"], ran["stdout"], ran["exit_code"]) == ("direct", stdout, 0)
    found = client.get(f"/v1/executions/{ran['id']}").json()
    assert found["started_by"] == "direct"


@pytest.mark.parametrize(
    "command",
    [
        *("true", "echo a", "cd /", "test -d /", ":", "exit 0", "command ls", ". /dev/null"),
        *("ls | cat", "ls; ls", "ls && ls", "ls > /dev/null", "ls &", "(ls)", "ls # x"),
        *("ls $HOME", 'ls "$HOME"', "ls ~", "ls *", "ls [/]", "ls /{bin,etc}", "ls `pwd`"),
        *("A=1 ls", "A=1", "! ls", "if ls; then ls; fi", "ls \\\n-a", "ls\nls", "ls -a\n\n"),
        *("ls 'a\nb' .", "ls 'ä' .", "ps", "pgrep -c sh"),
    ],
)
def test_everything_else_takes_the_shell(client: httpx.Client, command: str) -> None:
    assert execute(client, command)["started_by"] == "shell"


def test_arguments_of_a_caller_are_no_command_line(client: httpx.Client) -> None:
    reply = client.post("/v1/executions", json={"argv": ["ls", "-d", "/"]}).json()
    assert (reply["started_by"], reply["stdout"]) == ("argv", "/\n")
    chosen = execute(client, "ls -d /", shell=["/bin/sh", "-e", "-c"])
    assert (chosen["started_by"], chosen["stdout"]) == ("shell", "/\n")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"env": {"B": "1", "a-b": "2", "ü": "3", "A": "\n 'x'", "EMPTY": ""}},
        {"env": {"HOME": "/", "PATH": "/usr/bin:/bin"}},
        {"cwd": "/usr/share"},
    ],
)
def test_program_finds_what_the_shell_would_have_passed_on(
    client: httpx.Client, fields: dict[str, Any]
) -> None:
    def shown(command: str) -> tuple[str, list[str]]:
        ran = execute(client, command, **fields)
        entries = ran["stdout"].split("\0")
        return ran["started_by"], [
            entry for entry in entries if not entry.startswith("EXECD_EXECUTION_ID=")
        ]

    for command in ("env -0", "cat /proc/self/environ"):
        for _ in range(20):  # execd asks the shell about new names in the background
            started_by, directly = shown(command)
            if started_by == "direct":
                break
        assert started_by == "direct"
        # The same line with a comment is not plain.
        by_shell = shown(f"{command} #")
        assert by_shell == ("shell", directly)


@pytest.mark.both_shapes
def test_program_without_a_shell_has_the_three_descriptors_and_no_signal_ignored(
    run: Run,
) -> None:
    for command in ("grep -c . /proc/self/fdinfo/0", "grep -E '^Sig(Blk|Ign)' /proc/self/status"):
        assert run(command).stdout == run(f"{command} #").stdout
    listed = "python3 -c 'import os; print(sorted(os.listdir(\"/proc/self/fd\")))'"
    assert run(listed).stdout == run(f"{listed} #").stdout == "['0', '1', '2', '3']\n"


@pytest.mark.both_shapes
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGPIPE, 10, 34, 64],
)
def test_death_of_a_program_without_a_shell_is_told_as_by_the_shell(
    client: httpx.Client, number: int
) -> None:
    program = f"python3 -c 'import os, signal; os.kill(os.getpid(), {int(number)})'"
    names = ("exit_code", "exit_reason", "signal", "message", "stdout", "stderr")
    directly, by_shell = execute(client, program), execute(client, f"{program} #")
    assert (directly["started_by"], by_shell["started_by"]) == ("direct", "shell")
    assert [directly[name] for name in names] == [by_shell[name] for name in names]


def test_failed_start_of_a_plain_line_is_told_by_the_shell(
    client: httpx.Client, folder: str
) -> None:
    execute(client, f"cd {folder} && printf 'echo hi' > x && printf '#!/no/such\\n' > y")
    execute(client, f"cd {folder} && chmod 755 x y && touch z")
    for command in ("no-such-program -x", "/usr", "./x a", "./y", "./z", "./none"):
        plain = execute(client, command, cwd=folder)
        shell = execute(client, f"{command} #", cwd=folder)
        names = ("started_by", "exit_code", "exit_reason", "stdout", "stderr")
        assert [plain[name] for name in names] == [shell[name] for name in names], command


def test_input_limits_and_time_hold_without_a_shell(client: httpx.Client) -> None:
    ran = execute(client, "cat", stdin="given")
    assert (ran["started_by"], ran["stdout"]) == ("direct", "given")
    ran = execute(client, "cat /proc/self/limits", limits={"open_files": 99})
    assert ran["started_by"] == "direct"
    if elsewhere() is None:  # gVisor shows other limits
        assert "99" in next(line for line in ran["stdout"].splitlines() if "open files" in line)
    ran = execute(client, "sleep 100", timeout_seconds=0.3)
    assert (ran["started_by"], ran["exit_reason"], ran["stderr"]) == ("direct", "timeout", "")
    ran = execute(client, "ls -d /", pty={"cols": 80, "rows": 24})
    assert (ran["started_by"], ran["stdout"]) == ("shell", "/\r\n")


def test_direct_execution_can_be_switched_off(own_daemon: Callable[..., Target]) -> None:
    daemon = own_daemon("--direct-exec=off")
    with httpx.Client(base_url=daemon.url, timeout=60, trust_env=False) as client:
        for _ in range(3):
            assert execute(client, "ls -d /")["started_by"] == "shell"
    assert '"started_by":"shell"' in daemon.log_text()
    assert '"started_by":"direct"' not in daemon.log_text()


def test_log_line_of_a_command_has_the_way_of_its_start(own_daemon: Callable[..., Target]) -> None:
    daemon = own_daemon()
    with httpx.Client(base_url=daemon.url, timeout=60, trust_env=False) as client:
        wait_until(
            lambda: execute(client, "ls -d /")["started_by"] == "direct", 20, "the shell is known"
        )
        assert client.post("/execute", json={"command": "ls -d / | cat"}).status_code == 200

    def lines() -> list[str]:
        return [line for line in daemon.log_text().splitlines() if '"started_by"' in line]

    wait_until(lambda: lines() and '"shell"' in lines()[-1], 10, "both commands are in the log")
    assert '"started_by":"direct"' in lines()[-2]
