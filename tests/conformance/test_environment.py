"""The surroundings of a command: variables, limits, descriptors, identity."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from .target import elsewhere

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target

pytestmark = pytest.mark.both_shapes

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def environment(run: Run, headers: dict[str, str] | None = None) -> dict[str, str]:
    ran = run("env -0", headers=headers)
    assert ran.exit_code == 0, ran.stderr
    return dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)


@pytest.mark.own_image
def test_home_is_the_base_dir(run: Run) -> None:
    assert environment(run)["HOME"] == run.out("pwd -P").strip()


def test_text_is_utf_8(run: Run) -> None:
    assert environment(run)["LANG"] == "C.UTF-8"
    assert run.out(
        "python3 -c 'import sys; print(sys.stdout.encoding, sys.getfilesystemencoding())'"
    ) == ("utf-8 utf-8\n")


def test_user_is_set(run: Run) -> None:
    assert environment(run)["USER"]


def test_temporary_directory_can_be_written(run: Run) -> None:
    assert run("t=$(mktemp) && echo hi > $t && cat $t && rm $t").stdout == "hi\n"
    found = environment(run)
    base = found["HOME"]
    assert found["TMPDIR"] in ("/tmp", f"{base}/.tmp")


@pytest.mark.own_image
def test_login_bash_finds_the_same_programs(client: httpx.Client, run: Run) -> None:
    """/etc/profile sets PATH anew. The shell's programs find no trace of the repair."""
    line = (
        "command -v python; echo $PATH | grep -c '/[.]local/bin:'; env | grep -E 'LOGIN|BASH_ENV'"
    )
    python = run.out("command -v python")
    for fields in (
        {"argv": ["bash", "-l", "-c", line]},
        {"argv": ["/bin/bash", "--login", "-c", line]},
        {"command": f"bash -lc {shlex.quote(line)}"},
        {"argv": ["bash", "-il"], "pty": True, "stdin": f"stty -echo\n{line}; exit\n"},
    ):
        out = client.post("/v1/executions", json=fields).json()["stdout"]
        assert f"{python}1\n" in out.replace("\r", ""), out
        assert "pty" in fields or out == f"{python}1\n"
    path = client.post(
        "/v1/executions",
        json={"argv": ["bash", "-lc", "echo $PATH"], "env": {"PATH": "/bin:/mine"}},
    ).json()["stdout"]
    assert path.startswith("/bin:/mine:")


@pytest.mark.own_image
def test_programs_of_pip_are_found(run: Run) -> None:
    tool = "~/.local/bin/execd-probe"
    line = f"mkdir -p ~/.local/bin && printf '#!/bin/sh\necho found' >{tool} && chmod +x {tool}"
    assert run(line).exit_code == 0
    try:
        for command in "execd-probe", "bash -lc execd-probe":
            assert run.out(command) == "found\n"
    finally:
        run(f"rm {tool}")


def test_git_works_in_a_directory_of_another_user(run: Run, folder: str) -> None:
    """As in a volume whose root belongs to root. git lets tests say that the owner is another."""
    if run("command -v git").exit_code != 0:
        pytest.skip("no git in this sandbox")
    ran = run(
        f"cd {folder} && export GIT_TEST_ASSUME_DIFFERENT_OWNER=1 && git init -q . && git status"
    )
    assert (ran.exit_code, ran.stderr) == (0, ""), ran


def test_path_holds_the_usual_directories(run: Run) -> None:
    path = environment(run)["PATH"].split(":")
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(path)
    assert all(entry.startswith("/") for entry in path)


def test_environment_has_nothing_of_the_daemon_s(run: Run, target: Target) -> None:
    found = environment(run)
    known = {
        "HOME",
        "PATH",
        "LANG",
        "USER",
        "TMPDIR",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "LOGNAME",
        "SHELL",
        "LC_CTYPE",
    }
    known |= {"OMP_NUM_THREADS", "PYTHON_CPU_COUNT"}
    known |= {"GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"}
    strangers = {name for name in found if name not in known and not name.startswith("EXECD_")}
    assert not strangers
    # Of execd's variables only the marker is there, by which execd finds its children; no setting
    # is.
    assert len([name for name in found if name.startswith("EXECD_")]) <= 1
    assert "EXECD_CONFORMANCE_SECRET" not in found
    assert target.secret is None or target.secret not in found.values()


def test_traceparent_reaches_the_command(run: Run, client: httpx.Client) -> None:
    trace = {"traceparent": TRACEPARENT}
    assert environment(run, trace)["TRACEPARENT"] == TRACEPARENT
    assert "TRACEPARENT" not in environment(run)
    body = {"command": "echo $TRACEPARENT"}
    answer = client.post("/v1/executions", json=body, headers=trace)
    assert answer.json()["stdout"] == f"{TRACEPARENT}\n"


def test_core_files_are_off_and_open_files_are_bounded(run: Run) -> None:
    assert run.out("ulimit -c") == "0\n"
    soft, hard = (int(n) for n in run.out("ulimit -n; ulimit -Hn").split())
    assert 256 <= soft <= 65_536
    assert hard <= 1 << 20


def test_limits_hold_from_the_first_instruction(run: Run) -> None:
    seen = {run.out("ulimit -c; ulimit -n") for _ in range(50)}
    assert len(seen) == 1


def test_command_has_no_descriptors_but_the_three(run: Run) -> None:
    # The fourth descriptor is the directory being read.
    found = run.out(
        "python3 -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'"
    )
    assert found == "[0, 1, 2, 3]\n"


def test_command_cannot_gain_privileges(run: Run) -> None:
    status = run.out("cat /proc/self/status")
    lines = [line for line in status.splitlines() if line.startswith("NoNewPrivs:")]
    # gVisor has the flag but does not show the flag
    assert [line.split()[1] for line in lines] in (["1"], [])


def test_signals_have_their_default_dispositions(run: Run) -> None:
    program = (
        "import signal; print([s.name for s in signal.valid_signals() "
        "if isinstance(s, signal.Signals) and signal.getsignal(s) == signal.SIG_IGN "
        "and s not in (signal.SIGPIPE, signal.SIGXFSZ)], signal.pthread_sigmask(0, []))"
    )
    # Python itself ignores SIGPIPE and SIGXFSZ.
    assert run.python(program).stdout == "[] set()\n"


def test_broken_pipe_ends_a_program_as_in_any_shell(run: Run) -> None:
    ran = run("yes | head -n 1")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("y\n", "", 0)


def test_command_leads_a_process_group_of_its_own(run: Run) -> None:
    ran = run(
        "python3 -c 'import os; print(os.getpgid(0) == os.getppid(), "
        "os.getsid(0) == os.getppid())'; true"
    )
    leads_session = elsewhere() is None  # in gVisor the warden's
    assert ran.stdout == f"True {leads_session}\n"


def test_python_of_the_sandbox_cannot_import_the_daemon(run: Run) -> None:
    ran = run("python3 -c 'import execd'")
    assert ran.exit_code == 1
    assert "ModuleNotFoundError" in ran.stderr
