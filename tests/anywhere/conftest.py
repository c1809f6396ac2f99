"""The tree in images that have nothing of execd: root file systems of .ci/make-roots, natively and
in gVisor. `make test-anywhere` makes the tree and the roots, and sets the variables."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest

from tests.free_port import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
TREE, ROOTS = os.environ.get("EXECD_TREE"), os.environ.get("EXECD_ROOTS")
PLACES = {"native": "in-root", "gvisor": "in-gvisor"}
# Without the tree there is nothing to try: .ci/run and `make test-anywhere` name the tree.
collect_ignore_glob = [] if TREE and ROOTS else ["test_*.py"]
if not os.path.exists(f"{ROOTS}/conda"):  # CI has four of the images
    collect_ignore_glob.append("test_swe_bench.py")
BY_SIGTERM = 128 + signal.SIGTERM
START_SECONDS = 60
PROGRAM = "/opt/execd/bin/execd"
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


class Row(NamedTuple):
    """An image."""

    program: list[str]
    """Prints hello."""
    has_shell: bool = True
    python: str | None = None
    """The version of the image's Python that serves sessions; None: execd's own serves."""
    environment: Mapping[str, str] = {"PATH": USUAL_PATH}
    accounts: Mapping[int, tuple[str, str]] = {}
    """Name and home of the users in the image's passwd."""


ROOT, USER = (0, ("root", "/root")), (1000, ("user", "/home/user"))
NOBODY_KNOWN = 4711
"""A user whom no image names. Tried where the image names 1000: elsewhere that one is unknown."""
CONDA = {"PATH": f"/opt/conda/bin:{USUAL_PATH}", "BASH_ENV": "/opt/conda/bin/activate"}

ROWS = {
    "scratch": Row(["/hello"], has_shell=False, environment={}),
    "busybox": Row(["echo", "hello"]),
    "musl": Row(["/usr/bin/hello"], accounts=dict([ROOT])),
    "debian11": Row(["echo", "hello"], python="3.9", accounts=dict([ROOT])),
    "debian12": Row(["echo", "hello"], accounts=dict([ROOT])),
    "debian13": Row(["echo", "hello"], python="3.13", accounts=dict([ROOT, USER])),
    "conda": Row(["echo", "hello"], python="3.9", environment=CONDA, accounts=dict([ROOT, USER])),
    "hostile": Row(
        ["/bin/busybox", "echo", "hello"], environment={"PATH": f"/hostile:{USUAL_PATH}"}
    ),
    "preload": Row(
        ["/usr/bin/hello"],
        environment={"PATH": USUAL_PATH, "LD_PRELOAD": "/lib/libpreload.so"},
        accounts=dict([ROOT]),
    ),
    "broken": Row(["/bin/busybox", "echo", "hello"]),
}


class Daemon(NamedTuple):
    row: Row
    client: httpx.Client
    uid: int
    place: str
    pid: int
    """Of the program that was started: the daemon's, unless in an image."""
    log: Path

    def execute(self, **fields: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/executions", json=fields)
        assert answer.status_code == 200, answer.text
        done: dict[str, Any] = answer.json()
        return done

    def python(self, code: str, **fields: Any) -> dict[str, Any]:
        """Run code in the tree's Python: a program that is in each image."""
        return self.execute(argv=["/opt/execd/bin/python3", "-c", code], **fields)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "daemon" in metafunc.fixturenames:
        rows = os.environ.get("EXECD_ANYWHERE_ROWS", " ".join(ROWS)).split()
        places = os.environ.get("EXECD_ANYWHERE_PLACES", " ".join(PLACES)).split()
        users = os.environ.get("EXECD_ANYWHERE_USERS", f"1000 0 {NOBODY_KNOWN}").split()
        metafunc.parametrize(
            "daemon",
            [
                (row, uid, place)
                for place in places
                for row in rows
                for uid in map(int, users)
                if uid != NOBODY_KNOWN or USER[0] in ROWS[row].accounts
            ],
            ids=lambda found: "-".join(map(str, found)),
            indirect=True,
            scope="module",
        )


def in_image(
    name: str, uid: int, place: str, mounts: Mapping[str, str], *options: str
) -> list[str]:
    """The command that runs the words after it in an image. ``mounts``: directories of this machine
    by their places in the image, read-only. ``options``: of .ci/in-root and .ci/in-gvisor, in the
    place of two volumes."""
    return [
        *(str(REPOSITORY / ".ci" / PLACES[place]), "--root", f"{ROOTS}/{name}", f"--uid={uid}"),
        *(f"--mount={source}:{directory}" for directory, source in mounts.items()),
        *(options or ("--tmpfs=/app", "--tmpfs=/state")),
        *(f"--env={variable}={value}" for variable, value in ROWS[name].environment.items()),
        "--",
    ]


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    command = in_image(*request.param, {"/opt/execd": str(TREE)})
    with serving(*request.param, [*command, PROGRAM]) as made:
        yield made


VOLUMES = ("--base-dir=/app", "--state-dir=/state/execd")


@contextlib.contextmanager
def serving(
    name: str, uid: int, place: str, command: list[str], flags: Sequence[str] = VOLUMES
) -> Iterator[Daemon]:
    """A daemon, which ends by SIGTERM as it should."""
    port = free_port()
    command += ["serve", "--host=127.0.0.1", f"--port={port}", "--namespaces=require", *flags]
    with tempfile.NamedTemporaryFile() as written:
        process = subprocess.Popen(command, stderr=written)
        log = Path(written.name)
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
            ) as client:

                def is_up() -> bool:
                    assert process.poll() is None, log.read_text()
                    try:
                        return client.get("/").status_code == 200
                    except httpx.TransportError:
                        return False

                wait_until(is_up, START_SECONDS)
                yield Daemon(ROWS[name], client, uid, place, process.pid, log)
            process.terminate()
            assert process.wait(30) == BY_SIGTERM
        finally:
            process.kill()
            process.wait()
