"""A daemon that runsc freezes, and restores twice from the same image.

The image is made once. Each restored daemon is asked all questions in one visit, because a visit
takes half a minute; each test looks at one kind of answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint.sandbox import Sandbox, ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_SECONDS = 12.0
FROZEN_SECONDS = LIMIT_SECONDS + 3.0
"""Longer than the limit: a daemon that counts the freeze ends the command as soon as the sandbox is
restored, and so too early by the limit."""
END_SECONDS = 60.0
CALLERS = """
import socket, threading

def call(name, request):
    with socket.create_connection(("127.0.0.1", 8888)) as caller:
        caller.sendall(request)
        if name == "kept":
            caller.recv(65536)
            print("kept: answered", flush=True)
        try:
            rest = caller.recv(65536)
        except OSError as error:
            rest = b""
        print(f"{name}: {'a reply' if rest else 'closed'}", flush=True)

body = b'{"command": "exec sleep 1001"}'
run = (
    b"POST /v1/executions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n"
    b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body
)
keep = b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
threading.Thread(target=call, args=("kept", keep)).start()
threading.Thread(target=call, args=("run", run)).start()
"""
"""Two callers from before the checkpoint: one keeps its connection, one waits for a command."""


@dataclass
class Visit:
    """What a restored daemon answered."""

    root: dict[str, Any]
    instance: dict[str, Any]
    cell: dict[str, Any]
    command: dict[str, Any]
    download: str
    callers: list[str]
    abandoned: dict[str, Any]
    limited: dict[str, Any]
    frozen_seconds: float
    """At least."""
    report: dict[str, Any]


@dataclass
class Frozen:
    """A sandbox that has ended with a checkpoint, and what its daemon answered before."""

    original: Sandbox
    image: Path
    at: float
    """On the monotonic clock of this machine."""
    instance: dict[str, Any]
    instances_while_alive: list[dict[str, Any]]
    """After a pause, and after a checkpoint that left the sandbox running."""
    callers_while_alive: list[str]
    tells_restores: bool

    def visit(self, name: str) -> Visit:
        """Restore the sandbox, later than the limit allows a daemon that counts the freeze."""
        wait_until(lambda: time.monotonic() - self.at > FROZEN_SECONDS, 2 * FROZEN_SECONDS)
        frozen_seconds = time.monotonic() - self.at
        with ended(self.original.restored(self.image, name)) as restored:
            return visit(restored, frozen_seconds)


def instance_of(sandbox: Sandbox) -> dict[str, Any]:
    found = sandbox.ask("GET", "/v1/capabilities")["instance"]
    assert set(found) == {"id", "restores"}
    return dict(found)


def abandoned_command(sandbox: Sandbox) -> dict[str, Any]:
    """The command of the caller that waited."""
    found = sandbox.ask("GET", "/v1/executions?state=RUNNING")["items"]
    [abandoned] = [one for one in found if one.get("command") == "exec sleep 1001"]
    return dict(abandoned)


# Each fixture belongs to another test at first, because pytest dumps all stacks for a test of two
# minutes.


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    folder = tmp_path_factory.mktemp("checkpoint")
    with ended(Sandbox.make(folder, "--namespaces", "require")) as original:
        original.wait_ready()
        seeded = {"code": "import random; state = 42; random.seed(1)"}
        original.ask("POST", "/v1/sessions/s/execute?create=true", **seeded)
        assert original.ask("POST", "/execute", command="echo before > note")["exit_code"] == 0
        callers = {"argv": ["python3", "-c", CALLERS], "id": "callers", "detach": True}
        original.ask("POST", "/v1/executions", **callers)
        wait_until(lambda: original.output("callers") == ["kept: answered"], END_SECONDS)
        wait_until(lambda: has_abandoned(original), END_SECONDS)
        instance = instance_of(original)
        original.pause(3.0)
        instances_while_alive = [instance_of(original)]
        original.checkpoint(folder / "passing", goes_on=True)
        instances_while_alive.append(instance_of(original))
        callers_while_alive = original.output("callers")
        limited = {"id": "limited", "detach": True, "timeout_seconds": LIMIT_SECONDS}
        original.ask("POST", "/v1/executions", command="exec sleep 1002", **limited)
        tells_restores = original.tells_restores
        image = folder / "image"
        original.checkpoint(image, goes_on=False)
        frozen_at = time.monotonic()
    return Frozen(
        original=original,
        image=image,
        at=frozen_at,
        instance=instance,
        instances_while_alive=instances_while_alive,
        callers_while_alive=callers_while_alive,
        tells_restores=tells_restores,
    )


@pytest.fixture(scope="module")
def first(frozen: Frozen) -> Visit:
    return frozen.visit("first")


@pytest.fixture(scope="module")
def second(frozen: Frozen, first: Visit) -> Visit:
    """After the first."""
    return frozen.visit("second")


@pytest.fixture(scope="module")
def visits(first: Visit, second: Visit) -> list[Visit]:
    return [first, second]


def has_abandoned(sandbox: Sandbox) -> bool:
    found = sandbox.ask("GET", "/v1/executions?state=RUNNING")["items"]
    return any(one.get("command") == "exec sleep 1001" for one in found)


def visit(sandbox: Sandbox, frozen_seconds: float) -> Visit:
    sandbox.wait_ready()
    root = sandbox.ask("GET", "/")
    cell = sandbox.ask("POST", "/v1/sessions/s/execute", code="print(state, random.random())")
    instance = instance_of(sandbox)
    command = sandbox.ask("POST", "/execute", command="cat note; echo after >> note")
    report = sandbox.ask("POST", "/v1/restored")
    wait_until(lambda: len(sandbox.output("callers")) == 3, END_SECONDS)
    return Visit(
        root=root,
        instance=instance,
        cell=cell,
        command=command,
        download=sandbox.read("/download/note"),
        callers=sandbox.output("callers"),
        abandoned=abandoned_command(sandbox),
        limited=sandbox.ask("GET", f"/v1/executions/limited?wait_seconds={END_SECONDS / 2}"),
        frozen_seconds=frozen_seconds,
        report=report,
    )


def test_a_pause_and_a_checkpoint_that_leaves_the_sandbox_running_are_no_restore(
    frozen: Frozen,
) -> None:
    assert frozen.instances_while_alive == [frozen.instance] * 2
    assert frozen.callers_while_alive == ["kept: answered"]


def check_answers(found: Visit) -> None:
    assert found.root["status"] == "ok"
    assert found.cell["status"] == "success"
    assert found.cell["stdout"].startswith("42 ")
    assert (found.cell["generation"], found.cell["state_lost"]) == (1, False)


def test_a_restored_daemon_answers_and_its_sessions_have_their_variables(first: Visit) -> None:
    check_answers(first)


def test_a_checkpoint_can_be_restored_more_than_once(second: Visit) -> None:
    check_answers(second)


def test_a_restored_daemon_runs_commands_and_has_the_files_of_the_checkpoint(
    visits: list[Visit],
) -> None:
    for found in visits:
        assert (found.command["stdout"], found.command["exit_code"]) == ("before\n", 0)
        assert found.download == "before\nafter\n"


def test_two_restores_of_a_checkpoint_draw_different_numbers(visits: list[Visit]) -> None:
    first, second = (found.cell["stdout"] for found in visits)
    assert first != second


def test_a_restored_daemon_has_another_instance_id(frozen: Frozen, visits: list[Visit]) -> None:
    first, second = (found.instance for found in visits)
    assert len({frozen.instance["id"], first["id"], second["id"]}) == 3
    assert (frozen.instance["restores"], first["restores"], second["restores"]) == (0, 1, 1)


def test_the_daemon_notices_a_restore_before_the_platform_reports(
    frozen: Frozen, visits: list[Visit]
) -> None:
    for found in visits:
        assert found.report["instance_id"] == found.instance["id"]
        assert found.report["cause"] == ("file" if frozen.tells_restores else "report")


def test_connections_from_before_the_checkpoint_are_closed_after_a_restore(
    visits: list[Visit],
) -> None:
    for found in visits:
        assert sorted(found.callers) == ["kept: answered", "kept: closed", "run: closed"]


def test_a_command_goes_on_after_a_restore_without_its_caller(visits: list[Visit]) -> None:
    for found in visits:
        assert found.abandoned["state"] == "RUNNING"


def test_a_deadline_does_not_count_the_time_of_the_freeze_and_fires(visits: list[Visit]) -> None:
    for found in visits:
        limited = found.limited
        assert (limited["state"], limited["exit_reason"]) == ("EXITED", "timeout")
        assert limited["duration_seconds"] >= LIMIT_SECONDS + found.frozen_seconds
