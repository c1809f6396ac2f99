"""Fixtures of the conformance suite: a daemon, a client, and commands to look inside with."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from . import aftermath, contract
from .sessions import Session
from .target import READ_SECONDS, Target, can_start, elsewhere, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHAPES = {"namespaces": ("--namespaces=require",), "subreaper": ("--namespaces=off",)}
"""The two ways a daemon keeps user code: in separate namespaces, or, where the kernel refuses
namespaces, as a subreaper. "require": a daemon that falls back would skip the tests of
confinement."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "both_shapes: about the trees, walls or ends of programs, which each shape of the daemon "
        "keeps in its own way; any other test asks the daemon with namespaces alone",
    )
    config.addinivalue_line(
        "markers",
        "logs_errors(pattern): the daemons of the test must log this error; always=False: may",
    )
    config.addinivalue_line(
        "markers",
        "own_image: needs the HOME and the program `python` of execd's own image, which another "
        "image may lack (.ci/conformance-in)",
    )
    config.addinivalue_line(
        "markers",
        "shape_by_user: takes minutes; "
        "root takes one shape of the daemon, and any other user the other",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "conformance":
            item.add_marker(pytest.mark.conformance)
    # test_aftermath.py judges a daemon elsewhere; test_judges.py plants faults in daemons here.
    last, left_out = (
        [item for item in items if item.path.name == name]
        for name in ("test_aftermath.py", "test_judges.py")[:: 1 if elsewhere() else -1]
    )
    items[:] = [item for item in items if item not in last + left_out] + last
    config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        shapes = ["url"] if elsewhere() else list(SHAPES)
        if metafunc.definition.get_closest_marker("shape_by_user"):
            shapes = shapes[:1] if os.geteuid() == 0 else shapes[-1:]
        elif not metafunc.definition.get_closest_marker("both_shapes"):
            shapes = shapes[:1]
        metafunc.parametrize("target", shapes, indirect=True, scope="session")


@pytest.fixture(scope="session")
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    if there := elsewhere():
        contract.RECORDER.learn(there)
        yield there
        return
    own = start(tmp_path_factory.mktemp("daemon"), *SHAPES[request.param])
    own.must_have_namespaces = request.param == "namespaces"
    contract.RECORDER.learn(own)
    with aftermath.judged(own):
        yield own


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replaces the guard of the whole suite: the daemon may start children, for example a new
    warden. The suite's own descriptors are still counted."""
    for name in {"target"} & set(request.fixturenames):
        request.getfixturevalue(name)
    before = set(os.listdir("/proc/self/fd"))
    yield
    wait_until(
        lambda: set(os.listdir("/proc/self/fd")) <= before,
        5,
        "no descriptor is left open by the test",
    )


@pytest.fixture(scope="session", autouse=True)
def replies_are_recorded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        contract.watch(patch)
        yield


@pytest.fixture(autouse=True)
def every_reply_is_documented(replies_are_recorded: None) -> Iterator[None]:
    """``contract`` explains the rules. A test fails for a reply that the daemon's OpenAPI document
    does not have, whatever the test is about."""
    yield
    assert contract.RECORDER.take_findings() == []


@pytest.fixture
def client(target: Target) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=target.url, timeout=READ_SECONDS, trust_env=False, verify=False
    ) as made:
        yield made


@dataclass
class Ran:
    """A reply of POST /execute with a checked shape."""

    body: dict[str, Any]
    elapsed_seconds: float

    @property
    def stdout(self) -> str:
        return self.body["stdout"]

    @property
    def stderr(self) -> str:
        return self.body["stderr"]

    @property
    def exit_code(self) -> int:
        return self.body["exit_code"]

    @property
    def timed_out(self) -> bool:
        return self.body["timed_out"]

    @property
    def exit_reason(self) -> str:
        return self.body["exit_reason"]

    def truncation(self, stream: str) -> dict[str, Any] | None:
        return (self.body.get("truncated") or {}).get(stream)


def checked(response: httpx.Response) -> dict[str, Any]:
    """The body of a /execute answer, after a check of the answer: 200, JSON, every field of the
    right type."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].split(";")[0] == "application/json"
    body = response.json()
    assert type(body["stdout"]) is str
    assert type(body["stderr"]) is str
    assert type(body["exit_code"]) is int
    assert type(body["timed_out"]) is bool
    return body


class Run:
    """Runs commands in the sandbox. The suite also looks inside the sandbox through this class."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def __call__(
        self,
        command: str,
        timeout_seconds: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> Ran:
        body: dict[str, Any] = {"command": command}
        if timeout_seconds is not None:
            body["timeout_seconds"] = timeout_seconds
        started = time.monotonic()
        response = self.client.post(
            "/execute",
            json=body,
            headers=headers,
            timeout=READ_SECONDS + min(timeout_seconds or 0, 3600),
        )
        return Ran(checked(response), time.monotonic() - started)

    def out(self, command: str) -> str:
        """The standard output of a command that must succeed."""
        ran = self(command)
        assert ran.exit_code == 0, ran.body
        return ran.stdout

    def python(self, program: str, timeout_seconds: float | None = None) -> Ran:
        return self(python(program), timeout_seconds)

    def count_alive(self, marker: str) -> int:
        """How many processes carry the marker in their command line (zombies have none)."""
        return int(
            self.python(_EACH_MARKED.format(marker=_split(marker), action="found += 1")).stdout
        )

    def kill_marked(self, marker: str) -> None:
        self.python(
            _EACH_MARKED.format(marker=_split(marker), action="found += 1; os.kill(int(pid), 9)")
        )

    def process_count(self) -> int:
        return int(
            self.python("import os; print(sum(p.isdigit() for p in os.listdir('/proc')))").stdout
        )


_EACH_MARKED = """
import os
found = 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        with open(f'/proc/{{pid}}/cmdline', 'rb') as f:
            if ({marker}).encode() in f.read(): {action}
    except OSError:
        pass  # gone meanwhile
print(found)
"""


def _split(marker: str) -> str:
    """Python source that yields the marker but does not contain it: the search must not find
    itself."""
    return f"{marker[:4]!r} + {marker[4:]!r}"


def python(program: str) -> str:
    """A shell command for a Python program."""
    quoted = program.replace("'", "'\\''")
    return f"python3 -c '{quoted}'"


@pytest.fixture
def run(client: httpx.Client) -> Run:
    return Run(client)


@pytest.fixture
def marker(run: Run) -> Iterator[str]:
    """A unique number of seconds: ``sleep {marker}`` lasts longer than any test, and a search by
    argument finds the process."""
    made = f"4000.{secrets.randbelow(10**12):012}"
    yield made
    run.kill_marked(made)


@pytest.fixture
def folder(run: Run) -> Iterator[str]:
    """The name of a new directory in the base dir."""
    made = f"folder-{secrets.token_hex(6)}"
    run.out(f"mkdir {made}")
    yield made
    run(f"chmod -R u+rwx {made}; rm -rf {made}")


@pytest.fixture
def upload(client: httpx.Client) -> Callable[..., httpx.Response]:
    def post(name: str, content: bytes) -> httpx.Response:
        return client.post("/upload", files={"file": (name, content)})

    return post


@pytest.fixture
def own_daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Target]]:
    """Starts daemons with settings of their own; daemons still running at the end are stopped. No
    log may hold an error that the test does not announce."""
    if not can_start():
        pytest.skip(
            "the daemon runs elsewhere: "
            "a test of settings needs to start its own (EXECD_CONFORMANCE_LAUNCHER)"
        )
    started: list[Target] = []

    def begin(*flags: str, below: tuple[str, ...] = (), **environment: str) -> Target:
        made = start(
            tmp_path / f"daemon-{len(started)}", *flags, environment=environment, below=below
        )
        made.must_have_namespaces = "--namespaces=off" not in flags
        started.append(made)
        contract.RECORDER.learn(made)
        return made

    yield begin
    for one in started:
        assert one.process is not None
        if one.process.poll() is None:
            one.stop()
    expected = request.node.get_closest_marker("logs_errors")
    errors = [line for one in started for line in one.log_errors()]
    assert [line for line in errors if not expected or expected.args[0] not in line] == []
    is_sure = expected is not None and expected.kwargs.get("always", True)
    assert errors or not is_sure, "the error was announced and never logged"


@pytest.fixture
def confined(target: Target, run: Run) -> None:
    """Passes only where user code is in a PID namespace apart from the suite's."""
    if not target.claims_namespaces():
        assert not target.must_have_namespaces, target.capabilities()
        pytest.skip(
            "/v1/capabilities says that there are no namespaces here, "
            "and so promises nothing of this"
        )
    flag = f"5000.{secrets.randbelow(10**12):012}"
    bystander = subprocess.Popen(["sleep", flag])
    try:
        inside = run.out("readlink /proc/self/ns/pid").strip()
        assert run.count_alive(flag) == 0, (
            "the daemon claims namespaces, yet commands see this machine's processes"
        )
        assert inside != os.readlink("/proc/self/ns/pid")
    finally:
        bystander.kill()
        bystander.wait()


@pytest.fixture
def new_session(client: httpx.Client) -> Iterator[Callable[..., Session]]:
    made: list[Session] = []

    def create(**fields: Any) -> Session:
        answer = client.post("/v1/sessions", json=fields)
        assert answer.status_code == 201, answer.text
        body = answer.json()
        assert answer.headers["location"] == f"/v1/sessions/{body['id']}"
        made.append(Session(client, body["id"]))
        return made[-1]

    yield create
    for session in made:
        assert client.delete(session.path).status_code in (204, 404)


@pytest.fixture
def session(new_session: Callable[..., Session]) -> Session:
    return new_session()
