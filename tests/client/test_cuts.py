"""The connection of the client is cut at random 200 times over streams, cells, uploads and
downloads: all bytes arrive, and everything runs once."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from execd_client import AsyncExecd, Execd
from tests import drawn, found
from tests.client.conftest import AT_ONCE
from tests.client.proxies import CuttingProxy, cutting_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from execd_client import Event
    from tests.conformance.target import Target

CUTS_OF_A_KIND = 50
pytestmark = AT_ONCE
FILE_BYTES = 3 << 20


@pytest.fixture(params=found.seeds("cuts"))
def seed(request: pytest.FixtureRequest) -> int:
    drawn.note(request.param)
    return int(request.param)


@pytest.fixture
def proxy(target: Target, seed: int) -> Iterator[CuttingProxy]:
    with cutting_proxy(target.address, random.Random(seed)) as made:
        yield made


def cut_client(proxy: CuttingProxy, n_cuts: int, most_bytes: int) -> Execd:
    """A client without a connection, whose next connections are cut."""
    proxy.cut(n_cuts, most_bytes)
    return Execd(f"http://127.0.0.1:{proxy.port}")


def test_streams_bring_each_byte_once_of_a_single_run(
    proxy: CuttingProxy, sandbox: Execd, seed: int
) -> None:
    number = 0
    while proxy.n_cuts < CUTS_OF_A_KIND:
        command = f"echo run >> streamed-{seed}-{number}; seq 5000; seq 5000 9000 >&2"
        received = {"stdout": b"", "stderr": b""}
        kinds = []
        with cut_client(proxy, 4, 40_000) as client:
            for event in client.stream(command):
                kinds.append(event.kind)
                if event.kind in received:
                    received[event.kind] += event.data
        assert received["stdout"] == b"".join(b"%d\n" % n for n in range(1, 5001)), seed
        assert received["stderr"] == b"".join(b"%d\n" % n for n in range(5000, 9001)), seed
        assert (kinds.count("started"), kinds[-1], kinds.count("exited")) == (1, "exited", 1)
        assert sandbox.files.read(f"streamed-{seed}-{number}") == b"run\n", seed
        number += 1


EARLY = {"n_cuts": 1 << 30, "least_bytes": 40_000, "most_bytes": 60_000}
"""Each connection ends within an event, where events have over 60 kB."""


@pytest.mark.parametrize("is_slow", [False, True])
def test_proxy_that_cuts_each_connection_early_starves_no_stream(
    proxy: CuttingProxy, sandbox: Execd, seed: int, is_slow: bool
) -> None:
    numbers = random.Random(seed)
    size_bytes = numbers.randrange(200_000, 400_000)
    pause = "sleep 0.2;" if is_slow else ""
    name = f"early-{seed}-{is_slow}"
    output = f"head -c {size_bytes} /dev/zero; {pause} seq 20000 >&2; {pause} echo end"
    proxy.cut(**EARLY)
    received = {"stdout": b"", "stderr": b""}
    with Execd(f"http://127.0.0.1:{proxy.port}") as client:
        for event in client.stream(f"echo run >> {name}; {output}"):
            if event.kind in received:
                received[event.kind] += event.data
    assert received == {
        "stdout": bytes(size_bytes) + b"end\n",
        "stderr": b"".join(b"%d\n" % n for n in range(1, 20_001)),
    }
    assert event.result is not None
    assert (event.result.stdout_bytes, event.result.stderr_bytes) == tuple(received.values())
    assert sandbox.files.read(name) == b"run\n"
    assert proxy.n_cuts > 5


def test_proxy_that_cuts_each_connection_early_starves_no_cell(
    proxy: CuttingProxy, sandbox: Execd
) -> None:
    code = (
        "from IPython.display import HTML, display\n"
        "for n in range(3): display(HTML(str(n) * 150_000), display_id=f'd{n}')\n"
        "'r' * 100_000"
    )
    proxy.cut(**EARLY)

    async def read() -> list[Event]:
        async with AsyncExecd(f"http://127.0.0.1:{proxy.port}") as client:
            session = await client.sessions.get("early")
            return [event async for event in session.stream(code)]

    with sandbox.sessions.create("early"):
        events = asyncio.run(read())
    kinds = [event.kind for event in events]
    assert kinds == ["started", "display", "display", "display", "result", "exited"]
    shown = [event.bundle for event in events[1:5]]
    assert [bundle.data.get("text/html") for bundle in shown if bundle] == [
        *(str(n) * 150_000 for n in range(3)),
        None,
    ]


def test_cells_run_once_and_answer_in_full(proxy: CuttingProxy, sandbox: Execd, seed: int) -> None:
    with sandbox.sessions.create("cuts") as made:
        made.run("n = 0").check()
        number = 0
        while proxy.n_cuts < CUTS_OF_A_KIND:
            number += 1
            code = f"n += 1; print('x' * 9000); ({number}, n)"
            with cut_client(proxy, 3, 12_000) as client:
                cell = client.sessions.get("cuts").run(code)
            assert (cell.text, cell.stdout) == (f"({number}, {number})", "x" * 9000 + "\n"), seed
        assert made.run("n").text == str(number)


def test_uploads_arrive_in_full(
    proxy: CuttingProxy, sandbox: Execd, tmp_path: Path, seed: int
) -> None:
    content = random.Random(seed).randbytes(FILE_BYTES)
    (tmp_path / "large").write_bytes(content)
    while proxy.n_cuts < CUTS_OF_A_KIND:
        with cut_client(proxy, 6, FILE_BYTES // 2) as client:
            client.files.upload(tmp_path / "large", "up/large")
        assert sandbox.files.read("up/large") == content, seed
        assert [entry.name for entry in sandbox.files.list("up")] == ["large"]
        sandbox.files.remove("up/large")


def test_downloads_arrive_in_full(
    proxy: CuttingProxy, sandbox: Execd, tmp_path: Path, seed: int
) -> None:
    content = random.Random(seed).randbytes(FILE_BYTES)
    sandbox.files.write("down/large", content)
    while proxy.n_cuts < CUTS_OF_A_KIND:
        with cut_client(proxy, 6, FILE_BYTES // 2) as client:
            client.files.download("down/large", tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == content, seed
        assert os.listdir(tmp_path) == ["large"]
        with cut_client(proxy, 6, FILE_BYTES // 2) as client:
            assert b"".join(client.files.stream("down/large")) == content, seed


def test_a_log_that_grows_arrives_as_it_was_at_the_beginning(
    proxy: CuttingProxy, sandbox: Execd, tmp_path: Path, seed: int
) -> None:
    content = random.Random(seed).randbytes(FILE_BYTES)
    sandbox.files.write("down/log", content)
    while proxy.n_cuts < CUTS_OF_A_KIND:
        with cut_client(proxy, 6, FILE_BYTES // 2) as client:
            received = b""
            for piece in client.files.stream("down/log"):
                if not received:
                    sandbox.run("echo more >> down/log").check()
                received += piece
        assert received.startswith(content), seed
        whole = sandbox.files.read("down/log")
        assert whole.startswith(received), seed
        with cut_client(proxy, 6, FILE_BYTES // 2) as client:
            client.files.download(
                "down/log",
                tmp_path / "log",
                progress=lambda done, _: done or sandbox.run("echo more >> down/log"),
            )
        assert (tmp_path / "log").read_bytes().startswith(whole), seed
        assert os.listdir(tmp_path) == ["log"]


def test_directories_arrive_in_full(
    proxy: CuttingProxy, sandbox: Execd, tmp_path: Path, seed: int
) -> None:
    numbers = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a", "b/c", "b/d"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(numbers.randbytes(1 << 20))
    with cut_client(proxy, 4, 2 << 20) as client:
        client.files.upload_dir(source, "tree")
    with cut_client(proxy, 4, 2 << 20) as client:
        client.files.download_dir("tree", target)
    for name in ("a", "b/c", "b/d"):
        assert (target / name).read_bytes() == (source / name).read_bytes(), seed
    assert proxy.n_cuts >= 2
