"""OpenSandbox's own SDKs from PyPI, sync and async, against the port for OpenSandbox.

The SDKs run in a separate process (``drive_opensandbox.py``) and print the results as JSON.
A stand-in replaces only the lifecycle server, which tells the SDK the daemon's address;
``test_opensandbox_server.py`` has the real server. The daemon is found as in the conformance suite:
EXECD_URL with EXECD_CONFORMANCE_PORTS, or a daemon started here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

PACKAGES = ("opensandbox==1.1.1", "opensandbox-code-interpreter==1.1.1")
DRIVERS = Path(__file__).parent
TOKEN = "token-of-the-test"
TOKEN_SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
LARGE = b"0123456789abcde\n" * 100_000
"""More than a reply may hold. Each line is an event, which the SDK decodes slowly."""
API_ERROR = "SandboxApiException"

both_kinds = pytest.mark.parametrize("kind", KINDS)


def started(directory: Path, port: int, *flags: str) -> Iterator[str]:
    # In /tmp another user's daemon may have left the file of variables behind.
    env_file = f"--opensandbox-env-file={directory}/env"
    own = start(directory, "--sessions=lazy", f"--opensandbox-port={port}", env_file, *flags)
    yield f"127.0.0.1:{port}"
    assert own.stop() == TERMINATED, own.log_text()
    assert own.log_errors() == []


@pytest.fixture(scope="module")
def opensandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    there = elsewhere()
    port = dialect_ports("opensandbox")["opensandbox"]
    if there is None:
        yield from started(tmp_path_factory.mktemp("daemon"), port)
    else:
        yield f"{there.address[0]}:{port}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with a token."""
    directory = tmp_path_factory.mktemp("guarded")
    yield from started(directory, free_port(), f"--token-sha256={TOKEN_SHA256}")


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Path]:
    """The interpreter of an environment with the SDKs."""
    with warm(installed("opensandbox-1.1.1", *PACKAGES), "opensandbox", "code_interpreter") as path:
        yield path


def drive(
    interpreter: Path, daemon: str, scenario: str, kind: str, token: str | None = None
) -> Any:
    command = [interpreter, DRIVERS / "drive_opensandbox.py", scenario, kind, daemon]
    shown = output_of(command if token is None else [*command, token])
    return json.loads(shown.splitlines()[-1])


@both_kinds
def test_commands_run(interpreter: Path, opensandbox: str, kind: str) -> None:
    assert drive(interpreter, opensandbox, "commands", kind) == {
        "plain": ["out\n", "err\n", 0, "out"],
        "failed": ["some\n", 7, ["CommandExecError", "7"]],
        "signal": [-1, ["CommandExecError", "-1"], ["signal: killed", "SIGKILL ended the program"]],
        "missing": [127, True],
        "invalid": "a\ufffdb\u00e9",
        "large": [len(LARGE), hashlib.sha256(LARGE).hexdigest()],
        "lines": "a\n\nb\r\nc\rd",
        "heard": ["init True", "one\n", "two\n", "complete", "init True", "error 3"],
        "argv": "a b|$HOME|*|",
        "variable": "hé llo\n",
        "cwd": "/tmp\n",
        "missing cwd": [125, ["CommandExecError", "125"]],
        "own uid": 0,
        "set": 'it\'s "set" $HOME\n',
        "silent": 0,
        "health": True,
        "unset": 0,
    }


@both_kinds
def test_timeout_of_a_command_ends_the_whole_tree(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    seen = drive(interpreter, opensandbox, "timeouts", kind)
    assert 0.9 <= seen.pop("elapsed_seconds") < patience(5)
    assert seen == {
        "partial": "started\n",
        "exit_code": -1,
        "error": ["CommandTimeout", "-1"],
        "left": "",
        "status": -1,
    }


@both_kinds
def test_background_command_has_a_status_and_logs_for_another_client(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    seen = drive(interpreter, opensandbox, "background", kind)
    assert sorted(seen.pop("logs").split()) == ["early", "err"]
    assert seen == {
        "began": [True, None, ""],
        "running": [True, None, True],
        "ended": [4, True],
        "rest": "late\n",
        "last": ["", True],
        "unknown": [API_ERROR, 404, "CONTEXT_NOT_FOUND"],
        "foreground": [API_ERROR, 400, "INVALID_REQUEST_BODY"],
    }


@both_kinds
def test_interrupt_ends_the_whole_tree(interpreter: Path, opensandbox: str, kind: str) -> None:
    assert drive(interpreter, opensandbox, "interrupt", kind) == {
        "background": [False, -1],
        "tree": "",
        # The SDK knows no code for the interrupt of nothing, and shows the daemon's words.
        "again": [API_ERROR, 409, "UNEXPECTED_RESPONSE"],
        "unknown": [API_ERROR, 404, "UNEXPECTED_RESPONSE"],
        "foreground": [-1, ["CommandCanceled", "-1"]],
    }


@both_kinds
def test_bash_session_keeps_its_state(interpreter: Path, opensandbox: str, kind: str) -> None:
    seen = drive(interpreter, opensandbox, "sessions", kind)
    assert seen.pop("elapsed_seconds") < patience(30), "a child in the background delays nothing"
    assert seen == {
        "cwd": "/tmp",
        "state": "1 2 hello you / *",
        "failed": ["partial\n", 5],
        "after exit": "1 /",
        "forged": [3, "/"],
        "one-time cwd": "/usr",
        "timeout": ["on time\n", -1, ["CommandTimeout", "-1"]],
        "after timeout": "1",
        "stderr": "err\n",
        "deleted": [API_ERROR, 404, "CONTEXT_NOT_FOUND"],
        "deleted twice": [API_ERROR, 404, "CONTEXT_NOT_FOUND"],
    }


@both_kinds
def test_files_are_written_read_listed_and_moved(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    assert drive(interpreter, opensandbox, "files", kind) == {
        "bytes": True,
        "streamed": True,
        "range": True,
        "names": True,
        "lines": "two\nthree",
        "info": ["file", 19, 644],
        "directory": ["directory", 0, 750],
        "permissions": 640,
        "replaced": [3, "0ne\ntw0\nthree\nf0ur\n"],
        "listed": ["/big.bin", "/made", "/moved", "/n", "/stream.bin"],
        "deep": ["", "/deep"],
        "search": ["/big.bin", "/stream.bin"],
        "odd names": 5,
        "home": "home",
        "errors": [
            [API_ERROR, 404, "FILE_NOT_FOUND"],
            [API_ERROR, 400, "INVALID_REQUEST_BODY"],
            [API_ERROR, 404, "FILE_NOT_FOUND"],
            [API_ERROR, 400, "UNEXPECTED_RESPONSE"],
            [API_ERROR, 400, "INVALID_REQUEST_BODY"],
        ],
        "gone": [API_ERROR, 404, "FILE_NOT_FOUND"],
    }


@both_kinds
def test_metrics_are_plausible(interpreter: Path, opensandbox: str, kind: str) -> None:
    assert drive(interpreter, opensandbox, "metrics", kind) == [True, True, True]


@both_kinds
def test_isolated_sessions_and_other_users_are_refused_with_a_reason(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    assert drive(interpreter, opensandbox, "isolation", kind) == {
        "available": False,
        "list": [API_ERROR, 501, "NOT_SUPPORTED"],
        "own identity": "x",
        "other identity": [API_ERROR, 501, "NOT_SUPPORTED"],
    }


@both_kinds
def test_code_keeps_state_and_shows_results_and_errors(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    assert drive(interpreter, opensandbox, "code", kind) == {
        "language": "python",
        "first": ["printed\n", ["42"], None],
        "state": "41",
        "error": [["ZeroDivisionError", "division by zero"], True],
        "html": "<IPython.core.display.HTML object>",
        "odd": "line\u2028sep\x85end\n\nlast\n",
        "large": 1_000_001,
        "default": ["1", "1", ["NameError", "name 'y' is not defined"]],
        "bash": "from bash",
        "other language": [API_ERROR, 501, "UNEXPECTED_RESPONSE"],
        "listed": True,
        "got": "bash",
        "deleted": [
            [API_ERROR, 404, "CONTEXT_NOT_FOUND"],
            [API_ERROR, 404, "CONTEXT_NOT_FOUND"],
            [API_ERROR, 404, "UNEXPECTED_RESPONSE"],
        ],
        "interrupted": ["KeyboardInterrupt", "5"],
    }


@both_kinds
def test_plot_is_a_png_where_matplotlib_is_installed(
    interpreter: Path, opensandbox: str, kind: str
) -> None:
    seen = drive(interpreter, opensandbox, "plot", kind)
    is_needed = "matplotlib" in os.environ.get("EXECD_CONFORMANCE_PACKAGES", "")
    if seen == "ModuleNotFoundError":
        assert not is_needed
        return
    shown, magic = seen
    assert re.search("<Figure size .*>", shown), shown
    assert magic == "\x89PNG"


@pytest.mark.any_kernel  # the daemon is started here
@both_kinds
def test_token_of_the_endpoint_opens_commands_files_and_code(
    interpreter: Path, guarded: str, kind: str
) -> None:
    seen = drive(interpreter, guarded, "refused", kind, TOKEN)
    assert set(seen.values()) == {None}


@pytest.mark.any_kernel  # the daemon is started here
@both_kinds
@pytest.mark.parametrize("token", [None, "wrong"])
def test_wrong_or_missing_token_is_refused_everywhere(
    interpreter: Path, guarded: str, kind: str, token: str | None
) -> None:
    seen = drive(interpreter, guarded, "refused", kind, token)
    assert set(seen) == {"command", "file", "info", "code", "context", "metrics"}
    for error in seen.values():
        assert error[:2] == [API_ERROR, 401]


@pytest.mark.parametrize("target", ["opensandbox", "guarded"])
def test_snippet_of_the_docs_runs(
    interpreter: Path, target: str, request: pytest.FixtureRequest
) -> None:
    page = (REPOSITORY / "wings" / "opensandbox" / "README.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = snippet.replace("localhost:44772", request.getfixturevalue(target))
    shown = output_of([interpreter, "-c", program.replace('"TOKEN"', f'"{TOKEN}"')])
    assert shown == "by OpenSandbox's SDK\n20\n"
