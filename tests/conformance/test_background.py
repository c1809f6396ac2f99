"""Processes that outlive a command, processes that end with a command, and a caller that goes
away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ..patience import patience
from .target import execute_bytes, wait_until
from .test_timeouts import DOUBLE_FORK

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target

pytestmark = pytest.mark.both_shapes

PROMPTLY_SECONDS = 2.0


def test_background_child_with_its_output_elsewhere_lives_on(run: Run, marker: str) -> None:
    ran = run(f"sleep {marker} > /dev/null 2>&1 & echo started")
    assert (ran.stdout, ran.exit_code) == ("started\n", 0)
    assert ran.elapsed_seconds < patience(PROMPTLY_SECONDS)
    run.out("sleep 1")
    assert run.count_alive(marker) == 1


def test_background_child_that_holds_the_pipe_does_not_delay_the_reply_and_lives_on(
    run: Run, marker: str
) -> None:
    ran = run(f"sleep {marker} & echo hi")
    assert (ran.stdout, ran.exit_code, ran.timed_out) == ("hi\n", 0, False)
    assert ran.elapsed_seconds < patience(PROMPTLY_SECONDS)
    run.out("sleep 1")
    assert run.count_alive(marker) == 1


def test_daemon_that_a_command_starts_lives_on(run: Run, marker: str) -> None:
    ran = run.python(DOUBLE_FORK.format(marker=marker, then="print('done')"))
    assert (ran.stdout, ran.exit_code) == ("done\n", 0)
    assert ran.elapsed_seconds < patience(PROMPTLY_SECONDS)
    run.out("sleep 1")
    assert run.count_alive(marker) == 1


def test_server_that_a_command_starts_serves_the_next_command(
    run: Run, marker: str, folder: str
) -> None:
    server = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "open(sys.argv[1], 'w').write(str(s.getsockname()[1]) + chr(10)); c, _ = s.accept(); "
        "c.sendall(b'served')"
    )
    run.out(f'nohup python3 -c "{server}" {folder}/port {marker} > /dev/null 2>&1 &')
    wait_until(lambda: run(f"grep -q . {folder}/port").exit_code == 0, 10, "the server listens")
    client = (
        "import socket; print(socket.create_connection(('127.0.0.1', "
        f"{run.out(f'cat {folder}/port')})).recv(99))"
    )
    assert run.python(client.replace("\n", "")).stdout == "b'served'\n"


def test_server_whose_output_goes_to_the_command_s_pipe_goes_on_serving(
    run: Run, marker: str, folder: str
) -> None:
    server = (
        "import http.server, sys; s = http.server.HTTPServer(('127.0.0.1', 0), "
        "http.server.SimpleHTTPRequestHandler); "
        "open(sys.argv[1], 'w').write(str(s.server_port) + chr(10)); s.serve_forever()"
    )
    run.out(f'nohup python3 -c "{server}" {folder}/port {marker} &')
    wait_until(lambda: run(f"grep -q . {folder}/port").exit_code == 0, 10, "the server listens")
    client = (
        "import urllib.request as r; "
        f"print(r.urlopen('http://127.0.0.1:{run.out(f'cat {folder}/port').strip()}/').status)"
    )
    for _ in range(3):  # each request makes the server print a line
        assert run.python(client).stdout == "200\n"


def test_output_after_the_end_is_in_the_log_and_the_reply_stays(
    run: Run, client: httpx.Client, folder: str
) -> None:
    body = {
        "command": f"cd {folder}; mkfifo gate; "
        "{ read line < gate; seq 100000; seq 100000 >&2; echo $? > exit_code; } & echo now",
        "id": folder,
    }
    reply = client.post("/v1/executions", json=body).json()
    assert (reply["stdout"], reply["stderr"], reply["exit_code"]) == ("now\n", "", 0)
    run.out(f"echo go > {folder}/gate")
    wait_until(lambda: run(f"grep 0 {folder}/exit_code").exit_code == 0, 10, "the writer has ended")
    lines = "".join(f"{number}\n" for number in range(1, 100001))
    url = f"/v1/executions/{folder}"
    for stream, text in ("stdout", "now\n" + lines), ("stderr", lines):
        wait_until(
            lambda stream=stream, text=text: client.get(f"{url}/{stream}").text == text,
            10,
            "the log has the output",
        )
    for again in client.post("/v1/executions", json=body), client.get(url):
        assert again.json() == reply
    events = client.get(f"{url}/events", headers={"Accept": "application/x-ndjson"}).text
    assert [json.loads(line).get("text") for line in events.splitlines()] == [None, "now\n", None]


def test_background_writer_past_the_bound_of_the_log_is_counted(
    run: Run, client: httpx.Client, folder: str
) -> None:
    body = {
        "command": f"cd {folder}; mkfifo gate; "
        "{ read line < gate; yes | head -c 3000000; echo done > exit_code; } & echo now",
        "limits": {"log_bytes": 100_000},
    }
    reply = client.post("/v1/executions", json=body).json()
    run.out(f"echo go > {folder}/gate")
    wait_until(lambda: run(f"cat {folder}/exit_code").stdout == "done\n", 10, "all is written")
    url = f"/v1/executions/{reply['id']}"
    headers = {"Range": "bytes=0-9"}
    wait_until(
        lambda: (
            client.get(f"{url}/stdout", headers=headers).headers["Content-Range"]
            == "bytes 0-9/3000004"
        ),
        10,
        "all is counted",
    )
    assert client.get(url).json() == reply


def test_late_output_of_a_finishing_program_is_not_lost(run: Run) -> None:
    # The daemon waits 0.25 s for another process than the writer of the last words. On a busy
    # machine that process may be later than that, but not each time.
    said = {run("(sleep 0.05; echo late) & echo early").stdout for _ in range(10)}
    assert said - {"early\n"} == {"early\nlate\n"}


def test_last_words_of_many_short_commands_are_never_lost(run: Run) -> None:
    for number in range(100):
        assert run(f"echo {number}").stdout == f"{number}\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep {marker}",
        "sleep {marker} | cat",
        "trap '' TERM HUP INT PIPE; sleep {marker}; sleep {marker}",
        "setsid sleep {marker} & sleep {marker}",
        "yes & sleep {marker}",
    ],
)
def test_tree_ends_when_its_caller_goes_away(
    run: Run, target: Target, marker: str, command: str
) -> None:
    with target.connect() as connection:
        connection.sendall(execute_bytes(command.format(marker=marker)))
        wait_until(lambda: run.count_alive(marker) > 0, 10, "the command runs")
    wait_until(lambda: run.count_alive(marker) == 0, 6, "its tree is gone")


def test_tree_ends_when_its_caller_resets_the_connection(
    run: Run, target: Target, marker: str
) -> None:
    connection = target.connect()
    connection.sendall(execute_bytes(f"sleep {marker}"))
    wait_until(lambda: run.count_alive(marker) > 0, 10, "the command runs")
    # SOL_SOCKET, SO_LINGER: close sends a RST
    connection.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    wait_until(lambda: run.count_alive(marker) == 0, 6, "its tree is gone")


def test_callers_that_leave_before_the_command_has_begun_leave_nothing(
    run: Run, target: Target, marker: str
) -> None:
    for _ in range(50):
        with target.connect() as connection:
            connection.sendall(execute_bytes(f"sleep {marker}"))
    wait_until(lambda: run.count_alive(marker) == 0, 10, "no command without a caller is left")


def test_requests_cut_in_the_middle_leave_nothing(run: Run, target: Target, marker: str) -> None:
    whole = execute_bytes(f"sleep {marker}")
    for length in range(1, len(whole), 7):
        with target.connect() as connection:
            connection.sendall(whole[:length])
    assert run.count_alive(marker) == 0
    assert run("echo hi").stdout == "hi\n"
