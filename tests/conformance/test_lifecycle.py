"""Start, settings and stop: daemons that the suite itself starts."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from ..patience import patience
from .conftest import Run
from .target import REPOSITORY, TERMINATED, Target, execute_bytes, wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    OwnDaemon = Callable[..., Target]


def client_of(target: Target, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=target.url, timeout=60, trust_env=False, headers=headers)


def processes_with(marker: str) -> int:
    """Seen from this machine, since there may be no daemon left to ask."""
    return len(
        subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False).stdout.split()
    )


def ask(connection: socket.socket, method: str, path: str) -> int:
    """The HTTP status of a request without a body on a kept connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    connection.sendall(head.encode())
    return int(connection.recv(1 << 16).split()[1])


def get(connection: socket.socket, path: str) -> int:
    return ask(connection, "GET", path)


def test_daemon_of_the_suite_s_own_runs_where_the_other_one_does(
    own_daemon: OwnDaemon, run: Run
) -> None:
    look = "uname -srv; id -u; stat -fc %T /proc/self /"
    with client_of(own_daemon()) as client:
        assert Run(client).out(look) == run.out(look)


@pytest.mark.parametrize("shape", [(), ("--namespaces=off",)], ids=["namespaces", "subreaper"])
def test_sigterm_ends_commands_and_daemon_in_time_and_leaves_no_process(
    own_daemon: OwnDaemon, shape: tuple[str, ...]
) -> None:
    daemon = own_daemon(*shape, "--shutdown-timeout=5")
    seconds = f"6000.{daemon.address[1]}"
    with client_of(daemon) as client:
        run = Run(client)
        run.out(f"setsid sleep {seconds} > /dev/null 2>&1 &")
        results: list[dict[str, object]] = []
        caller = threading.Thread(
            target=lambda: results.append(
                client.post(
                    "/execute",
                    json={"command": f"echo begun; trap '' TERM; sleep {seconds}; sleep {seconds}"},
                ).json()
            )
        )
        caller.start()
        # The shell's own command line counts too; its sleep comes after the trap.
        wait_until(lambda: run.count_alive(seconds) >= 3, 10, "both commands run")
        assert daemon.stop() == TERMINATED
        caller.join(patience.seconds(10))
    assert not caller.is_alive()
    assert results[0]["exit_reason"] == "shutdown"
    assert results[0]["stdout"] == "begun\n"
    wait_until(lambda: processes_with(seconds) == 0, 20, "no process is left")
    assert "Traceback" not in daemon.log_text()


def test_daemon_that_drains_says_so_and_still_answers_its_probe(own_daemon: OwnDaemon) -> None:
    daemon = own_daemon("--shutdown-timeout=60", "--cancel-grace-seconds=60")
    assert daemon.process is not None
    with client_of(daemon) as client, daemon.connect() as caller, daemon.connect() as kept:
        assert client.get("/readyz").status_code == 200
        command = "trap '' TERM; > begun; until [ -e enough ]; do sleep 0.1; done"
        caller.sendall(execute_bytes(command))
        wait_until(lambda: client.get("/exists/begun").json()["exists"], 10, "a command runs")
        assert get(kept, "/") == 200
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: get(kept, "/readyz") == 503, 2, "it says that it drains")
        assert get(kept, "/") == 200
        assert get(kept, "/v1/health") == 503
        assert ask(kept, "PUT", "/v1/files/enough") == 204
    assert daemon.process.wait(patience.seconds(30)) == TERMINATED


def test_death_of_the_daemon_ends_everything_it_started(own_daemon: OwnDaemon) -> None:
    for shape in ((), ("--namespaces=off",)):
        daemon = own_daemon(*shape)
        seconds = f"6001.{daemon.address[1]}"
        with client_of(daemon) as client:
            Run(client).out(f"setsid sleep {seconds} > /dev/null 2>&1 &")
        daemon.kill()
        wait_until(lambda n=seconds: processes_with(n) == 0, 20, "no process is left")  # type: ignore[misc]


@pytest.mark.any_kernel
def test_requests_need_the_token_when_one_is_set(own_daemon: OwnDaemon) -> None:
    token = "correct horse battery staple"
    daemon = own_daemon(f"--token-sha256={hashlib.sha256(token.encode()).hexdigest()}")
    with client_of(daemon) as client:
        for path in ("/", "/healthz", "/readyz", "/v1/health"):
            assert client.get(path).status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"X-Access-Token": ""},
            {"Authorization": token},
        ):
            for method, path in (
                ("POST", "/execute"),
                ("GET", "/list/."),
                ("POST", "/upload"),
                ("GET", "/nothing"),
            ):
                assert client.request(method, path, headers=headers).status_code == 401
        for headers in (
            {"Authorization": f"Bearer {token}"},
            {"X-Access-Token": token},
            {"X-EXECD-ACCESS-TOKEN": token},
        ):
            assert client.get("/list/.", headers=headers).status_code == 200
    with client_of(daemon, **{"X-Access-Token": token}) as client:
        assert Run(client).out("echo hi") == "hi\n"
    assert token not in daemon.log_text()


@pytest.mark.parametrize(
    ("text", "limit_seconds"),
    [("1", 1.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("soon", None)],
)
@pytest.mark.any_kernel
def test_server_s_limit_comes_from_its_known_variable(
    own_daemon: OwnDaemon, text: str, limit_seconds: float | None
) -> None:
    with client_of(own_daemon(SANDBOX_EXEC_TIMEOUT_SECONDS=text)) as client:
        run = Run(client)
        ran = run("sleep 1.5", timeout_seconds=200)
        assert ran.timed_out is (limit_seconds is not None)
        if limit_seconds:
            assert ran.stderr == f"Command timed out after {limit_seconds:g} seconds"
            assert (
                run("sleep 1.5", timeout_seconds=0.2).stderr
                == "Command timed out after 0.2 seconds"
            )


@pytest.mark.any_kernel
def test_loopback_listener_refuses_requests_for_another_host(own_daemon: OwnDaemon) -> None:
    """Without the refusal a page in a browser on this machine could reach the daemon: the page
    resolves a name of its own to 127.0.0.1."""
    with client_of(own_daemon()) as client:
        assert client.get("/list/.", headers={"Host": "rebound.example"}).status_code == 403
        assert client.get("/list/.", headers={"Host": "localhost:1"}).status_code == 200


def test_upload_over_the_limit_is_413_and_leaves_nothing(own_daemon: OwnDaemon) -> None:
    with client_of(own_daemon("--max-upload-bytes=1000")) as client:
        assert client.post("/upload", files={"file": ("x", b"1" * 1000)}).status_code == 200
        response = client.post("/upload", files={"file": ("y", b"1" * 1001)})
        assert response.status_code == 413
        assert response.json()["message"]
        assert [entry["name"] for entry in client.get("/list/.").json()] == ["x"]


def test_commands_over_the_limits_of_the_server_end_with_their_reason(
    own_daemon: OwnDaemon,
) -> None:
    daemon = own_daemon(
        "--cpu-seconds=1", "--file-size-bytes=1000000", "--processes=20", "--open-files=64"
    )
    with client_of(daemon) as client:
        run = Run(client)
        assert run("while :; do :; done", timeout_seconds=20).exit_reason == "cpu_limit"
        ran = run("exec head -c 2000000 /dev/zero > big")
        assert (ran.exit_reason, ran.exit_code != 0) == ("file_size_limit", True)
        ran = run(
            "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; wait", timeout_seconds=20
        )
        assert ran.exit_reason == "process_limit"
        ran = run.python("files = [open('/dev/null') for _ in range(100)]")
        assert (ran.exit_reason, ran.exit_code) == ("exited", 1)
        assert "Too many open files" in ran.stderr


@pytest.mark.any_kernel
def test_commands_over_the_places_wait_and_then_get_429(own_daemon: OwnDaemon) -> None:
    daemon = own_daemon("--max-running=2", "--max-queued=1", "--queue-wait-seconds=1")
    answers = daemon.request_at_once([execute_bytes("sleep 4")] * 4)
    assert sorted(answer.http_status for answer in answers) == [200, 200, 429, 429]
    for answer in answers:
        if answer.http_status == 429:
            assert int(answer.headers["retry-after"]) >= 0
            assert answer.json()


def test_heartbeat_keeps_a_silent_command_s_connection_busy(own_daemon: OwnDaemon) -> None:
    daemon = own_daemon("--execute-heartbeat-seconds=0.2")
    answer = daemon.request(
        "POST",
        "/execute",
        b'{"command": "sleep 2.5; echo hi"}',
        {"Content-Type": "application/json"},
    )
    assert answer.http_status == 200
    assert len(answer.content) - len(answer.content.lstrip()) >= 2
    assert answer.json()["stdout"] == "hi\n"


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--port=70000", "port"),
        ("--max-running=0", "max-running"),
        ("--namespaces=maybe", "namespaces"),
        ("--nonsense=1", "nonsense"),
        ("--base-dir=/etc/passwd", "base-dir"),
        ("--base-dir=/proc/foo", "base-dir"),
        ("--python=/nope/python3", "python"),
        ("--host=300.1.1.1", "host"),
    ],
)
@pytest.mark.any_kernel
def test_unusable_setting_is_named_and_ends_the_daemon_with_2(
    flag: str, word: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "execd",
            "serve",
            f"--base-dir={tmp_path}/b",
            f"--state-dir={tmp_path}/s",
            flag,
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=patience.seconds(30),
        check=False,
    )
    assert ended.returncode == 2
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr
