"""``execd serve -- CMD``: the image's own program beside the daemon, in each shape."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from execd.engine.entrypoint import FORWARDED
from execd.engine.executions.stdio import set_size
from tests.conformance.conftest import SHAPES
from tests.proc.conftest import living, new_token
from tests.test_server import ROOT, TERMINATED
from tests.test_server import start as start  # a fixture
from tests.test_server_as_root import place as place  # a fixture
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from pathlib import Path

    from tests.test_server import Daemon

KILLED = 128 + signal.SIGKILL


TRAPS = "".join(
    f"trap 'echo got-{number.name}' {number.name.removeprefix('SIG')}; "
    for number in FORWARDED
    if number is not signal.SIGTERM
)
WAIT = "while :; do sleep 0.01; done"


@pytest.fixture(params=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> Sequence[str]:
    """The flags of a shape of the daemon."""
    return SHAPES[request.param]


def run(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a daemon to its end, with standard input, output and error of its own."""
    flags = [f"--base-dir={folder}/base", f"--state-dir={folder}/state", "--port=0"]
    return subprocess.run(
        [sys.executable, "-m", "execd", "serve", *flags, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def log_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("exit 7", 7), ("true", 0), ("kill -KILL $$", KILLED), ("kill -USR1 $$", 138)],
)
def test_daemon_ends_with_the_image_s_own_program_and_its_exit_code(
    tmp_path: Path, shape: Sequence[str], script: str, exit_code: int
) -> None:
    done = run(tmp_path, *shape, "--", "sh", "-c", script)
    assert done.returncode == exit_code, done.stderr
    [line] = [line for line in log_lines(done.stderr) if "image's program" in line["message"]]
    assert line["exit_code"] == exit_code


def test_the_image_s_own_program_has_the_container_s_stdio_directory_and_variables(
    tmp_path: Path, shape: Sequence[str]
) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        done = run(
            tmp_path,
            *shape,
            f"--log-fd={file.fileno()}",
            "--",
            "sh",
            "-c",
            "cat; pwd; env; echo aside >&2",
            env={
                "JAVA_HOME": "/opt/java",
                "LD_LIBRARY_PATH": "/opt/lib",
                "EXECD_LOG_LEVEL": "debug",
                "SANDBOX_EXEC_TIMEOUT_SECONDS": "5",
                "OTEL_SERVICE_NAME": "x",
                "KUBERNETES_PORT": "1",
            },
            input="typed\n",
            pass_fds=[file.fileno()],
        )
    assert done.returncode == 0
    assert done.stderr == "aside\n"
    typed, directory, *variables = done.stdout.splitlines()
    assert (typed, directory) == ("typed", str(tmp_path))
    names = {line.partition("=")[0] for line in variables}
    assert {"PATH", "JAVA_HOME", "LD_LIBRARY_PATH", "EXECD_EXECUTION_ID"} <= names
    assert f"PATH={os.environ['PATH']}" in variables
    hidden = ("EXECD_", "SANDBOX_", "OTEL_", "KUBERNETES_")
    assert [name for name in names if name.startswith(hidden)] == ["EXECD_EXECUTION_ID"]
    assert "listening" in [line["message"] for line in log_lines(log.read_text())]


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_image_s_own_program_has_the_container_s_locale(
    tmp_path: Path, given: dict[str, str]
) -> None:
    done = run(tmp_path, "--", "env", env=given)
    found = [line for line in done.stdout.splitlines() if line.startswith(("LC_", "LANG"))]
    assert found == [f"{name}={value}" for name, value in given.items()]


def test_the_image_s_own_program_has_the_container_s_limit_of_open_files(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = run(
        tmp_path,
        *("--", "sh", "-c", "ulimit -n; ulimit -Hn"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (777, hard)),
    )
    assert done.stdout.split() == ["777", str(hard * 3 // 4)]


def test_the_image_s_own_program_controls_the_container_s_terminal(
    tmp_path: Path, shape: Sequence[str]
) -> None:
    script = (
        "trap 'echo got-int' INT; trap 'stty size; exit 6' WINCH; "
        f": </dev/tty && echo controls; {WAIT}"
    )
    flags = [f"--base-dir={tmp_path}/base", f"--state-dir={tmp_path}/state", "--port=0", *shape]
    master, slave = os.openpty()
    with open(master, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "execd", "serve", *flags, "--", "sh", "-c", script],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT},
            **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        read_until(terminal, b"controls\r\n")
        terminal.write(b"\x03")
        read_until(terminal, b"got-int\r\n")
        set_size(master, 97, 31)
        read_until(terminal, b"31 97\r\n")
        assert process.wait(20) == 6


def read_until(terminal: FileIO, text: bytes) -> None:
    found = b""
    while text not in found:
        assert select.select([terminal], [], [], 20)[0], found
        found += terminal.read(4096) or b""


def test_a_closed_standard_input_is_the_null_device_for_the_image_s_own_program(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        *("--", "readlink", "/proc/self/fd/0", "/proc/self/fd/2"),
        preexec_fn=lambda: os.close(0),
    )
    assert done.stdout.split()[0] == "/dev/null"


def _has_word(daemon: Daemon, word: str) -> Callable[[], bool]:
    return lambda: word in daemon.log_path.read_text().split()


def test_the_image_s_own_program_gets_the_signals_of_the_container(
    start: Any, shape: Sequence[str]
) -> None:
    script = f"{TRAPS} trap 'sleep 0.5; echo bye; exit 9' TERM; echo begun; {WAIT}"
    daemon: Daemon = start(*shape, "--", "sh", "-c", script)
    daemon.wait_ready()
    wait_until(_has_word(daemon, "begun"))
    for number in FORWARDED:
        if number is not signal.SIGTERM:
            daemon.process.send_signal(number)
            wait_until(_has_word(daemon, f"got-{number.name}"))
    assert daemon.request("GET", "/readyz")[0] == 200
    assert daemon.stop() == 9
    assert _has_word(daemon, "bye")()


def test_an_end_by_sigterm_is_143_with_the_image_s_own_program_too(
    start: Any, shape: Sequence[str]
) -> None:
    token = new_token()
    daemon: Daemon = start(*shape, "--", "sleep", token)
    daemon.wait_ready()
    wait_until(lambda: living(f"sleep {token}"))
    assert daemon.stop() == TERMINATED


def test_on_the_way_down_commands_and_the_image_s_own_program_end_side_by_side(
    start: Any, shape: Sequence[str]
) -> None:
    """The program waits for the end of the command, and the command for the program's TERM."""
    script = "trap 'touch told' TERM; touch begun; while [ ! -e base/ended ]; do sleep 0.01; done"
    daemon: Daemon = start(
        *shape, "--cancel-grace-seconds=20", "--shutdown-timeout=30", "--", "sh", "-c", script
    )
    daemon.wait_ready()
    wait_until((daemon.folder / "begun").exists)
    replies: list[dict[str, Any]] = []
    command = (
        "trap 'while [ ! -e ../told ]; do sleep 0.01; done; echo bye; touch ended; exit' TERM; "
        f"touch begun; {WAIT}"
    )
    caller = threading.Thread(target=lambda: replies.append(daemon.execute(command)))
    caller.start()
    wait_until((daemon.folder / "base/begun").exists)
    assert daemon.stop() == 0
    caller.join(20)
    assert [(reply["stdout"], reply["exit_reason"]) for reply in replies] == [("bye\n", "shutdown")]


def test_image_s_own_program_that_will_not_end_is_killed_within_the_shutdown_timeout(
    start: Any, shape: Sequence[str]
) -> None:
    token = new_token()
    script = f"trap '' TERM; sleep {token} & echo begun; {WAIT}"
    daemon: Daemon = start(*shape, "--shutdown-timeout=1", "--", "sh", "-c", script)
    daemon.wait_ready()
    wait_until(_has_word(daemon, "begun"))
    assert daemon.stop() == KILLED
    wait_until(lambda: living(token) == [])


def test_what_the_image_s_own_program_leaves_behind_ends_with_the_daemon(
    start: Any, shape: Sequence[str]
) -> None:
    token = new_token()
    daemon: Daemon = start(*shape, "--", "sh", "-c", f"setsid sleep {token} & exit 3")
    assert daemon.process.wait(20) == 3
    wait_until(lambda: living(f"sleep {token}") == [])


@pytest.mark.parametrize(
    ("program", "exit_code", "said"),
    [
        ("no-such-program", 127, "'no-such-program': No such file or directory in any directory"),
        ("/no/such/program", 127, "'/no/such/program': No such file or directory"),
        ("./plain", 126, "'./plain': Permission denied"),
        ("/", 126, "'/': Permission denied"),
    ],
)
def test_program_of_the_image_that_cannot_be_started_ends_the_daemon_with_127_or_126(
    tmp_path: Path, shape: Sequence[str], program: str, exit_code: int, said: str
) -> None:
    (tmp_path / "plain").write_text("no program")
    done = run(tmp_path, *shape, "--", program, "argument")
    assert done.returncode == exit_code
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith(f"execd: program: {said}")


def test_loss_of_the_warden_is_the_end_of_the_image_s_own_program_and_of_the_daemon(
    start: Any, shape: Sequence[str]
) -> None:
    token = new_token()
    daemon: Daemon = start(*shape, "--sessions=off", "--", "sleep", token)
    daemon.wait_ready()
    wait_until(lambda: living(f"sleep {token}"))
    (warden,) = psutil.Process(daemon.process.pid).children()
    warden.kill()
    assert daemon.process.wait(20) == KILLED
    wait_until(lambda: living(f"sleep {token}") == [])


def test_the_image_s_own_program_is_no_execution_and_takes_no_place_of_one(
    start: Any, shape: Sequence[str]
) -> None:
    token = new_token()
    daemon: Daemon = start(
        *shape,
        *("--max-running=1", "--timeout=2", "--processes=2", "--", "sh", "-c"),
        f"sleep {token} & sleep {token} & sleep {token} & sleep {token}",
    )
    daemon.wait_ready()
    wait_until(lambda: len(living(f"sleep {token}")) >= 5)
    assert daemon.request("GET", "/v1/executions")[1]["items"] == []
    assert daemon.execute("sleep 30")["exit_reason"] == "timeout"
    assert daemon.execute("echo hello")["stdout"] == "hello\n"
    assert len(living(f"sleep {token}")) >= 5
    assert daemon.stop() == TERMINATED


def test_image_s_own_program_that_fills_a_guarded_directory_is_killed(
    tmp_path: Path, shape: Sequence[str]
) -> None:
    write = "head -c 1048576 /dev/zero >>base/file"
    script = f"for step in $(seq 200); do {write}; done; exec sleep 1000"
    done = run(tmp_path, *shape, f"--base-dir-bytes={64 << 20}", "--", "sh", "-c", script)
    assert done.returncode == KILLED
    assert "a guarded directory is nearly full" in [
        line["message"] for line in log_lines(done.stderr)
    ]


def test_the_image_s_own_program_is_inside_the_walls(start: Any) -> None:
    """As a command is: no sight of the daemon, nor of what the state dir covers."""
    look = "readlink /proc/self/ns/pid; ls {}; grep NoNewPrivs /proc/self/status"
    script = f"{look.format('state')}; echo end; {WAIT}"
    daemon: Daemon = start(*SHAPES["namespaces"], "--", "sh", "-c", script)
    daemon.wait_ready()
    wait_until(_has_word(daemon, "end"))
    lines = [line for line in daemon.log_path.read_text().splitlines() if line[:1] != "{"]
    inside = daemon.execute(
        "readlink /proc/self/ns/pid; ls ../state; grep NoNewPrivs /proc/self/status"
    )
    assert lines[:-1] == inside["stdout"].splitlines()
    assert lines[0] != os.readlink("/proc/self/ns/pid")
    assert lines[-2].split() == ["NoNewPrivs:", "1"]
    assert daemon.stop() == TERMINATED


def test_log_on_a_descriptor_of_its_own_is_out_of_reach_of_user_code(
    start: Any, tmp_path: Path
) -> None:
    """User code finds the file of CMD's own output, and not the file of the log."""
    look = "find /proc/[0-9]*/fd -lname '*log' -printf '%l\\n' 2>/dev/null | sort -u; echo end"
    log = tmp_path / "own-log"
    with open(log, "wb") as file:
        daemon: Daemon = start(
            *SHAPES["namespaces"],
            *(f"--log-fd={file.fileno()}", "--", "sh", "-c", f"{look}; {WAIT}"),
            pass_fds=[file.fileno()],
        )
    wait_until(_has_word(daemon, "end"))
    found = f"{daemon.log_path}\nend\n"
    assert daemon.log_path.read_text() == found
    wait_until(lambda: '"listening"' in log.read_text())
    [daemon.port] = [line["port"] for line in log_lines(log.read_text()) if "port" in line]
    assert daemon.execute(look)["stdout"] == found
    assert daemon.stop() == TERMINATED


@pytest.mark.parametrize("mode", ["closed", "read-only"])
def test_descriptor_of_the_log_that_cannot_be_written_ends_the_daemon_with_2(
    tmp_path: Path, mode: str
) -> None:
    with open(os.devnull, "rb") as file:
        fd = file.fileno()
        done = run(tmp_path, f"--log-fd={fd}", pass_fds=[fd] if mode == "read-only" else [])
    assert done.returncode == 2
    assert f"Error: --log-fd: {fd} is not a descriptor that is open for writing" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.root
def test_the_image_s_own_program_runs_as_the_user_of_commands(place: Path) -> None:
    done = run(
        place,
        *("--run-as=1234:5678", "--log-level=error", "--sessions=off"),
        *("--", "sh", "-c", "id -u; id -g; echo by name >/dev/stdout"),
    )
    assert done.stdout.splitlines() == ["1234", "5678", "by name"]
