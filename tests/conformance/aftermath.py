"""The state that a daemon must have after its last test: the state before the first test.

A daemon that the suite started is judged by the teardown of the fixture ``target``: every process
of pytest-xdist has daemons of its own, so only the teardown knows that the last test is over. A
daemon that runs elsewhere outlives the suite, and test_aftermath.py judges it as the last tests.

Two views on processes. A daemon on this machine is seen from outside, with its descriptors. A
daemon elsewhere shows its processes to a command, and its descriptors to nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil

from .target import READ_SECONDS, START_SECONDS, TERMINATED, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .target import Target

LEFT_SECONDS = 40.0
"""Time for the last processes and descriptors of the tests to go."""

AT_REST = Counter({"warden": 1, "zygote or worker": 2})
"""The processes below a daemon that has nothing to do: one warden, one zygote, and one worker in
the pool, the default of --session-pool. A worker is a fork of the zygote, with the same name."""

WARDEN, INTERPRETER = "xd0", "xd1"
"""The names of the warden, and of the zygote with its workers."""

LOOK = """
import json, os
found = []
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split(chr(0))[:-1]
    except OSError:
        continue  # gone meanwhile
    found.append((pid, int(parent), state == "Z", words))
print(json.dumps({"own": os.getpid(), "warden": os.getppid(), "found": found}))
"""
"""The processes that a command sees. The parent of a command is the warden."""


def baseline(target: Target) -> Counter[str]:
    """Wait until a new daemon on this machine rests; return the descriptors."""
    with _client(target) as client:
        wait_until(
            lambda: client.get("/readyz").status_code == 200, START_SECONDS, "commands can run"
        )
        # Parts that are made at the first use belong to the baseline.
        client.post("/execute", json={"command": "true"}).raise_for_status()
        client.post("/v1/code", json={"code": "1"}).raise_for_status()
        client.post("/v1/checkpoints", json={"id": "baseline"}).raise_for_status()
        client.delete("/v1/checkpoints/baseline").raise_for_status()
    no_process_is_left(target, START_SECONDS)
    no_connection_is_left(target)
    return descriptors(target)


@contextlib.contextmanager
def judged(target: Target, patience_seconds: float = LEFT_SECONDS) -> Iterator[Target]:
    """Judge a daemon on this machine around its tests, and end the daemon."""
    try:
        before = baseline(target)
        yield target
        end_sessions(target)
        no_process_is_left(target, patience_seconds)
        no_descriptor_is_left(target, before, patience_seconds)
    finally:
        exit_code = target.stop()
    assert exit_code == TERMINATED, f"exit code {exit_code} at SIGTERM\n{target.log_text()}"
    log_holds_no_error(target)


def log_holds_no_error(target: Target) -> None:
    """An unknown error is logged whole, and only an id is shown to the peer: a test of the answer
    alone may miss the error."""
    errors = target.log_errors()
    assert not errors, "\n".join(["the log holds an error", *errors])


def end_sessions(target: Target) -> None:
    with _client(target) as client:
        while items := client.get("/v1/sessions").json()["items"]:
            for session in items:
                client.delete(f"/v1/sessions/{session['id']}").raise_for_status()


def _client(target: Target) -> httpx.Client:
    return httpx.Client(base_url=target.url, timeout=READ_SECONDS, trust_env=False)


# --- processes


def no_process_is_left(target: Target, patience_seconds: float = LEFT_SECONDS) -> None:
    """The daemon adopts orphans, so every process of user code is below the daemon.

    :raises AssertionError: the processes of ``AT_REST`` are not all there, or others are, or
        zombies.
    """
    try:
        _wait_for_rest(lambda: processes_below(target), patience_seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_facts_about_sessions(target)}") from None


def _facts_about_sessions(target: Target) -> str:
    """What tells a missing worker from a missing zygote."""
    facts = [
        str(process.as_dict(["pid", "ppid", "create_time", "status"]))
        for process in psutil.Process(target.pid).children(recursive=True)
    ]
    with contextlib.suppress(httpx.HTTPError), _client(target) as client:
        facts.append(client.get("/v1/capabilities").text)
    return "\n".join(facts)


def no_process_is_left_elsewhere(target: Target, patience_seconds: float = LEFT_SECONDS) -> None:
    """As `no_process_is_left`, by the eyes of a command."""
    _wait_for_rest(lambda: processes_seen_by_a_command(target), patience_seconds)


def processes_below(target: Target) -> Counter[str]:
    """The processes below a daemon on this machine, by kind."""
    found: Counter[str] = Counter()
    daemon = psutil.Process(target.pid)
    wardens = set()
    for child in daemon.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie, which has no command line
            if child.name() == WARDEN:
                wardens.add(child.pid)
    for process in daemon.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            words = None if is_zombie else process.cmdline()
            is_below_warden = process.ppid() in wardens
            kind = _kind(process.pid, words, is_below_warden=is_below_warden)
            found["warden" if process.pid in wardens else kind] += 1
    return found


def processes_seen_by_a_command(target: Target) -> Counter[str]:
    """The warden and the processes below the warden, by kind, without the looking command."""
    with _client(target) as client:
        argv = ["python3", "-c", LOOK]
        reply = client.post("/v1/executions", json={"argv": argv}).raise_for_status().json()
        client.delete(f"/v1/executions/{reply['id']}").raise_for_status()
    assert reply["exit_code"] == 0, reply
    seen = json.loads(reply["stdout"])
    parents = {pid: parent for pid, parent, _, _ in seen["found"]}
    found = Counter({"warden": 1})
    for pid, parent, is_zombie, words in seen["found"]:
        if pid != seen["own"] and seen["warden"] in _ancestors(pid, parents):
            is_below_warden = parent == seen["warden"]
            found[_kind(pid, None if is_zombie else words, is_below_warden=is_below_warden)] += 1
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _kind(pid: int, words: list[str] | None, *, is_below_warden: bool) -> str:
    """``words``: the command line; None: a zombie has none."""
    if words is None:
        return f"zombie {pid}"
    if is_below_warden and words[:1] == [INTERPRETER]:
        return "zygote or worker"
    return f"{pid} {' '.join(words)[:200]}"


def _wait_for_rest(look: Callable[[], Counter[str]], patience_seconds: float) -> None:
    found: Counter[str] = Counter()

    def rests() -> bool:
        nonlocal found
        found = look()
        return found == AT_REST

    try:
        wait_until(rests, patience_seconds, "no process of user code is left, and no zombie")
    except AssertionError as error:
        raise AssertionError(f"{error}: {dict(found)}") from None


# --- descriptors


def no_connection_is_left(target: Target) -> None:
    """Of the suite's own: the daemon may close an ended connection later than the suite."""
    daemon = psutil.Process(target.pid)
    wait_until(
        lambda: {found.status for found in daemon.net_connections("tcp")} == {psutil.CONN_LISTEN},
        LEFT_SECONDS,
        "the connections to the daemon are closed",
    )


def no_descriptor_is_left(target: Target, before: Counter[str], patience_seconds: float) -> None:
    more: Counter[str] = Counter()

    def is_as_before() -> bool:
        nonlocal more
        more = descriptors(target) - before
        return not more

    try:
        wait_until(is_as_before, patience_seconds, "no more descriptors than before the tests")
    except AssertionError as error:
        raise AssertionError(f"{error}: {dict(more)}") from None


def descriptors(target: Target) -> Counter[str]:
    """The descriptors of a daemon on this machine and of its warden: how many of each kind. A kind
    is a path, or the kernel's word for a thing without a path. A warden may show its descriptors to
    root only."""
    daemon = psutil.Process(target.pid)
    found = Counter(f"daemon: {kind}" for kind in _kinds(daemon.pid))
    for warden in daemon.children():
        with contextlib.suppress(PermissionError):
            found.update(f"warden: {kind}" for kind in _kinds(warden.pid))
    return found


def _kinds(pid: int) -> list[str]:
    found = []
    folder = Path(f"/proc/{pid}/fd")
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(_without_numbers(os.readlink(folder / name)))
    return found


def _without_numbers(link: str) -> str:
    """ "socket:[123]" and "/proc/123/stat" without the numbers, which differ from run to run."""
    return re.sub(r"\d+", "N", link)
