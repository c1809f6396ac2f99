"""A command makes no system call that docs/system-calls.md does not list with a reason."""

from __future__ import annotations

import re
import shutil
import signal
import statistics
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import psutil
import pytest

from execd.kernel import process_name
from tests.conformance.target import start as start_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.target import Target

pytestmark = [
    pytest.mark.root,  # only root may trace the warden
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]

PAGE = Path(__file__).parent.parent / "docs" / "system-calls.md"
N_COMMANDS = 20
# Messages as strace shows a call: the header, with two descriptors or none, and the kind (see
# ``packed_messages``).
SPAWN, EXITED = r'"\\0\\2\\(00)?1', r'"\\0\\0\\(00)?2'


class Call(NamedTuple):
    pid: int
    name: str
    text: str


def table(title: str) -> dict[str, int]:
    """Return the largest numbers of calls in a section of the page."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(?: \d+ \|)? (\d+) \| .+ \|$", section, re.MULTILINE)
    assert rows, title
    return {name: int(number) for name, number in rows}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Target]:
    target = start_daemon(tmp_path, "--namespaces=require", "--session-pool=0")
    yield target
    target.stop()


def run_commands(daemon: Target, count: int) -> None:
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as client:
        for _ in range(count):
            assert client.post("/execute", json={"command": "true"}).json()["exit_code"] == 0


def calls(daemon: Target, pid: int, trace: Path, *flags: str) -> list[Call]:
    """Run commands and return the system calls of the process ``pid``, in the order of their
    begins."""
    run_commands(daemon, 3)
    with subprocess.Popen(
        ["strace", *flags, "--string-limit=64", f"--output={trace}", f"--attach={pid}"],
        stderr=subprocess.PIPE,
        text=True,
    ) as strace:
        assert strace.stderr is not None
        assert "attached" in strace.stderr.readline()
        run_commands(daemon, N_COMMANDS)
        strace.send_signal(signal.SIGINT)
        strace.stderr.read()
    return [
        Call(int(begun[1] or pid), begun[2], line)
        for line in trace.read_text().splitlines()
        if (begun := re.match(r"(?:(\d+) +)?(\w+)\(", line))
    ]


def spans(found: list[Call], first: str, last: str) -> list[Counter[str]]:
    """Return the numbers of calls of each span, from a call whose text has a match of ``first`` to
    the next call whose text has a match of ``last``."""
    counted: list[Counter[str]] = []
    is_within = False
    for call in found:
        if re.search(first, call.text):
            counted.append(Counter())
            is_within = True
        if is_within:
            counted[-1][call.name] += 1
        if re.search(last, call.text):
            is_within = False
    assert len(counted) == N_COMMANDS
    return counted


def medians(counted: list[Counter[str]]) -> dict[str, float]:
    """Return the median number of each call. Work that is due at times falls into few spans."""
    names = {name for each in counted for name in each}
    found = {name: statistics.median(each[name] for each in counted) for name in names}
    return {name: number for name, number in found.items() if number}


def exceeding(found: dict[str, float], listed: dict[str, int]) -> dict[str, float]:
    return {name: number for name, number in found.items() if number > listed.get(name, 0)}


def find_warden(daemon: Target) -> int:
    assert daemon.pid is not None
    [warden] = [
        child.pid
        for child in psutil.Process(daemon.pid).children()
        if child.name() == process_name.WARDEN
    ]
    return warden


def test_a_child_makes_exactly_the_listed_calls_before_exec(daemon: Target, tmp_path: Path) -> None:
    warden = find_warden(daemon)
    found = calls(daemon, warden, tmp_path / "trace", "--follow-forks")
    programs = {call.pid for call in found if call.name == "execve"}
    assert len(programs) == N_COMMANDS
    for pid in programs:
        names = [call.name for call in found if call.pid == pid]
        assert Counter(names[: names.index("execve") + 1]) == table("The child")


def test_the_warden_makes_no_call_for_a_command_that_is_not_listed(
    daemon: Target, tmp_path: Path
) -> None:
    found = calls(daemon, find_warden(daemon), tmp_path / "trace")
    counted = medians(spans(found, SPAWN, EXITED))
    assert exceeding(counted, table("The warden")) == {}


def test_the_warden_closes_a_programs_pipes_before_it_tells_the_end(
    daemon: Target, tmp_path: Path
) -> None:
    """Otherwise the daemon finds the pipes open, and waits for their ends."""
    found = calls(daemon, find_warden(daemon), tmp_path / "trace")
    n_told, open_pipes = 0, set[str]()
    for call in found:
        if re.search(SPAWN, call.text):
            [passed] = re.findall(r"SCM_RIGHTS, cmsg_data=\[(\d+), (\d+)\]", call.text)
            open_pipes |= set(passed)
        elif call.name == "close":
            open_pipes -= set(re.findall(r"close\((\d+)\)", call.text))
        elif re.search(EXITED, call.text):
            n_told += 1
            assert not open_pipes
    assert n_told == N_COMMANDS


def test_the_daemon_makes_no_call_for_a_command_that_is_not_listed(
    daemon: Target, tmp_path: Path
) -> None:
    assert daemon.pid is not None
    found = calls(daemon, daemon.pid, tmp_path / "trace")
    counted = medians(spans(found, '"POST /execute', '"HTTP/1.1 200'))
    assert exceeding(counted, table("The daemon")) == {}
