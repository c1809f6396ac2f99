"""Programs by ``execctl run`` and ``execctl sh``: exit codes, signals, sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from typing import TYPE_CHECKING, Any

import pexpect
import pytest

from tests.client.cli.conftest import EXECCTL, TIMEOUT_SECONDS, ended
from tests.client.cli.routers import losing_router
from tests.client.conftest import AT_ONCE
from tests.conformance.target import wait_until
from tests.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Spawn = Callable[..., pexpect.spawn[str]]

    from execd_client import Execd


@pytest.mark.parametrize(
    ("argv", "exit_code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_the_programs(execctl: Run, argv: list[str], exit_code: int) -> None:
    assert execctl("run", "--", *argv).returncode == exit_code


def test_output_input_and_options_are_passed_on(execctl: Run) -> None:
    done = execctl("run", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert execctl("run", "--", "wc", "-c", input="four").stdout.strip() == "4"
    done = execctl("run", "--cwd", "/tmp", "-e", "A=1", "-c", "pwd; echo $A | cat")
    assert done.stdout == "/tmp\n1\n"
    done = execctl("run", "--timeout", "0.2", "--", "sleep", "60")
    assert done.returncode in (143, 137)  # SIGTERM's, or SIGKILL's after a slow grace
    assert "time limit" in done.stderr


def test_json_has_the_whole_result(execctl: Run) -> None:
    done = execctl("--json", "run", "-c", "echo out; exit 3")
    found = json.loads(done.stdout)
    assert (found["stdout"], found["exit_code"], done.returncode) == ("out\n", 3, 3)


def test_json_of_logs_and_kill_has_the_results(execctl: Run) -> None:
    program_id = execctl("run", "--detach", "-c", "echo begun; sleep 60").stdout.strip()
    wait_until(lambda: execctl("logs", program_id).stdout == "begun\n", 30, "the program has begun")
    running = json.loads(execctl("logs", "--json", program_id).stdout)
    assert (running["state"], running["stdout"]) == ("RUNNING", "begun\n")
    signalled = json.loads(execctl("kill", "--json", "--signal", "SIGCONT", program_id).stdout)
    assert signalled == [{"id": program_id, "signal": "SIGCONT"}]
    [killed] = json.loads(execctl("kill", "--json", program_id).stdout)
    assert (killed["id"], killed["state"], killed["stdout"]) == (program_id, "EXITED", "begun\n")
    followed = execctl("logs", "-f", "--json", program_id)
    assert json.loads(followed.stdout)["exit_code"] == killed["exit_code"] == followed.returncode


@pytest.mark.parametrize("arguments", [["sh"], ["run", "--tty", "--", "cat"]])
def test_a_terminal_is_refused_where_the_input_is_no_terminal(
    execctl: Run, arguments: list[str]
) -> None:
    done = execctl(*arguments, input="typed\n")
    assert done.returncode == 2
    assert "the input is no terminal; pass input to `execctl run` without --tty" in done.stderr


def test_a_detached_program_is_listed_followed_and_killed(execctl: Run) -> None:
    program_id = execctl("run", "--detach", "-c", "echo begun; sleep 600").stdout.strip()
    assert program_id in execctl("ps").stdout
    listed = json.loads(execctl("ps", "--json").stdout)
    assert program_id in [item["id"] for item in listed]
    wait_until(lambda: execctl("logs", program_id).stdout == "begun\n", 30, "the program has begun")
    assert execctl("kill", program_id).returncode == 0
    followed = execctl("logs", "-f", program_id)
    assert (followed.stdout, followed.returncode) == ("begun\n", 143)
    assert program_id not in execctl("ps").stdout
    assert program_id in execctl("ps", "--all").stdout


def test_ctrl_c_goes_to_the_program(terminal: Spawn, sandbox: Execd) -> None:
    ready = str(uuid.uuid4())
    line = f"trap 'echo caught; exit 9' INT; : > {ready}; while :; do sleep 0.05; done"
    child = terminal("run", "-c", line)
    wait_until(lambda: sandbox.files.exists(ready), TIMEOUT_SECONDS, "the program is ready")
    child.sendintr()
    child.expect("caught")
    assert ended(child) == 9


@AT_ONCE
def test_a_program_that_ignores_ctrl_c_ends_at_the_third(terminal: Spawn) -> None:
    line = "trap 'echo ignored' INT; echo ready; while :; do sleep 0.05; done"
    child = terminal("run", "-c", line)
    child.expect("ready")
    for _ in range(2):
        child.sendintr()
        child.expect("ignored")
    child.sendintr()
    assert ended(child) in (137, 143)


def test_sigterm_goes_to_the_program(url: str, sandbox: Execd) -> None:
    ready = str(uuid.uuid4())
    line = f"trap 'echo caught; exit 5' TERM; : > {ready}; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [EXECCTL, "--url", url, "run", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        wait_until(lambda: sandbox.files.exists(ready), TIMEOUT_SECONDS, "the program is ready")
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"caught\n"
        assert process.wait(TIMEOUT_SECONDS) == 5


def test_a_reader_that_closes_the_pipe_ends_the_program(url: str, sandbox: Execd) -> None:
    name = str(uuid.uuid4())
    command = f"'{EXECCTL}' --url {url} run --id {name} -- yes </dev/null | head -1"
    shown = subprocess.run(["sh", "-c", command], capture_output=True, timeout=TIMEOUT_SECONDS)
    assert (shown.stdout, shown.stderr) == (b"y\n", b"")
    assert sandbox.handle(name).wait().exit_reason == "canceled"


def test_a_shell_has_the_size_of_the_terminal_and_follows_it(terminal: Spawn) -> None:
    child = terminal("sh")
    child.expect(r"[$#] ")
    child.sendline("stty size")
    child.expect("30 100")
    child.setwinsize(40, 120)
    child.sendline("while [ \"$(stty size)\" != '40 120' ]; do sleep 0.05; done; echo re''sized")
    child.expect("resized")
    child.sendline("exit 6")
    assert ended(child) == 6


def test_keys_go_to_the_program_in_the_terminal(terminal: Spawn) -> None:
    child = terminal("run", "--tty", "--", "sh", "-c", "echo ready; read x; echo got-$x")
    child.expect("ready")
    child.sendline("typed")
    child.expect("got-typed")
    assert ended(child) == 0


def test_execd_out_of_reach_is_125_with_the_next_step(execctl: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = execctl("--url", url, "--retry-seconds", "0.1", "run", "--", "true")
    assert done.returncode == 125
    assert "EXECD_URL" in done.stderr
    assert url in done.stderr


def test_a_refusal_is_125_and_a_mistake_is_2(execctl: Run) -> None:
    done = execctl("run", "--session", "missing", "--", "true")
    assert done.returncode == 125
    assert "execctl sessions" in done.stderr
    assert execctl("logs", "missing").returncode == 125
    for wrong in (["run"], ["run", "-e", "A", "--", "true"], ["--url", "nowhere", "ps"]):
        assert execctl(*wrong).returncode == 2
    done = execctl("run", "--memory", "100", "--", "true")
    assert (done.returncode, "No such option '--memory'" in done.stderr) == (2, True)


def test_without_the_extra_execctl_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['click'] = None\nfrom execd_client.cli import main\nmain()"
    done = subprocess.run(
        [os.path.join(os.path.dirname(EXECCTL), "python"), "-c", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 125
    assert "pip install 'execd-client[cli]'" in done.stderr


def test_the_shell_completes_commands(execctl: Run) -> None:
    variables: dict[str, Any] = {
        "_EXECCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": "execctl d",
        "COMP_CWORD": "1",
    }
    assert "doctor" in execctl(env=variables).stdout


@AT_ONCE
def test_lost_input_ends_the_program_with_125(execctl: Run, url: str, sandbox: Execd) -> None:
    name = str(uuid.uuid4())
    with losing_router(url, cut="/stdin?eof=false") as address:
        done = execctl("--url", address, "run", "--id", name, "--", "cat", input="typed\n")
    assert done.returncode == 125
    assert "input may be lost, so the program is ended" in done.stderr
    assert sandbox.handle(name).result().exit_reason == "canceled"


@AT_ONCE
def test_the_third_ctrl_c_ends_execctl_where_execd_does_not_answer(
    terminal: Spawn, url: str, sandbox: Execd
) -> None:
    name = str(uuid.uuid4())
    with losing_router(url, silent=("/signal", "/kill")) as address:
        child = terminal("--url", address, "run", "--id", name, "--", "sleep", "600")
        wait_until(
            lambda: name in [item.id for item in sandbox.list("RUNNING")],
            TIMEOUT_SECONDS,
            "the program runs",
        )

        def has_told() -> bool:
            # Each Ctrl-C also discards what the terminal holds and nobody has read (NOFLSH of
            # termios(3)): so give execctl time to say its last word.
            child.sendintr()
            said = "execd does not answer; the program may still run"
            return child.expect([said, pexpect.TIMEOUT], timeout=0.5) == 0

        wait_until(has_told, TIMEOUT_SECONDS, "execctl gives up")
        assert ended(child) == 130
    sandbox.handle(name).kill(0.1)


def test_sighup_goes_to_the_program_unless_nohup(url: str, sandbox: Execd) -> None:
    for prefix, exit_code in ((["nohup"], 5), ([], 4)):
        ready = str(uuid.uuid4())
        line = f"trap 'exit 4' HUP; trap 'exit 5' TERM; : > {ready}; while :; do sleep 0.05; done"
        with subprocess.Popen(
            [*prefix, EXECCTL, "--url", url, "run", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            wait_until(lambda name=ready: sandbox.files.exists(name), TIMEOUT_SECONDS, "it runs")
            process.send_signal(signal.SIGHUP)
            if prefix:
                process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_SECONDS) == exit_code
