"""The interpreter of sessions: every Python that can serve serves, and any other is refused at
once, with the reason."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from .pythons import (
    PYTHON,
    SUPPORTED,
    TOO_OLD,
    add_ipython,
    find_pythons,
    make_environment,
    write_program,
)
from .target import Answer, Target, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    OwnDaemon = Callable[..., Target]

pytestmark = pytest.mark.any_kernel

JSON = {"Content-Type": "application/json"}
# Longer than the suite waits for any answer: an answer that waited for the queue would never come.
PATIENT = "--queue-wait-seconds=600"
HIDDEN = ("execd", "aiohttp", "psutil", "msgspec", "uvloop", "numpy")

PYTHONS = find_pythons()
SERVING = [version for version in PYTHONS if version != TOO_OLD]

FACTS = f"""
import importlib, json, sys, IPython
from dataclasses import dataclass

def is_visible(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True

@dataclass
class Point:
    x: int

result = await __import__("asyncio").sleep(0, Point(1))
print(json.dumps({{
    "version": "%d.%d" % sys.version_info[:2],
    "ipython": IPython.__version__,
    "where": IPython.__file__,
    "seen": [name for name in {HIDDEN!r} if is_visible(name)],
}}))
result
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for interpreters, which the test's own daemon sees."""
    made = tmp_path / "daemon-0" / "base" / "interpreter"
    made.mkdir(parents=True)
    made.chmod(0o777)  # the daemon may be another user
    return made


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, dict[str, str]]]:
    """What each Python did, for docs/testing.md. Printed with EXECD_WRITE_PYTHONS=1 and -s."""
    rows: dict[str, dict[str, str]] = {}
    yield rows
    if os.environ.get("EXECD_WRITE_PYTHONS"):
        print("\n| Python | without an IPython | with an IPython of its own |\n|---|---|---|")
        for version in (TOO_OLD, *SUPPORTED):
            row = rows.get(version, {})
            missing = "not on this machine" if version not in PYTHONS else "not run"
            print(f"| {version} | {row.get('lent', missing)} | {row.get('own', missing)} |")


def post(daemon: Target, path: str, **body: Any) -> Answer:
    return daemon.request("POST", path, json.dumps(body).encode(), JSON)


def capabilities(daemon: Target) -> dict[str, Any]:
    found: dict[str, Any] = daemon.request("GET", "/v1/capabilities").json()["sessions"]
    return found


@pytest.mark.parametrize("whose", ["lent", "own"])
@pytest.mark.parametrize("version", SERVING)
def test_sessions_run_on_every_python_from_3_9_on_with_and_without_its_own_ipython(
    version: str,
    whose: str,
    own_daemon: OwnDaemon,
    place: Path,
    table: dict[str, dict[str, str]],
) -> None:
    packages = make_environment(PYTHONS[version].path, place)
    if whose == "own":
        add_ipython(packages, "py39" if version in ("3.9", "3.10") else "py311")
    daemon = own_daemon(f"--python={place}/bin/python")
    answer = post(daemon, "/v1/code", code=FACTS)
    assert answer.http_status == 200, answer.content
    cell = answer.json()
    assert cell["exit_reason"] == "exited", cell
    assert cell["status"] == "success", cell
    assert cell["result"]["data"]["text/plain"] == "Point(x=1)"
    facts = json.loads(cell["stdout"])
    assert facts["version"] == version
    assert facts["where"].startswith(str(packages)) is (whose == "own")
    assert facts["seen"] == []
    failed = post(daemon, "/v1/code", code="1 / 0").json()
    assert failed["error"]["name"] == "ZeroDivisionError"
    told = capabilities(daemon)
    assert (told["ready"], told["refused"], told["ipython"]) == (True, None, facts["ipython"])
    table.setdefault(version, {})[whose] = f"serves with IPython {facts['ipython']}"


def test_session_of_a_python_without_ipython_sees_nothing_of_execd(
    own_daemon: OwnDaemon, place: Path
) -> None:
    make_environment(PYTHON, place)
    daemon = own_daemon(f"--python={place}/bin/python")
    for name in HIDDEN:
        error = post(daemon, "/v1/code", code=f"import {name}").json()["error"]
        assert error is not None, name
        assert (error["name"], error["value"]) == (
            "ModuleNotFoundError",
            f"No module named {name!r}",
        )


TELLS_AN_OLD_VERSION = f"""#!{PYTHON}
import sys
sys.version_info = (3, 8, 18, "final", 0)
program = sys.argv[2]
sys.argv = ["-c", *sys.argv[3:]]
exec(program)
"""
"""Stands in for the Python 3.8 that this machine may not have."""


@pytest.mark.parametrize("old", ["made", *(["real"] if TOO_OLD in PYTHONS else [])])
def test_python_that_is_too_old_is_refused_with_its_version(
    old: str, own_daemon: OwnDaemon, place: Path, table: dict[str, dict[str, str]]
) -> None:
    python = (
        PYTHONS[TOO_OLD].path
        if old == "real"
        else str(write_program(place / "python", TELLS_AN_OLD_VERSION))
    )
    daemon = own_daemon(f"--python={python}", PATIENT)
    answer = post(daemon, "/v1/sessions")
    assert answer.http_status == 501
    message = answer.json()["message"]
    assert "Python 3.8.18" in message or old == "real"
    assert "is too old: sessions need Python 3.9 or newer" in message
    if old == "real":
        table.setdefault(TOO_OLD, {}).update(
            {"lent": "refused with 501: too old", "own": "not made: refused before"}
        )


def with_modules(place: Path, **modules: str) -> str:
    """An interpreter that finds these modules first."""
    folder = place / "modules"
    for name, text in modules.items():
        write_program(folder / f"{name}.py", text)
    return f"""#!{PYTHON}
import sys
sys.path.insert(0, {str(folder)!r})
program = sys.argv[2]
sys.argv = ["-c", *sys.argv[3:]]
exec(program)
"""


def without_lent_ipython(packages: Path) -> str:
    """An interpreter with the modules of ``packages`` alone, as of a plain install of execd."""
    return f"""#!/bin/sh
exec {PYTHON} -I -S -c 'import sys
sys.path.append("{packages}")
program = sys.argv[1]
sys.argv = ["-c", sys.argv[2], sys.argv[3].replace(sys.argv[4], "/nonexistent")]
exec(program)' "$2" "$3" "$4" "$(echo "$4" | cut -d'"' -f2)"
"""


# cause: how the interpreter is made, and words of the reason.
UNFIT: dict[str, tuple[str, Callable[[Path], str], str]] = {
    "text": ("not_a_python", lambda _: "no program\n", "Exec format error"),
    "no interpreter of the script": (
        "not_found",
        lambda _: "#!/nonexistent/python\n",
        "its interpreter '/nonexistent/python'",
    ),
    "other program": (
        "not_a_python",
        lambda _: "#!/bin/sh\necho no python today >&2\nexit 3\n",
        "ended with exit code 3 and does not run Python: no python today",
    ),
    "program that succeeds": ("not_a_python", lambda _: "#!/bin/sh\n", "exit code 0"),
    "crash": ("crashed", lambda _: "#!/bin/sh\nkill -SEGV $$\n", "signal 11"),
    "crash in IPython": (
        "crashed",
        lambda place: with_modules(place, IPython="import os\nos.kill(os.getpid(), 11)"),
        "signal 11 (Segmentation fault) while it loaded IPython",
    ),
    "exit in IPython": (
        "broken_ipython",
        lambda place: with_modules(place, IPython="raise SystemExit('no')"),
        "has an IPython that cannot be imported (SystemExit: no)",
    ),
    "broken IPython": (
        "broken_ipython",
        lambda place: with_modules(place, IPython="import no_such_module"),
        "No module named 'no_such_module'",
    ),
    "IPython of another kind": (
        "crashed",
        lambda place: with_modules(place, IPython="__version__ = '9'"),
        "IPython",
    ),
    "flood": ("garbage", lambda _: "#!/bin/sh\nexec yes\n", "prints: "),
    "forged frames": (
        "garbage",
        lambda _: "#!/bin/sh\nprintf '\\377\\377\\377\\377' >&3\nexec sleep 1000\n",
        "does not run the program of sessions",
    ),
    "no IPython": (
        "no_ipython",
        lambda place: without_lent_ipython(place / "packages"),
        "-m pip install ipython",
    ),
}
ROUTES = {
    "session": ("/v1/sessions", {}),
    "code": ("/v1/code", {"code": "1"}),
    "cell": ("/v1/sessions/new/execute?create=true", {"code": "1"}),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_interpreter_that_cannot_serve_is_refused_at_once_with_the_reason(
    kind: str, own_daemon: OwnDaemon, place: Path
) -> None:
    cause, make, words = UNFIT[kind]
    python = write_program(place / "python", make(place))
    daemon = own_daemon(f"--python={python}", PATIENT)
    for path, body in ROUTES.values():
        answer = post(daemon, path, **body)
        assert answer.http_status == 501, answer.content
        error = answer.json()
        assert error["code"] == "NOT_SUPPORTED"
        assert words in error["message"]
        assert error["details"]["cause"] == cause
    assert daemon.request("GET", "/v1/sessions").json()["items"] == []
    told = capabilities(daemon)
    assert (told["ready"], told["refused"]["cause"]) == (False, cause)
    assert words in told["refused"]["message"]


@pytest.mark.parametrize("cause", ["not_found", "not_executable"])
def test_interpreter_that_is_gone_is_refused_and_serves_when_it_is_back(
    cause: str, own_daemon: OwnDaemon, place: Path
) -> None:
    python = place / "python"
    text = f'#!/bin/sh\nexec {PYTHON} "$@"\n'
    write_program(python, text)
    daemon = own_daemon(f"--python={python}", PATIENT, "--sessions=lazy")
    if cause == "not_found":
        python.unlink()
    else:
        python.chmod(0o644)
    answer = post(daemon, "/v1/sessions")
    assert (answer.http_status, answer.json()["details"]["cause"]) == (501, cause)
    write_program(python, text)
    assert post(daemon, "/v1/code", code="6 * 7").json()["result"]["data"] == {"text/plain": "42"}
    assert capabilities(daemon)["refused"] is None


def test_refused_interpreter_leaves_commands_and_readiness_alone(
    own_daemon: OwnDaemon, place: Path
) -> None:
    python = write_program(place / "python", "#!/bin/sh\nexit 1\n")
    daemon = own_daemon(f"--python={python}", PATIENT)
    assert post(daemon, "/v1/sessions").http_status == 501
    ready = daemon.request("GET", "/readyz")
    assert (ready.http_status, ready.json()) == (
        200,
        {"status": "ok", "sessions_refused": "not_a_python"},
    )
    assert daemon.request("GET", "/v1/health").http_status == 200
    assert post(daemon, "/execute", command="echo on").json()["stdout"] == "on\n"


def test_refused_interpreter_is_not_started_again_until_it_changes(
    own_daemon: OwnDaemon, place: Path
) -> None:
    starts = place / "starts"
    python = write_program(place / "python", f"#!/bin/sh\necho >>{starts}\nexit 1\n")
    daemon = own_daemon(f"--python={python}", PATIENT)
    for _ in range(5):
        assert post(daemon, "/v1/sessions").http_status == 501
    assert starts.read_text() == "\n"
    write_program(python, f"#!/bin/sh\necho >>{starts}\nexit 2\n")
    answer = post(daemon, "/v1/sessions")
    assert (answer.http_status, starts.read_text()) == (501, "\n\n")
    assert "exit code 2" in answer.json()["message"], "the reason of the new start"


def test_interpreter_that_changes_during_a_failed_start_is_started_again_without_a_request(
    own_daemon: OwnDaemon, place: Path
) -> None:
    python = place / "python"
    later = write_program(place / "later", f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    write_program(python, f"#!/bin/sh\nmv {later} {python}\nexit 1\n")
    daemon = own_daemon(f"--python={python}", PATIENT)
    wait_until(lambda: capabilities(daemon)["ready"], 60, "the zygote is ready")
    assert capabilities(daemon)["refused"] is None


def test_installed_ipython_ends_the_refusal_of_a_python_without_one(
    own_daemon: OwnDaemon, place: Path
) -> None:
    packages = place / "packages"
    packages.mkdir()
    python = write_program(place / "python", without_lent_ipython(packages))
    daemon = own_daemon(f"--python={python}", PATIENT)
    assert post(daemon, "/v1/code", code="1").json()["details"]["cause"] == "no_ipython"
    add_ipython(packages, "py311")
    answer = post(daemon, "/v1/code", code="import IPython; IPython.__file__")
    assert answer.http_status == 200, answer.content
    assert str(packages) in answer.json()["result"]["data"]["text/plain"]


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\nkill -KILL $$\n",
        "#!/bin/sh\necho MemoryError >&2\nexit 1\n",
        "#!/bin/sh\necho 'libc.so.6: failed to map segment from shared object' >&2\nexit 127\n",
        f"#!{PYTHON}\nraise SystemExit('MemoryError')\n",
    ],
    ids=["killed", "no memory", "no memory to load", "Python without memory"],
)
def test_start_that_fails_for_trouble_of_the_machine_is_tried_again_and_stays_503(
    text: str, own_daemon: OwnDaemon, place: Path
) -> None:
    starts = place / "starts"
    head, _, rest = text.partition("\n")
    count = f"open({str(starts)!r}, 'a').write('x')" if PYTHON in head else f"echo >>{starts}"
    python = write_program(place / "python", f"{head}\n{count}\n{rest}")
    daemon = own_daemon(f"--python={python}", "--queue-wait-seconds=1")
    answer = post(daemon, "/v1/sessions")
    assert (answer.http_status, answer.json()["code"]) == (503, "UNAVAILABLE")
    wait_until(
        lambda: starts.exists() and starts.stat().st_size > 1, 20, "the interpreter starts again"
    )
    assert capabilities(daemon)["refused"] is None
    write_program(python, f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    wait_until(lambda: capabilities(daemon)["ready"], 60, "the zygote is ready")
    assert post(daemon, "/v1/code", code="1").http_status == 200
