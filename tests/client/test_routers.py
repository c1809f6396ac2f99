"""The client behind a router that strips ``Authorization``, buffers, and cuts idle connections; and
over a unix socket. A router's 30 s are 1.5 s here."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest

from execd_client import AsyncExecd, Execd, Unauthenticated
from tests.client.proxies import Router, router
from tests.conformance.target import TERMINATED, Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDLE_SECONDS = 1.5
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A daemon with a token."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    made = start(tmp_path_factory.mktemp("guarded"), f"--token-sha256={digest}")
    yield made
    assert made.stop() == TERMINATED, made.log_text()


@pytest.fixture
def behind(guarded: Target) -> Iterator[Router]:
    with router(guarded.url, IDLE_SECONDS) as made:
        yield made


@pytest.fixture
def client(behind: Router) -> Iterator[Execd]:
    with Execd(f"http://127.0.0.1:{behind.port}{Router.PREFIX}/", TOKEN, {"X-Team": "red"}) as made:
        yield made


def test_a_command_longer_than_the_routers_patience_runs_once(
    behind: Router, client: Execd
) -> None:
    result = client.run("echo run >> once; sleep 4; cat once")
    assert (result.stdout, result.exit_code) == ("run\n", 0)
    assert behind.n_idle_cuts >= 1
    assert all(seen["X-Team"] == "red" for seen in behind.seen)


def test_a_stream_that_is_kept_back_and_cut_arrives_in_full(behind: Router, client: Execd) -> None:
    command = "seq 9000; sleep 4; seq 9001 12000"
    received = b"".join(e.data for e in client.stream(command) if e.kind == "stdout")
    assert received == b"".join(b"%d\n" % number for number in range(1, 12001))
    assert behind.n_idle_cuts >= 1


def test_cells_and_files_work_behind_the_router(client: Execd, tmp_path: Path) -> None:
    content = random.Random(7).randbytes(3 << 20)
    (tmp_path / "sent").write_bytes(content)
    client.files.upload(tmp_path / "sent", "sent")
    with client.sessions.create() as session:
        cell = session.run("import time; time.sleep(2); len(open('sent', 'rb').read())")
        assert cell.text == str(len(content))
    client.files.download("sent", tmp_path / "received")
    assert (tmp_path / "received").read_bytes() == content


def test_a_terminal_works_behind_the_router(client: Execd) -> None:
    handle = client.start(["/bin/sh"], pty=(80, 24))
    with handle.terminal() as terminal:
        terminal.write("echo $((40 + 2)); exit 3\n")
        shown = b""
        while data := terminal.read():
            shown += data
    assert b"42\r\n" in shown
    assert terminal.result is not None
    assert terminal.result.exit_code == 3


def test_a_wrong_token_is_said_at_once(behind: Router) -> None:
    with Execd(f"http://127.0.0.1:{behind.port}{Router.PREFIX}", "wrong") as client:
        with pytest.raises(Unauthenticated) as caught:
            client.run("true")
        assert caught.value.http_status == 401


async def test_a_unix_socket_is_an_address(guarded: Target, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with router(guarded.url, IDLE_SECONDS, path):
        with Execd(f"http://execd{Router.PREFIX}", TOKEN, uds=str(path)) as client:
            assert client.run("echo hello").stdout == "hello\n"
            handle = client.start("cat", stdin_open=True)
            with handle.terminal() as terminal:
                terminal.write("typed\n")
                assert terminal.read() == b"typed\n"
                terminal.eof()
                assert terminal.read() == b""
        async with AsyncExecd(f"http://execd{Router.PREFIX}", TOKEN, uds=str(path)) as client:
            assert (await client.run("echo hello")).stdout == "hello\n"
