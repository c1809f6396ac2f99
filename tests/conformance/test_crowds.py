"""Many commands: at once, and one after the other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .conftest import python
from .target import CROWD, SLACK_SECONDS, execute_bytes, wait_until

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target


def test_hung_commands_hold_up_neither_probes_nor_new_commands(
    run: Run, client: httpx.Client, target: Target, marker: str
) -> None:
    with ExitStack() as callers:
        for _ in range(CROWD):
            connection = callers.enter_context(target.connect())
            connection.sendall(execute_bytes(f"exec sleep {marker}"))
        wait_until(lambda: run.count_alive(marker) == CROWD, 30, f"{CROWD} commands hang")
        for _ in range(20):
            started = time.monotonic()
            assert client.get("/").status_code == 200
            assert time.monotonic() - started < 0.5 + SLACK_SECONDS
            ran = run("echo hi")
            assert ran.stdout == "hi\n"
            assert ran.elapsed_seconds < 1 + SLACK_SECONDS
    wait_until(lambda: run.count_alive(marker) == 0, 15, "all of them are gone with their callers")


def test_commands_run_side_by_side(target: Target) -> None:
    answers = target.request_at_once([execute_bytes(f"sleep 1; echo {n}") for n in range(20)])
    assert [answer.json()["stdout"] for answer in answers] == [f"{n}\n" for n in range(20)]
    assert max(answer.elapsed_seconds for answer in answers) < 5 + SLACK_SECONDS


def test_outputs_of_commands_at_once_are_not_mixed(run: Run) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = pool.map(lambda n: (n, run(f"seq {n} {n + 2000}; echo {n} >&2; exit {n % 256}")), range(200))
        for n, ran in replies:
            assert ran.stdout == "".join(f"{m}\n" for m in range(n, n + 2001))
            assert (ran.stderr, ran.exit_code) == (f"{n}\n", n % 256)


LOOK = """
import os
children, zombies = 0, 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/stat") as f:
            state, parent = f.read().rpartition(")")[2].split()[:2]
    except OSError:
        continue  # gone meanwhile
    if int(parent) == os.getppid():
        children, zombies = children + 1, zombies + (state == "Z")
print(children, zombies, len(os.listdir(".")), sum("execd" in name for name in os.listdir("/tmp")))
"""
"""What there is below the process that starts commands, to which orphans fall: children and zombies; and files."""


def seen(run: Run) -> list[int]:
    # exec: the parent is then that process, and not a shell.
    return [int(n) for n in run.out("exec " + python(LOOK)).split()]


def test_thousand_commands_leave_nothing_behind(run: Run, target: Target) -> None:
    before = seen(run)
    descriptors = target.descriptor_count() if target.pid else None
    memory_bytes = target.resident_bytes() if target.pid else 0
    for number in range(1000):
        assert run(f"exit {number % 2}").exit_code == number % 2
    wait_until(lambda: seen(run) == before, 5, f"children, zombies and files are as before: {before}")
    if descriptors is not None:
        wait_until(lambda: target.descriptor_count() <= descriptors, 5, "no more descriptors than before")
        assert target.resident_bytes() - memory_bytes < 16 << 20


def test_orphans_of_a_command_are_reaped(run: Run) -> None:
    before = seen(run)
    ran = run.python("import os\nfor _ in range(50):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)")
    assert ran.exit_code == 0
    wait_until(lambda: seen(run) == before, 5, "no zombie is left")
