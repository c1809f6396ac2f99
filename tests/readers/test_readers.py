"""Event streams are read without loss by the libraries that users take. CI installs Node.js and
curl; on a machine without these, their readers are skipped."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest

from tests import drawn, found
from tests.conformance.target import TERMINATED, start
from tests.profiles import examples
from tests.readers.generated import LINE_ENDS, NDJSON, SSE, as_read, random_events, random_text
from tests.readers.reading import READERS, REPOSITORY, Events, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[list[Source]], list[Events]]

N_STREAMS = examples(25).max_examples  # 2,500 for each reader in CI
MOST_STREAMS = 2_500
N_COMMANDS, N_CELLS = 50, 20

each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@pytest.fixture(scope="module", params=found.seeds("readers"))
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def url(seed: int) -> Iterator[str]:
    """The server of random streams."""
    command = [sys.executable, "-m", "tests.readers.serve", str(seed)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin
        assert server.stdout
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()
    assert server.returncode == 0


class Written(NamedTuple):
    """A finished execution, and the text that the execution wrote and displayed."""

    path: str
    text: str
    bundle: dict[str, str] | None


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a daemon."""
    started = start(tmp_path_factory.mktemp("daemon"))
    with httpx.Client(base_url=started.url, timeout=60) as client:
        yield client
    assert started.stop() == TERMINATED, started.log_text()


@pytest.fixture(scope="module")
def executions(daemon: httpx.Client, seed: int) -> list[Written]:
    numbers = random.Random(seed)
    written = []
    for number in range(N_COMMANDS + N_CELLS):
        text = "".join(random_text(numbers) for _ in range(3))
        bundle = {"text/plain": text, f"x-test/{numbers.choice(LINE_ENDS)}": text}
        if number < N_COMMANDS:
            reply = daemon.post("/v1/executions", json={"argv": ["cat"], "stdin": text})
            written.append(Written(f"/v1/executions/{reply.json()['id']}", text, None))
            continue
        code = (
            "import sys\nfrom IPython.display import display\n"
            f"sys.stdout.write({text!r})\ndisplay({bundle!r}, raw=True)"
        )
        reply = daemon.post("/v1/code", json={"session_id": "one", "code": code})
        execution_id = reply.headers["Location"].rpartition("/")[2]
        written.append(Written(f"/v1/executions/{execution_id}", text, bundle))
    return written


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@each_reader
def test_reader_finds_all_events_of_random_streams(read: Read, url: str, seed: int) -> None:
    first = [*READERS.values()].index(read) * MOST_STREAMS
    n_streams = N_STREAMS if seed == found.FIXED_SEED else MOST_STREAMS
    numbers = range(first, first + n_streams)
    received = read([Source(f"{url}/{number}", (SSE, NDJSON)[number % 2]) for number in numbers])
    for number, events in zip(numbers, received, strict=True):
        sent = as_read(random_events(seed, number))
        drawn.note(sent)
        assert events == sent, f"seed {seed}, stream {number}"


@each_reader
def test_reader_finds_all_that_commands_and_cells_wrote(
    read: Read, daemon: httpx.Client, executions: list[Written], seed: int
) -> None:
    sources = [
        Source(f"{daemon.base_url}{execution.path}/events", (SSE, NDJSON)[number % 2])
        for number, execution in enumerate(executions)
    ]
    for execution, events in zip(executions, read(sources), strict=True):
        drawn.note((execution.text, execution.bundle))
        output = [event["fields"]["text"] for event in events if event["event"] == "stdout"]
        assert "".join(output) == execution.text, f"seed {seed}"
        shown = [event["fields"]["data"] for event in events if event["event"] == "display"]
        assert shown == ([execution.bundle] if execution.bundle else [])
        assert events[0]["event"] == "started"
        assert events[-1]["fields"] == daemon.get(execution.path).json()
