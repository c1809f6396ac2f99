"""E2B's own SDKs from PyPI, sync and async, against the ports for envd and the code interpreter.

The SDKs run in a separate process (``drive_e2b.py``) and print the results as JSON. The
daemon is found as in the conformance suite: EXECD_URL with EXECD_CONFORMANCE_PORTS, or a daemon
started here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conformance.target import (
    REPOSITORY,
    TERMINATED,
    dialect_ports,
    elsewhere,
    start,
)
from tests.free_port import free_port
from tests.patience import patience
from tests.sdk.conftest import KINDS, installed, output_of, warm

if TYPE_CHECKING:
    from collections.abc import Iterator

PORTS = ("e2b_envd", "e2b_code")
VERSIONS = {"e2b": "2.63.0", "e2b-code-interpreter": "2.11.5"}
DRIVERS = Path(__file__).parent
TOKEN = "token-of-the-test"
TOKEN_SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
LARGE = b"0123456789abcde\n" * 500_000

both_kinds = pytest.mark.parametrize("kind", KINDS)


class E2BTarget(NamedTuple):
    """The two URLs of a daemon."""

    envd: str
    code: str


def urls(host: str, ports: dict[str, int]) -> E2BTarget:
    return E2BTarget(*(f"http://{host}:{ports[name]}" for name in PORTS))


def started(directory: Path, ports: dict[str, int], *flags: str) -> Iterator[E2BTarget]:
    ports_flags = [f"--{name.replace('_', '-')}-port={port}" for name, port in ports.items()]
    own = start(directory, "--sessions=lazy", *ports_flags, *flags)
    yield urls("localhost", ports)
    assert own.stop() == TERMINATED, own.log_text()
    assert own.log_errors() == []


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2BTarget]:
    there = elsewhere()
    if there is None:
        yield from started(tmp_path_factory.mktemp("daemon"), dialect_ports(*PORTS))
    else:
        yield urls(there.address[0], dialect_ports(*PORTS))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2BTarget]:
    """A daemon with a token."""
    ports = {name: free_port() for name in PORTS}
    flags = [f"--token-sha256={TOKEN_SHA256}"]
    yield from started(tmp_path_factory.mktemp("guarded"), ports, *flags)


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Path]:
    """The interpreter of an environment with the SDKs."""
    packages = [f"{package}=={version}" for package, version in VERSIONS.items()]
    environment = installed("-".join(packages).replace("==", "-"), *packages)
    with warm(environment, "e2b_code_interpreter") as path:
        yield path


def drive(
    interpreter: Path, target: E2BTarget, scenario: str, kind: str, token: str | None = None
) -> Any:
    command = [interpreter, DRIVERS / "drive_e2b.py", scenario, kind, *target]
    return json.loads(output_of(command if token is None else [*command, token]).splitlines()[-1])


@both_kinds
def test_commands_run(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    assert drive(interpreter, e2b, "commands", kind) == {
        "plain": ["out\n", "err\n", 0],
        "failed": [7, "some\n", "bad\n", "exit status 7"],
        "callback": "one\ntwo\n",
        "invalid": "a\ufffdbé",
        "large": [8_000_000, hashlib.sha256(LARGE).hexdigest()],
        "variable": "hé llo\n",
        "cwd": "/tmp\n",
        "login shell": "yes\n",
        "missing": "exit 127",
        "missing cwd": "InvalidArgumentException",
        "signal": "exit -1",
        "root": "ok\n",
        "unknown user": "AuthenticationException",
        "health": True,
    }


@both_kinds
def test_timeout_of_a_command_is_a_timeout_and_ends_the_command(
    interpreter: Path, e2b: E2BTarget, kind: str
) -> None:
    seen = drive(interpreter, e2b, "timeouts", kind)
    assert (seen["raised"], seen["gone"]) == ("TimeoutException", True)
    assert 0.9 <= seen["elapsed_seconds"] < patience(5)
    assert seen["unlimited"] == "fine\n"


@both_kinds
def test_background_commands_are_listed_fed_and_killed(
    interpreter: Path, e2b: E2BTarget, kind: str
) -> None:
    assert drive(interpreter, e2b, "background", kind) == {
        "listed": [True],
        "stdin": ["got first\nrest", 3],
        "killed": True,
        "wait": "exit -1",
        "tree": "",
        "unknown": False,
    }


@both_kinds
def test_streamed_input_arrives(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    assert drive(interpreter, e2b, "streamed_input", kind) is True


@both_kinds
def test_disconnected_client_connects_again(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    assert drive(interpreter, e2b, "reconnect", kind) == {
        "running": [True, 4],
        "ended": ["unseen\n", 5],
        "unknown": "NotFoundException",
    }


@both_kinds
def test_files_are_written_read_listed_and_moved(
    interpreter: Path, e2b: E2BTarget, kind: str
) -> None:
    assert drive(interpreter, e2b, "files", kind) == {
        "bytes": True,
        "object": True,
        "gzip": True,
        "written": ["text.txt", True],
        "names": True,
        "listed": True,
        "depth": ["/big.bin", "/n", "/stream.bin", "/sub", "/sub/text.txt", "/zip.bin"],
        "info": ["text.txt", 6, "file", "-rw-r--r--"],
        "metadata": [{"owner": "a b"}, {"owner": "a b"}, {"owner": "a b"}, None],
        "made": [True, False],
        "moved": ["moved.txt", False],
        "relative": "home",
        "missing": "FileNotFoundException",
        "directory": "InvalidArgumentException",
        "not a directory": "InvalidArgumentException",
        "dangling": True,
        "exists": False,
    }


@both_kinds
def test_terminal_has_a_size_and_an_exit_code(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    exit_code, shown = drive(interpreter, e2b, "terminal", kind)
    assert exit_code == 6
    assert re.search("31 97\r\nxterm-256color\r\nyes", shown), shown


@both_kinds
def test_watched_directory_tells_each_change(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    seen = drive(interpreter, e2b, "watch", kind)
    expected = [
        *(["create", "new"], ["write", "new"], ["rename", "new"], ["create", "newer"]),
        *(["chmod", "newer"], ["create", "sub"], ["create", "sub/deep"], ["remove", "newer"]),
        *(["create", "uploaded"], ["write", "uploaded"]),
    ]
    # Files of a new directory may be found by a look into the directory: then without a write.
    assert [event for event in seen if event != ["write", "sub/deep"]] == expected


@both_kinds
def test_cells_keep_state_and_show_results_and_errors(
    interpreter: Path, e2b: E2BTarget, kind: str
) -> None:
    seen = drive(interpreter, e2b, "code", kind)
    assert 0.9 <= seen.pop("elapsed_seconds") < patience(10)
    assert seen == {
        "first": ["42", ["printed\n"], None],
        "state": "41",
        "error": ["ZeroDivisionError", "division by zero", True],
        "html": [["<b>é</b>", False]],
        "png": ["iVBO"],
        "chart": [["line", [[1, 2.5]]]],
        "env": '"a\'b"',
        "env after": None,
        "odd": "line\u2028sep\x85end\n\nlast\n",
        "timeout": "TimeoutException",
        "after": "43",
        "language": "SandboxException",
        "count": True,
    }


@both_kinds
def test_plot_is_a_png_where_matplotlib_is_installed(
    interpreter: Path, e2b: E2BTarget, kind: str
) -> None:
    seen = drive(interpreter, e2b, "plot", kind)
    without = {"error": "ModuleNotFoundError", "png": []}
    is_needed = "matplotlib" in os.environ.get("EXECD_CONFORMANCE_PACKAGES", "")
    assert seen == {"error": None, "png": ["iVBO"]} or (seen == without and not is_needed)


@both_kinds
def test_contexts_are_apart_and_restart(interpreter: Path, e2b: E2BTarget, kind: str) -> None:
    assert drive(interpreter, e2b, "contexts", kind) == {
        "cwd": ["/tmp", True, "python"],
        "one": "('in one', '/tmp')",
        "two": "NameError",
        "listed": [True, True],
        "restarted": "NameError",
        "removed": "NotFoundException",
    }


@both_kinds
@pytest.mark.parametrize("port", ["envd", "code"])
def test_one_url_serves_both_apis(interpreter: Path, e2b: E2BTarget, kind: str, port: str) -> None:
    url = e2b.envd if port == "envd" else e2b.code
    seen = drive(interpreter, E2BTarget(url, url), "single_port", kind)
    assert seen == {"command": "in\n", "file": "x", "code": "42", "contexts": True}


@pytest.mark.any_kernel  # the daemon is started here
@both_kinds
def test_token_of_the_deprecated_constructor_opens_all_but_contexts(
    interpreter: Path, guarded: E2BTarget, kind: str
) -> None:
    seen = drive(interpreter, guarded, "token", kind, TOKEN)
    assert (seen["command"], seen["file"], seen["code"]) == ("in\n", None, "42")
    assert "EXECD_E2B_OPEN_CONTEXTS" in seen["contexts"]


@pytest.mark.any_kernel  # the daemon is started here
@both_kinds
@pytest.mark.parametrize("token", [None, "wrong"])
def test_wrong_or_missing_token_is_refused_everywhere_but_health(
    interpreter: Path, guarded: E2BTarget, kind: str, token: str | None
) -> None:
    seen = drive(interpreter, guarded, "refused", kind, token)
    assert [seen[name] for name in ("command", "file", "stat")] == ["AuthenticationException"] * 3
    assert seen["code"].startswith("401")
    assert "EXECD_E2B_OPEN_CONTEXTS" in seen["contexts"]
    assert seen["health"] is True


def test_snippet_of_the_docs_runs(interpreter: Path, e2b: E2BTarget) -> None:
    page = (REPOSITORY / "wings" / "e2b" / "README.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = snippet.replace("http://localhost:49983", e2b.envd)
    shown = output_of([interpreter, "-c", program])
    assert shown == 'hello\n\n"written by E2B\'s SDK"\n'
