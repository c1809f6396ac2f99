"""The daemon as a process: ``python -m execd serve``, its signals and its exit codes."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.files.conftest import on_small_tmpfs
from tests.patience import patience
from tests.proc.conftest import living, new_token
from tests.proc.test_namespaces import MASKED_PROC
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

TERMINATED = 128 + signal.SIGTERM
CANNOT_SERVE = "the interpreter cannot serve sessions"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Daemon:
    """A running daemon on a separate port. ``under``: a command that runs the daemon's command,
    given as the last arguments."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        under: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        **environment: str,
    ) -> None:
        self.folder = folder
        self.log_path = folder / "log"
        given = [
            "--base-dir",
            str(folder / "base"),
            "--state-dir",
            str(folder / "state"),
            "--port",
            "0",
            *arguments,
        ]
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ROOT,
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*under, sys.executable, "-m", "execd", "serve", *given],
                cwd=folder,
                env=env,
                stderr=log,
                stdout=log,
                pass_fds=pass_fds,
            )

    @property
    def log(self) -> list[dict[str, Any]]:
        # The daemon may be in the middle of the last line.
        whole = self.log_path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def wait_ready(self) -> None:
        wait_until(
            lambda: (
                self.process.poll() is not None
                or any(line["message"] == "listening" for line in self.log)
            ),
            20,
        )
        assert self.process.poll() is None, self.log_path.read_text()
        (self.port,) = [line["port"] for line in self.log if line["message"] == "listening"]

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def execute(self, command: str) -> dict[str, Any]:
        http_status, reply = self.request("POST", "/execute", {"command": command})
        assert http_status == 200, reply
        found: dict[str, Any] = reply
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    daemons: list[Daemon] = []

    def start(*arguments: str, folder: Path = tmp_path, **options: Any) -> Daemon:
        folder.mkdir(exist_ok=True)
        daemons.append(Daemon(folder, *arguments, **options))
        return daemons[-1]

    yield start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.stop()


def test_it_serves_until_told_to_stop_and_leaves_nothing(start: Any) -> None:
    daemon = start()
    daemon.wait_ready()
    assert daemon.request("GET", "/")[0] == 200
    assert daemon.request("GET", "/readyz") == (200, {"status": "ok"})
    assert daemon.execute("echo hello")["stdout"] == "hello\n"
    token = new_token()
    daemon.execute(f"setsid sleep {token} >/dev/null 2>&1 &")
    wait_until(lambda: living(f"sleep {token}"))
    assert daemon.stop() == TERMINATED
    # gVisor tells the end of an init while the processes of its namespace still end.
    wait_until(lambda: living(f"sleep {token}") == [])
    assert [line for line in daemon.log if line["level"] in ("error", "warning")] == []


@pytest.mark.parametrize(
    ("level", "found"), [("info", {"info", "warning"}), ("warning", {"warning"})]
)
def test_log_has_the_lines_of_the_log_level_and_above(
    start: Any, level: str, found: set[str]
) -> None:
    # An interpreter that ends at once is a warning, and "listening" an information.
    daemon = start("--log-level", level, "--python", "/bin/false")
    wait_until(lambda: _is_listening(daemon) and _has_warned(daemon), 20)
    assert daemon.stop() == TERMINATED
    known = [line for line in daemon.log if _is_known(line)]
    assert {line["level"] for line in known} == found
    assert not ({"debug", "info"} - found) & {line["level"] for line in daemon.log}


def _is_known(line: dict[str, Any]) -> bool:
    return line["message"] in ("listening", CANNOT_SERVE)


def _has_warned(daemon: Daemon) -> bool:
    return any(line["message"] == CANNOT_SERVE for line in daemon.log)


def _is_listening(daemon: Daemon) -> bool:
    """Seen from outside: the log may leave out the port."""
    connections = psutil.Process(daemon.process.pid).net_connections("tcp")
    return any(found.status == psutil.CONN_LISTEN for found in connections)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, 0)]
)
def test_on_the_way_down_commands_end_with_an_answer_and_only_probes_are_served(
    start: Any, number: int, exit_code: int
) -> None:
    daemon = start("--cancel-grace-seconds", "20", "--shutdown-timeout", "30")
    daemon.wait_ready()
    replies: list[dict[str, Any]] = []
    script = (
        "trap 'touch told; while [ ! -e go ]; do sleep 0.01; done; echo bye; exit 5' TERM; "
        "touch begun; while :; do sleep 0.01; done"
    )
    caller = threading.Thread(target=lambda: replies.append(daemon.execute(script)))
    caller.start()
    try:
        wait_until((daemon.folder / "base/begun").exists)
        daemon.process.send_signal(number)
        wait_until((daemon.folder / "base/told").exists)
        assert daemon.request("GET", "/readyz")[0] == 503
        assert daemon.request("GET", "/")[0] == 200
        assert daemon.request("POST", "/execute", {"command": "true"})[0] == 503
    finally:
        (daemon.folder / "base/go").touch()
        caller.join(20)
    assert daemon.process.wait(20) == exit_code
    assert [(reply["stdout"].splitlines()[-1], reply["exit_reason"]) for reply in replies] == [
        ("bye", "shutdown")
    ]


@pytest.mark.parametrize(
    ("first", "second", "exit_code"),
    [(signal.SIGTERM, signal.SIGINT, TERMINATED), (signal.SIGINT, signal.SIGTERM, 0)],
)
def test_a_second_signal_changes_neither_the_way_down_nor_the_exit_code(
    start: Any, first: int, second: int, exit_code: int
) -> None:
    daemon = start("--cancel-grace-seconds", "20", "--shutdown-timeout", "30")
    daemon.wait_ready()
    replies: list[dict[str, Any]] = []
    script = (
        "trap 'touch told; while [ ! -e go ]; do sleep 0.01; done; echo bye' TERM; "
        "touch begun; while [ ! -e told ]; do sleep 0.01; done"
    )
    caller = threading.Thread(target=lambda: replies.append(daemon.execute(script)))
    caller.start()
    try:
        wait_until((daemon.folder / "base/begun").exists)
        daemon.process.send_signal(first)
        wait_until((daemon.folder / "base/told").exists)
        daemon.process.send_signal(second)
        assert daemon.request("GET", "/readyz")[0] == 503
    finally:
        (daemon.folder / "base/go").touch()
        caller.join(20)
    assert daemon.process.wait(20) == exit_code
    assert [(reply["stdout"], reply["exit_reason"]) for reply in replies] == [("bye\n", "shutdown")]


def test_a_command_that_will_not_end_does_not_keep_it_from_stopping(start: Any) -> None:
    daemon = start("--cancel-grace-seconds", "0.2")
    daemon.wait_ready()
    replies: list[dict[str, Any]] = []
    script = "trap '' TERM; touch begun; while :; do sleep 0.01; done"
    caller = threading.Thread(target=lambda: replies.append(daemon.execute(script)))
    caller.start()
    wait_until((daemon.folder / "base/begun").exists)
    begun = time.monotonic()
    assert daemon.stop() == TERMINATED
    assert time.monotonic() - begun < patience(5)
    caller.join(20)
    assert [reply["exit_reason"] for reply in replies] == ["shutdown"]


def test_an_idle_connection_and_a_stalled_one_do_not_keep_it_from_stopping(start: Any) -> None:
    daemon = start()
    daemon.wait_ready()
    with contextlib.ExitStack() as open_connections:
        for data in (
            b"",
            b"POST /execute HTTP/1.1\r\nContent-Le",
            b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        ):
            connection = open_connections.enter_context(
                socket.create_connection(("127.0.0.1", daemon.port))
            )
            connection.sendall(data)
        begun = time.monotonic()
        assert daemon.stop() == TERMINATED
        assert time.monotonic() - begun < patience(10)


@pytest.mark.timed
def test_all_that_has_to_end_shares_the_shutdown_timeout(
    start: Any, timed: Callable[[float, float], None]
) -> None:
    """A command that ignores TERM, and a request whose body never comes."""
    timeout_seconds = 3
    daemon = start("--shutdown-timeout", str(timeout_seconds), "--cancel-grace-seconds", "60")
    daemon.wait_ready()
    replies: list[dict[str, Any]] = []
    script = "trap '' TERM; touch begun; while :; do sleep 0.01; done"
    caller = threading.Thread(target=lambda: replies.append(daemon.execute(script)))
    caller.start()
    wait_until((daemon.folder / "base/begun").exists)
    with socket.create_connection(("127.0.0.1", daemon.port)) as stalled:
        stalled.sendall(
            b"PUT /v1/files/x HTTP/1.1\r\n"
            b"Host: localhost\r\n"
            b"Content-Length: 100\r\n"
            b"Expect: 100-continue\r\n"
            b"\r\n"
        )
        assert stalled.recv(100).startswith(b"HTTP/1.1 100")  # a handler waits for the rest
        begun = time.monotonic()
        assert daemon.stop() == TERMINATED
        elapsed_seconds = time.monotonic() - begun
    caller.join(20)
    assert [reply["exit_reason"] for reply in replies] == ["shutdown"]
    timed(elapsed_seconds, 2 * timeout_seconds - 0.5)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, 0)]
)
def test_a_step_of_the_way_down_that_hangs_is_cut_off_at_the_shutdown_timeout(
    start: Any, tmp_path: Path, number: int, exit_code: int
) -> None:
    others = {child.pid for child in psutil.Process().children()}
    # A module that the interpreter imports at the start: the last step blocks the loop, as a dead
    # disk might.
    (tmp_path / "hangs").mkdir()
    (tmp_path / "hangs/sitecustomize.py").write_text(
        "import threading\n"
        "from execd.proc.client import WardenClient\n"
        "async def close(*_): threading.Event().wait()\n"
        "WardenClient.close = close\n"
    )
    daemon = start("--shutdown-timeout", "1", PYTHONPATH=str(tmp_path / "hangs"))
    daemon.wait_ready()
    token = new_token()
    daemon.execute(f"setsid sleep {token} >/dev/null 2>&1 &")
    begun = time.monotonic()
    assert daemon.stop(number) == exit_code
    assert 1.0 <= time.monotonic() - begun < patience(3.0)
    wait_until(lambda: living(f"sleep {token}") == [])
    assert "not everything has ended within the shutdown timeout" in [
        line["message"] for line in daemon.log
    ]
    _reap_orphans(others)


def test_a_signal_during_the_start_stops_it(start: Any) -> None:
    daemon = start()
    wait_until(lambda: psutil.Process(daemon.process.pid).children())
    assert daemon.stop() in (TERMINATED, -signal.SIGTERM)


def test_a_port_in_use_is_exit_code_1_and_says_so(start: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = start("--port", str(taken.getsockname()[1]))
        assert daemon.process.wait(20) == 1
        assert (
            f"execd: cannot listen on 127.0.0.1:{taken.getsockname()[1]}: "
            in daemon.log_path.read_text()
        )


def test_a_host_that_is_not_ours_is_exit_code_1_and_says_so(start: Any) -> None:
    daemon = start("--host", "192.0.2.1")
    assert daemon.process.wait(20) == 1
    assert "cannot listen on 192.0.2.1:0" in daemon.log_path.read_text()


def test_a_second_daemon_on_one_state_dir_is_exit_code_2_and_the_first_serves_on(
    start: Any, tmp_path: Path
) -> None:
    first = start()
    first.wait_ready()
    second = start("--state-dir", str(tmp_path / "state"), folder=tmp_path / "second")
    assert second.process.wait(20) == 2
    assert (
        f"--state-dir: {tmp_path}/state is in use by another execd" in second.log_path.read_text()
    )
    assert first.execute("echo hello")["stdout"] == "hello\n"


def test_a_state_dir_that_cannot_be_made_is_exit_code_2(start: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    daemon = start("--state-dir", str(tmp_path / "file"))
    assert daemon.process.wait(20) == 2
    assert f"--state-dir: {tmp_path}/file: " in daemon.log_path.read_text()


def _reap_orphans(others: set[int]) -> None:
    """Orphans come to this process if another test made this process a subreaper, as a daemon
    without namespaces is."""
    wait_until(
        lambda: (
            not [_reap(child) for child in psutil.Process().children() if child.pid not in others]
        )
    )


def test_it_answers_while_its_warden_is_replaced(start: Any) -> None:
    daemon = start()
    daemon.wait_ready()
    (warden,) = psutil.Process(daemon.process.pid).children()
    warden.kill()
    wait_until(
        lambda: (
            daemon.request("GET", "/")[0] == 200
            and daemon.request("GET", "/v1/capabilities")[1]["warden_restarts"] == 1
        )
    )
    wait_until(lambda: daemon.request("GET", "/readyz")[0] == 200)
    assert daemon.execute("echo hello")["stdout"] == "hello\n"
    assert daemon.stop() == TERMINATED


def _reap(child: psutil.Process) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


LIMITED = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    'echo 0 > /proc/sys/user/max_pid_namespaces && exec "$@"',
    "sh",
]


def test_where_namespaces_are_refused_it_is_ready_as_soon_and_says_what_is_lost(
    tmp_path: Path,
) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    begun = time.monotonic()
    arguments = [
        "serve",
        "--port",
        "0",
        "--base-dir",
        str(tmp_path / "base"),
        "--state-dir",
        str(tmp_path / "state"),
    ]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [*LIMITED, sys.executable, "-m", "execd", *arguments], cwd=tmp_path, env=env, stderr=log
        )
    try:
        wait_until(lambda: b'"listening"' in (tmp_path / "log").read_bytes(), 20)
        assert time.monotonic() - begun < patience(8)
        assert "fork: No space left on device" in (tmp_path / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(20) == TERMINATED
    with open(tmp_path / "log", "wb") as log:
        refused = subprocess.run(
            [*LIMITED, sys.executable, "-m", "execd", *arguments, "--namespaces", "require"],
            cwd=tmp_path,
            env=env,
            stderr=log,
            timeout=20,
        )
    assert refused.returncode == 1


def test_a_second_port_serves_clients_of_sandboxd(start: Any) -> None:
    daemon = start("--sandboxd-rest-port", "0")
    daemon.wait_ready()
    (port,) = [line["port"] for line in daemon.log if line.get("dialect") == "sandboxd REST"]
    assert port != daemon.port
    for number in (port, daemon.port):
        connection = http.client.HTTPConnection("127.0.0.1", number, timeout=30)
        connection.request("PUT", f"/v1/files/{number}", b"x")
        assert connection.getresponse().status == 204
        connection.close()
    assert sorted(os.listdir(daemon.folder / "base")) == sorted([str(port), str(daemon.port)])
    assert daemon.stop() == TERMINATED


def test_a_second_port_that_is_taken_is_named_and_ends_the_daemon(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = start("--sandboxd-rest-port", str(taken.getsockname()[1]))
        assert daemon.process.wait(20) == 1
    assert "cannot listen on 127.0.0.1:" in daemon.log_path.read_text()


def test_a_daemon_that_cannot_start_names_the_step_and_the_path(start: Any) -> None:
    daemon = start("--namespaces=require", under=MASKED_PROC)
    assert daemon.process.wait(20) == 1
    (line,) = [line for line in daemon.log if line["message"] == "cannot start"]
    assert (line["step"], line["path"], line["error"]) == (
        "mount_proc",
        "/proc",
        "Operation not permitted",
    )


# A daemon whose base dir is a separate file system, asked by every route that writes.
ASK_EVERY_ROUTE = """
import http.client, io, json, subprocess, sys, tarfile, zipfile
raw, zipped = io.BytesIO(), io.BytesIO()
with tarfile.open(fileobj=raw, mode="w") as archive:
    info = tarfile.TarInfo("x")
    info.size = 400_000
    archive.addfile(info, io.BytesIO(bytes(400_000)))
with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("x", bytes(400_000))
form = (
    b'--b\\r\\nContent-Disposition: form-data; name="file"; filename="form"\\r\\n\\r\\n'
    + bytes(400_000)
    + b"\\r\\n--b--\\r\\n"
)
requests = {
    "put": ("PUT", "/v1/files/put", bytes(400_000), {}),
    "form": ("PUT", "/v1/files/form", form, {"Content-Type": "multipart/form-data; boundary=b"}),
    "append": ("PUT", "/v1/files/append?append=true", bytes(400_000), {}),
    "offset": ("PUT", "/v1/files/offset?offset=0", bytes(400_000), {}),
    "tar": ("PUT", "/v1/archive/tar", raw.getvalue(), {}),
    "zip": ("PUT", "/v1/archive/zip?format=zip", zipped.getvalue(), {}),
    "upload": ("POST", "/upload", form, {"Content-Type": "multipart/form-data; boundary=b"}),
    "copy": ("POST", "/v1/fs/copy", json.dumps({"src": SOURCE, "dest": "copy"}).encode(), {}),
    "mkdir": ("POST", "/v1/fs/mkdir", json.dumps({"path": "a/" + "b" * 200 + "/c"}).encode(), {}),
}
process = subprocess.Popen(
    [
        sys.executable, "-m", "execd", "serve", "--namespaces=off", "--port=0",
        "--base-dir", mount_point, "--state-dir", STATE,
    ],
    stderr=subprocess.PIPE, text=True,
)
try:
    for line in process.stderr:
        if '"listening"' in line:
            break
    port = json.loads(line)["port"]
    for name, (method, path, body, headers) in requests.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        result[name] = answer.status, json.loads(answer.read() or b"null")
        for left in "append", "offset":  # what was written stays, on purpose
            connection.request("DELETE", "/v1/files/" + left)
            connection.getresponse().read()
        connection.close()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/v1/files/")
    listing = json.loads(connection.getresponse().read())
    result["left"] = [entry["name"] for entry in listing["entries"]]
    connection.close()
finally:
    process.terminate()
    result["exit_code"] = process.wait(30)
    process.stderr.close()
"""


def ask_every_route(tmp_path: Path, *, read_only: bool) -> dict[str, Any]:
    (tmp_path / "base").mkdir()
    (tmp_path / "source").write_bytes(bytes(400_000))
    names = f"SOURCE, STATE = {str(tmp_path / 'source')!r}, {str(tmp_path / 'state')!r}\n"
    found = on_small_tmpfs(tmp_path / "base", names + ASK_EVERY_ROUTE, read_only=read_only)
    assert found.pop("exit_code") == TERMINATED
    return found


def test_full_disk_is_507_on_every_route_that_writes_and_leaves_nothing(tmp_path: Path) -> None:
    found = ask_every_route(tmp_path, read_only=False)
    assert found.pop("mkdir")[0] == 200  # takes no space to speak of
    assert found.pop("left") == ["a"]
    assert found.pop("upload")[0] == 507
    assert {
        name: (http_status, body["code"]) for name, (http_status, body) in found.items()
    } == dict.fromkeys(found, (507, "NO_SPACE"))


def test_read_only_file_system_is_507_on_every_route_that_writes_and_says_so(
    tmp_path: Path,
) -> None:
    found = ask_every_route(tmp_path, read_only=True)
    assert found.pop("left") == []
    assert found.pop("upload")[0] == 403
    assert {
        name: (http_status, body["code"]) for name, (http_status, body) in found.items()
    } == dict.fromkeys(found, (507, "READ_ONLY"))


FULL_STATE_DIR = """
import http.client, json, subprocess, sys, time

def serve():
    command = [
        sys.executable, "-m", "execd", "serve", "--namespaces=off", "--sessions=lazy", "--port=0",
        "--base-dir", BASE, "--state-dir", mount_point + "/state",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if '"listening"' in line:
            return process, json.loads(line)["port"]

def ask(method, path, body=None, key=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = None if body is None else json.dumps(body)
    headers = {} if key is None else {"Idempotency-Key": key}
    connection.request(method, path, content, headers)
    answer = connection.getresponse()
    reply = json.loads(answer.read() or b"null")
    connection.close()
    return reply

def run(key):
    return ask("POST", "/v1/executions", {"command": f"echo {key} >> count; echo {key}"}, key)

process, port = serve()
try:
    result["before"] = run("before")
    script = "head -c 3000000 /dev/zero | tr '\\\\0' x; echo end"
    flood = ask("POST", "/v1/executions", {"command": script}, "flood")
    result["flood"] = {
        "exit_code": flood["exit_code"],
        "last": flood["stdout"][-4:],
        "cut": flood["truncated"]["stdout"],
    }
    filler = open(mount_point + "/filler", "wb", buffering=0)
    try:
        while filler.write(b"x"):
            pass
    except OSError as error:
        result["full"] = error.errno
    records = 0
    # The last page of the journal has room for a few records.
    while "not_journaled" not in (refused := run(f"full-{records}")) and records < 50:
        records += 1
    result["refused"] = refused
    deadline = time.monotonic() + 20
    attempts = 0
    while "not_journaled" in (later := run(f"later-{attempts}")) and time.monotonic() < deadline:
        attempts += 1
        time.sleep(0.2)
    result["later"] = later
    process.terminate()
    process.wait()
    process.stderr.close()
    process, port = serve()
    result["again"] = {key: run(key) for key in ("before", f"full-{records}", f"later-{attempts}")}
    result["counts"] = sorted(open(BASE + "/count").read().split())
finally:
    process.terminate()
    result["exit_code"] = process.wait(30)
    process.stderr.close()
"""


def test_full_state_disk_is_said_and_an_old_log_makes_room_for_the_journal(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "disk").mkdir()
    found = on_small_tmpfs(
        tmp_path / "disk", f"BASE = {str(tmp_path / 'base')!r}\n" + FULL_STATE_DIR
    )
    assert found["exit_code"] == TERMINATED
    assert "not_journaled" not in found["before"]
    assert (found["flood"]["exit_code"], found["flood"]["last"]) == (0, "end\n")
    assert found["flood"]["cut"]["disk_failure"] == os.strerror(errno.ENOSPC)
    assert found["full"] == errno.ENOSPC
    assert found["refused"]["exit_code"] == 0
    assert found["refused"]["not_journaled"] == os.strerror(errno.ENOSPC)
    assert "not_journaled" not in found["later"], "an old log has made room"
    assert {(reply["exit_reason"], reply["exit_code"]) for reply in found["again"].values()} == {
        ("exited", 0)
    }
    for key, reply in found["again"].items():
        assert reply["stdout"] == f"{key}\n" or reply["truncated"]["stdout"][
            "omitted_bytes"
        ] == len(f"{key}\n"), key
    assert len(found["counts"]) == len(set(found["counts"])), "nothing ran twice"


@pytest.mark.root
def test_with_run_as_files_are_that_users_and_so_is_what_may_be_done_with_them(start: Any) -> None:
    # pytest's own folders are closed to other users
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        with open(
            os.path.join(folder, "secret"),
            "w",
            opener=lambda path, flags: os.open(path, flags, 0o600),
        ) as secret:
            secret.write("x")
        # As an attacker would: with code in the sandbox that calls the daemon.
        daemon = start(
            "--base-dir",
            os.path.join(folder, "made/base"),
            "--run-as=1234:5678",
            "--python=/usr/bin/python3",
            "--sessions=off",
        )
        daemon.wait_ready()
        assert daemon.request("PUT", "/v1/files/d/x", "uploaded")[0] == 204
        assert (
            daemon.execute("id -u; echo >> d/x && touch d/y z && stat -c %u:%g . d d/x")["stdout"]
            == "1234\n" + 3 * "1234:5678\n"
        )
        secret_path = f"/v1/fs/file?path={folder}/secret"
        for method, path, body in (
            ("GET", secret_path, None),
            ("PUT", secret_path, "x"),
            ("DELETE", secret_path, None),
            ("PUT", f"/v1/fs/file?path={folder}/new", "x"),
            ("POST", "/v1/fs/copy", {"src": f"{folder}/secret", "dest": "copy"}),
            ("POST", "/v1/fs/chmod", {"path": f"{folder}/secret", "mode": "777"}),
        ):
            http_status, reply = daemon.request(method, path, body)
            assert (http_status, reply["code"]) == (403, "PERMISSION_DENIED")
        assert daemon.stop() == TERMINATED


def test_a_start_without_its_checkpoint_ends_with_exit_code_2(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--checkpoint-at-start=/no/such", "--sessions=off")
    assert daemon.process.wait(30) == 2
    assert "--checkpoint-at-start: roots[0]: '/no/such'" in daemon.log_path.read_text()


def test_a_signal_ends_a_start_that_makes_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with open(tmp_path / "base/large", "wb") as file:
        file.truncate(64 << 30)  # a hole, which takes a minute to hash
    daemon = Daemon(tmp_path, "--checkpoint-at-start=.", "--sessions=off")
    try:
        wait_until(lambda: any(line["message"] == "listening" for line in daemon.log), 20)
        [daemon.port] = [line["port"] for line in daemon.log if line["message"] == "listening"]
        assert daemon.request("GET", "/")[0] == 200
        assert daemon.request("GET", "/readyz")[0] == 503
        daemon.process.terminate()
        assert daemon.process.wait(30) == TERMINATED
    finally:
        daemon.process.kill()
        daemon.process.wait()
