"""Attacks with connections and unfinished requests: the daemon answers, and keeps room for every
client."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from ..patience import patience
from .attack import Neighbours, probing
from .target import READ_SECONDS, elsewhere, execute_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .target import Target

OPEN_FILES = 1024
"""Descriptors of the daemon under attack. With few descriptors the attack is the same, and the test
needs few descriptors."""
PLACES = OPEN_FILES // 4
FLOOD_CONNECTIONS = 5_000 if elsewhere() else 20_000
"""Several times what the daemon can hold. A connection takes gVisor several times as long."""
FEW_DESCRIPTORS = ("sh", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "sh")

# Another process with separate descriptors. It opens connections as fast as the daemon accepts them
# and holds the newest: the daemon closes the longest idle connection for a new one, so the oldest
# connection of all that are held ends when newer ones were accepted. A faster flood fills the
# kernel's queue of connections (BACKLOG in execd/server.py). Then the kernel drops the SYN of any
# client, and the client sends the next after 1 s, then after 2 s more: no matter of the daemon's.
_FLOOD = """
import collections, contextlib, select, socket, sys
address, held, total = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
connections = collections.deque()
made = 0
while not select.select([0], [], [], 0 if made < total else None)[0]:
    with contextlib.suppress(OSError):
        connection = socket.create_connection(address, timeout=30)
        connection.sendall(sys.argv[5].encode())
        connections.append(connection)
    made += 1
    if made == total: print("all", flush=True)
    if len(connections) > held:
        with connections.popleft() as oldest, contextlib.suppress(ConnectionError):
            assert oldest.recv(1) == b""
"""


@contextlib.contextmanager
def flood(target: Target, *, held: int, total: int, sends: str = "") -> Iterator[None]:
    """Begins when all connections were made; the newest are held for as long as the block."""
    host, port = target.address
    process = subprocess.Popen(
        [sys.executable, "-c", _FLOOD, host, str(port), str(held), str(total), sends],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "all\n"
        yield
    finally:
        process.communicate("stop", timeout=patience.seconds(READ_SECONDS))
    assert process.returncode == 0, "the daemon has closed the longest idle connections"


@pytest.fixture
def small(own_daemon: Callable[..., Target]) -> Target:
    return own_daemon(below=FEW_DESCRIPTORS)


@pytest.fixture
def small_client(small: Target) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small.url, timeout=READ_SECONDS, trust_env=False) as made:
        yield made


@pytest.mark.parametrize(
    "sends", ["", "POST /execute HTTP/1.1\r\nHost: loc"], ids=["silent", "in the headers"]
)
def test_idle_connections_without_end_keep_nobody_out(
    small: Target, small_client: httpx.Client, sends: str
) -> None:
    neighbours = Neighbours(small, small_client)
    with (
        probing(small),
        neighbours.beside(),
        flood(small, held=900, total=FLOOD_CONNECTIONS, sends=sends),
    ):
        # More than memory keeps of an output: the state dir works.
        said = small_client.post(
            "/v1/executions", json={"command": "head -c 600000 /dev/zero | tr '\\0' x"}
        ).json()
        assert (said["exit_code"], said["stdout"]) == (0, "x" * 600_000)
        put = small_client.put("/v1/files/file", content=b"kept")
        assert put.status_code in (201, 204)
        assert small_client.get("/v1/files/file").content == b"kept"
        answers = small.request_at_once([execute_bytes("echo hi") for _ in range(50)])
        assert {answer.http_status for answer in answers} == {200}


def test_with_every_connection_busy_probes_are_answered_and_others_get_503(small: Target) -> None:
    unfinished = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        busy = []

        def are_all_taken() -> bool:
            # More than there are places: some are closed while they are still idle, before their
            # request is read.
            for _ in range(PLACES if not busy else 1):
                busy.append(stack.enter_context(small.connect()))
                busy[-1].sendall(unfinished)
            return small.request("GET", "/list").http_status == 503

        wait_until(are_all_taken, 10, "all places are taken")
        with probing(small):
            for path in ("/", "/healthz", "/readyz", "/v1/health"):
                assert small.request("GET", path).http_status == 200
            refused = small.request("POST", "/execute", b'{"command":"true"}')
            assert (refused.http_status, refused.headers["Connection"]) == (503, "close")
            assert refused.headers["Retry-After"]
        for connection in busy[:PLACES]:
            connection.close()
        wait_until(
            lambda: small.request("GET", "/list").http_status == 200, 10, "a place is free again"
        )


@pytest.mark.timed
def test_connection_without_a_request_is_closed_after_ten_seconds(
    target: Target, timed: Callable[[float, float], None]
) -> None:
    with target.connect() as silent, target.connect() as in_the_headers:
        began = time.monotonic()
        in_the_headers.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        for connection in silent, in_the_headers:
            assert connection.recv(1) == b""
            elapsed_seconds = time.monotonic() - began
            assert elapsed_seconds > 9
            timed(elapsed_seconds, 15)


MIB = 1 << 20


def test_unfinished_bodies_do_not_grow_the_daemon(target: Target, client: httpx.Client) -> None:
    before = None if target.pid is None else target.resident_bytes()
    body = b'{"command": "' + b"x" * (16 * MIB - 100)
    head = (
        b"POST /execute HTTP/1.1\r\n"
        b"Host: localhost\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: %d\r\n"
        b"\r\n"
    )
    refusals = 0
    with contextlib.ExitStack() as stack, probing(target):
        for _ in range(60):
            connection = stack.enter_context(target.connect())
            connection.sendall(head % (16 * MIB))
            # refused and cut, after a while of reading on
            with contextlib.suppress(ConnectionError):
                connection.sendall(body)
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                answer = connection.recv(1 << 16)
                refusals += answer.startswith(b"HTTP/1.1 429 ")
                assert b"Retry-After: " in answer
        assert refusals >= 50
        assert client.post("/execute", json={"command": "echo hi"}).json()["stdout"] == "hi\n"
        assert client.put("/v1/files/small", content=b"small").status_code in (201, 204)
        if before is not None:
            assert target.resident_bytes() - before < 160 * MIB
    wait_until(
        lambda: client.post("/execute", json={"command": ": " + "x" * 100_000}).status_code == 200,
        10,
        "the budget is given back",
    )


def test_single_request_of_the_largest_size_is_never_refused(client: httpx.Client) -> None:
    command = "echo hi #" + "x" * (16 * MIB - 100)
    assert client.post("/execute", json={"command": command}).json()["stdout"] == "hi\n"
