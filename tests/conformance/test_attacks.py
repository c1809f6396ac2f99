"""Attacks by compiled programs: the daemon answers, neighbours live on, and the guilty program gets
the right reason."""

from __future__ import annotations

import base64
import contextlib
import struct
import time
from typing import TYPE_CHECKING

import pytest

from .attack import Neighbours, attack, compiled, probing
from .target import wait_until

if TYPE_CHECKING:
    import socket

    import httpx

    from .conftest import Run
    from .target import Target

pytestmark = pytest.mark.usefixtures("confined")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled(tmp_path_factory.mktemp("attack"))


@pytest.fixture
def armed(client: httpx.Client, program: bytes) -> None:
    """The attack programs are in the base dir."""
    assert client.put("/v1/files/attack?mode=0755", content=program).status_code in (201, 204)


BOMBS = {"fork": 512, "sessions": 200, "subreapers": 200, "vfork": 200, "forking threads": 200}
"""Mode of the program, and the limit of processes for the execution."""


@pytest.mark.usefixtures("armed")
@pytest.mark.parametrize("bomb", BOMBS)
def test_compiled_fork_bomb_ends_at_its_limit_and_harms_nobody(
    target: Target, client: httpx.Client, bomb: str
) -> None:
    neighbours = Neighbours(target, client)
    with neighbours.beside(), probing(target):
        said, _ = attack(client, bomb, limits={"processes": BOMBS[bomb]}, timeout_seconds=60)
    assert said["exit_reason"] == "process_limit", said
    assert said["exit_code"] > 128
    assert said["survivors"] == []


def test_program_with_an_orphan_and_a_stopped_process_is_not_hung_up(run: Run) -> None:
    """gVisor sends SIGHUP to a group with one reaped orphan when a member ends while another is
    stopped."""
    stop = "sleep 100 & stopped=$!; kill -STOP $stopped; sleep 0.2; kill -KILL $stopped; echo fine"
    for orphans in ("(true &)", "(true &); (true &)"):
        said = run(f"{orphans}; sleep 0.3; {stop}")
        assert (said.stdout, said.exit_code) == ("fine\n", 0), said


@pytest.mark.usefixtures("armed")
def test_program_with_an_orphan_is_not_hung_up_beside_a_fork_bomb(
    client: httpx.Client,
) -> None:
    """A freeze stops the program, and a thaw continues the program piece by piece."""
    bomb = {"command": "f() { f | f & }; f; sleep 100", "timeout_seconds": 60, "detach": True}
    bomb_id = client.post("/v1/executions", json=bomb).json()["id"]
    said = []
    while client.get(f"/v1/executions/{bomb_id}").json()["state"] != "EXITED" or not said:
        said.append(attack(client, "orphan and children", f"{20 + 40 * len(said)}")[0])
    assert {(one["exit_reason"], one["exit_code"]) for one in said} == {("exited", 0)}, said
    bombed = client.get(f"/v1/executions/{bomb_id}").json()
    assert (bombed["exit_reason"], bombed["signal"]) == ("process_limit", "SIGKILL"), bombed


def test_crowd_of_another_takes_no_processes_from_a_tree_below_its_limit(
    client: httpx.Client,
) -> None:
    """In gVisor the kernel's limit counts per user, and follows the use by all sessions
    (``proc/process_caps``)."""
    begin = {
        "command": (
            "read line; for i in $(seq 40); do sleep 10 >/dev/null 2>&1 & done; echo $line $?"
        ),
        "stdin_open": True,
    }
    early = client.post(
        "/v1/executions", json=begin | {"limits": {"processes": 50}, "detach": True}
    ).json()["id"]
    crowd = "for i in $(seq 450); do sleep 1000 & done; wait"
    later = client.post("/v1/executions", json={"command": crowd, "detach": True}).json()["id"]
    wait_until(
        lambda: client.get("/v1/stats").json()["warden"]["processes"] > 450,
        120,
        "the warden has counted the crowd",
    )
    said = client.post(f"/v1/executions/{early}/stdin?eof=true", content=b"forked\n")
    assert said.status_code in (200, 204), said.text
    ended = client.get(f"/v1/executions/{early}?wait_seconds=60").json()
    client.delete(f"/v1/executions/{later}")
    assert (ended["stdout"], ended["stderr"]) == ("forked 0\n", ""), ended


@pytest.mark.usefixtures("armed")
def test_threads_count_as_processes_of_a_tree(target: Target, client: httpx.Client) -> None:
    neighbours = Neighbours(target, client)
    with neighbours.beside(), probing(target):
        said, _ = attack(client, "threads", "4000", timeout_seconds=60)
    assert (said["exit_reason"], said["killed"]) == ("process_limit", 1), said


@pytest.mark.usefixtures("armed")
def test_threads_within_the_limit_are_left_alone(client: httpx.Client) -> None:
    said, _ = attack(client, "threads", "150", limits={"processes": 200}, timeout_seconds=3)
    assert (said["exit_reason"], said["stdout"]) == ("timeout", "150 threads\n"), said


@pytest.mark.usefixtures("armed")
def test_chain_of_processes_that_fork_and_end_dies_with_its_execution(
    run: Run, target: Target, client: httpx.Client
) -> None:
    neighbours = Neighbours(target, client)
    with neighbours.beside(), probing(target):
        ran = run("./attack chain; sleep 60", timeout_seconds=2)
    assert ran.exit_reason == "timeout"


@pytest.mark.usefixtures("armed")
@pytest.mark.parametrize("number", [19, 9])
def test_signal_between_vfork_and_exec_does_not_cost_the_warden(
    run: Run, target: Target, client: httpx.Client, number: int
) -> None:
    """The program signals every pid that comes next. A neighbour that is hit ends or stops, as
    between any two programs."""
    restarts = target.capabilities(afresh=True)["warden_restarts"]
    with probing(target):
        attacker = client.post(
            "/v1/executions",
            json={"argv": ["./attack", "signal next", str(number)], "detach": True},
        ).json()
        for _ in range(20):
            said = client.post(
                "/v1/executions", json={"command": "echo hi", "timeout_seconds": 1}
            ).json()
            assert said["exit_reason"] in ("exited", "signaled", "timeout"), said
        client.post(f"/v1/executions/{attacker['id']}/kill")
    assert target.capabilities(afresh=True)["warden_restarts"] == restarts
    assert run("echo hi").stdout == "hi\n"


def test_stopped_warden_is_continued_at_once_and_loses_nothing(
    run: Run, target: Target, client: httpx.Client
) -> None:
    """gVisor lets user code stop the init of the namespace; Linux ignores the signal."""
    restarts = target.capabilities(afresh=True)["warden_restarts"]
    with probing(target):
        flood = client.post(
            "/v1/executions", json={"command": "while :; do kill -STOP 1; done", "detach": True}
        ).json()
        for _ in range(10):
            assert run("kill -STOP 1; echo hi", timeout_seconds=10).stdout == "hi\n"
        client.post(f"/v1/executions/{flood['id']}/kill")
    assert target.capabilities(afresh=True)["warden_restarts"] == restarts


FLOOD_IN_FLIGHT = """
import array, os, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
null = os.open("/dev/null", os.O_RDONLY)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 250))]
pairs, n_sent = [], 0
try:
    while n_sent < 100_000:
        pairs.append(socket.socketpair())
        pairs[-1][0].setblocking(False)
        try:
            while True:
                pairs[-1][0].sendmsg([b"x"], rights)
                n_sent += 250
        except BlockingIOError:
            pass
except OSError as error:
    print(error.strerror)
print("in flight", flush=True)
time.sleep(100)
"""


def test_descriptors_in_flight_of_user_code_harm_nobody(
    target: Target, client: httpx.Client
) -> None:
    """The daemon sends descriptors to the warden as the same user (unix(7), ETOOMANYREFS)."""
    neighbours = Neighbours(target, client)
    with neighbours.beside(), probing(target):
        flood = client.post(
            "/v1/executions",
            json={"argv": ["python3", "-c", FLOOD_IN_FLIGHT], "detach": True},
        ).json()["id"]
        wait_until(
            lambda: "in flight" in client.get(f"/v1/executions/{flood}").json()["stdout"],
            60,
            "the descriptors are in flight",
        )
        said = client.post("/v1/executions", json={"command": "echo hi"}).json()
        assert (said["stdout"], said["exit_code"]) == ("hi\n", 0), said
        session = client.post("/v1/sessions", json={})
        assert session.status_code in (200, 201), session.text
        client.delete(f"/v1/sessions/{session.json()['id']}")
        client.delete(f"/v1/executions/{flood}")


RESIZES = [
    # An unmasked frame would be an error, so the mask is zero: RFC 6455, section 5.3.
    struct.pack("!BBL", 0x81, 0x80 | len(text), 0) + text
    for text in (b'{"type":"resize","cols":80,"rows":24}', b'{"type":"resize","cols":81,"rows":24}')
]


def viewer(target: Target, path: str) -> socket.socket:
    connection = target.connect()
    headers = "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"
    key = base64.b64encode(bytes(16)).decode()
    lines = (
        f"GET {path}/attach HTTP/1.1",
        "Host: localhost",
        *headers,
        f"Sec-WebSocket-Key: {key}",
    )
    connection.sendall("\r\n".join((*lines, "", "")).encode())
    assert connection.recv(12) == b"HTTP/1.1 101"
    connection.setblocking(False)
    return connection


def test_resizes_without_end_from_many_viewers_harm_nobody(
    target: Target, client: httpx.Client
) -> None:
    """Each resize is a signal that the warden sends."""
    neighbours = Neighbours(target, client)
    with (
        neighbours.beside(),
        probing(target),
        contextlib.ExitStack() as connections,
    ):
        command = {"argv": ["sleep", "60"], "pty": {"cols": 80, "rows": 24}, "detach": True}
        execution = client.post("/v1/executions", json=command).json()["id"]
        flood = b"".join(RESIZES * 2000)
        left = {
            connections.enter_context(viewer(target, f"/v1/executions/{execution}")): b""
            for _ in range(10)
        }
        refilled = dict.fromkeys(left, 0.0)
        end = time.monotonic() + 12
        while (now := time.monotonic()) < end:
            for connection in left:
                with contextlib.suppress(BlockingIOError):
                    connection.recv(1 << 16)
                if not left[connection] and now - refilled[connection] > 0.5:
                    refilled[connection], left[connection] = now, flood
                with contextlib.suppress(BlockingIOError):
                    left[connection] = left[connection][connection.send(left[connection]) :]
        said = client.get(f"/v1/executions/{execution}").json()
        assert said["state"] == "RUNNING", said
        client.delete(f"/v1/executions/{execution}")
