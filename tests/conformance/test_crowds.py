"""Many commands: at once, and in sequence."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from ..patience import patience
from .attack import probing
from .conftest import python
from .target import CROWD, execute_bytes, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

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
        probe_seconds, command_seconds = [], []
        for _ in range(20):
            started = time.monotonic()
            assert client.get("/").status_code == 200
            probe_seconds.append(time.monotonic() - started)
            ran = run("echo hi")
            assert ran.stdout == "hi\n"
            command_seconds.append(ran.elapsed_seconds)
        assert max(probe_seconds) < patience(1)
        assert max(command_seconds) < patience(2)
    wait_until(lambda: run.count_alive(marker) == 0, 15, "all of them are gone with their callers")


def test_commands_run_side_by_side(target: Target) -> None:
    answers = target.request_at_once([execute_bytes(f"sleep 1; echo {n}") for n in range(20)])
    assert [answer.json()["stdout"] for answer in answers] == [f"{n}\n" for n in range(20)]
    summed_duration_seconds = sum(answer.json()["duration_seconds"] for answer in answers)
    assert summed_duration_seconds > 2 * max(answer.elapsed_seconds for answer in answers)


def test_outputs_of_commands_at_once_are_not_mixed(run: Run) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = pool.map(
            lambda n: (n, run(f"seq {n} {n + 2000}; echo {n} >&2; exit {n % 256}")), range(200)
        )
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
print(children, zombies, len(os.listdir(".")),
      sum("execd" in name and "execd-model" not in name for name in os.listdir("/tmp")))
"""
"""Counts below the process that starts commands and adopts orphans: children, zombies, and files.
The model's runs beside the suite make and remove folders in /tmp."""


def seen(run: Run) -> list[int]:
    # exec: the parent is then the starting process, and not a shell.
    return [int(n) for n in run.out("exec " + python(LOOK)).split()]


@pytest.mark.both_shapes
def test_thousand_commands_leave_nothing_behind(run: Run, target: Target) -> None:
    before = seen(run)
    descriptors = target.descriptor_count() if target.pid else None
    memory_bytes = target.resident_bytes() if target.pid else 0
    for number in range(1000):
        assert run(f"exit {number % 2}").exit_code == number % 2
    wait_until(
        lambda: seen(run) == before, 20, f"children, zombies and files are as before: {before}"
    )
    if descriptors is not None:
        wait_until(
            lambda: target.descriptor_count() <= descriptors, 20, "no more descriptors than before"
        )
        assert target.resident_bytes() - memory_bytes < 16 << 20


@pytest.mark.both_shapes
def test_orphans_of_a_command_are_reaped(run: Run) -> None:
    before = seen(run)
    ran = run.python(
        "import os\n"
        "for _ in range(50):\n"
        "    if os.fork() == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)"
    )
    assert ran.exit_code == 0
    wait_until(lambda: seen(run) == before, 5, "no zombie is left")


MIX = [
    "true",
    "ls",
    "seq 200 | sort -n | tail -1",
    "python3 -c 'import argparse, json, re, tempfile; print(42)'",
]
"""Commands as agents send them: nothing, a look, a pipeline, a script."""


def test_crowd_of_commands_leaves_probes_answered_and_every_answer_right(target: Target) -> None:
    outputs = {MIX[0]: "", MIX[2]: "200\n", MIX[3]: "42\n"}
    sent = MIX * 24
    with probing(target):
        answers = target.request_at_once([execute_bytes(command) for command in sent])
    for command, answer in zip(sent, answers, strict=True):
        assert answer.json()["exit_code"] == 0, answer.content
        assert answer.json()["stdout"] == outputs.get(command, answer.json()["stdout"])


def test_command_that_computes_in_its_first_moments_keeps_others_waiting_for_a_moment_only(
    target: Target, client: httpx.Client
) -> None:
    facts = target.capabilities(afresh=True)["commands"]
    body = json.dumps({"command": "while :; do :; done", "detach": True}).encode()
    request = request_bytes("POST", "/v1/executions", body, {"Content-Type": "application/json"})
    burning = [
        answer.json()["id"]
        for answer in target.request_at_once([request] * 6 * facts["max_starting"])
    ]
    try:
        queued = target.capabilities(afresh=True)["commands"]["queued"]
        assert queued > 0, "the last ones came before the first moments of the first ones were over"
        wait_until(
            lambda: states(client, burning) == {"RUNNING"},
            6 * facts["starting_seconds"] + 5,
            "all of them run",
        )
    finally:
        for execution_id in burning:
            client.delete(f"/v1/executions/{execution_id}")


@pytest.mark.timed
def test_sleeping_commands_start_at_once_however_few_may_start(
    target: Target,
    client: httpx.Client,
    run: Run,
    marker: str,
    timed: Callable[[float, float], None],
) -> None:
    facts = target.capabilities(afresh=True)["commands"]
    asleep = [
        client.post("/v1/executions", json={"command": f"sleep {marker}", "detach": True}).json()[
            "id"
        ]
        for _ in range(CROWD)
    ]
    try:
        # If only their age freed starting places, the programs would take this long.
        limit_seconds = CROWD / facts["max_starting"] * facts["starting_seconds"]
        began = time.monotonic()
        wait_until(lambda: states(client, asleep) == {"RUNNING"}, limit_seconds, "all of them run")
        timed(time.monotonic() - began, limit_seconds / 3)
        assert run("echo hi").stdout == "hi\n"
    finally:
        for execution_id in asleep:
            client.delete(f"/v1/executions/{execution_id}")


def states(client: httpx.Client, execution_ids: list[str]) -> set[str]:
    found = client.get("/v1/executions", params={"limit": 1000}).json()["items"]
    return {execution["state"] for execution in found if execution["id"] in execution_ids}
