"""The daemon dies in the middle of a reset, at each step: the next daemon finishes the reset before
it is ready, and a repeated request gets the answer. Real daemons, which kill themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from execd.engine.reset_outcome import ResetStep
from tests.free_port import free_port
from tests.own_traces import kept_traces, own_traces
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# argv: where to die, then execd's own words. "before restore": SIGKILL at the begin of the step.
DAEMON = """
import os, signal, sys
from execd import cli
from execd.engine import reset, reset_steps
when, _, place = sys.argv.pop(1).partition(" ")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

take, finish = reset_steps.ResetSteps.take, reset.Resets._finish

async def take_and_die(self, step, run):
    if (when, place) == ("before", str(step)):
        die()
    await take(self, step, run)
    if (when, place) == ("after", str(step)):
        die()

async def finish_and_die(self, run):
    done = await finish(self, run)
    if (when, place) == ("after", "finish"):
        die()
    return done

reset_steps.ResetSteps.take, reset.Resets._finish = take_and_die, finish_and_die
cli.main()
"""
LEAVE = """
import ctypes, os, resource
libc = ctypes.CDLL("librt.so.1", use_errno=True)
assert libc.shmget(0, 4096, 0o600) >= 0
assert libc.msgget(0, 0o600) >= 0
assert libc.semget(0, 1, 0o600) >= 0
may_have_queues = resource.getrlimit(resource.RLIMIT_MSGQUEUE) != (0, 0)
made = libc.mq_open(b"/execd-left", os.O_RDWR | os.O_CREAT, 0o600, None)
assert (made >= 0) == may_have_queues
print("POSIX" * may_have_queues)
open("/dev/shm/execd-left", "w").write("left")
"""
PLACES = [f"before {step}" for step in ResetStep] + ["after verify", "after finish"]
NEVER = "never"


def check_clean_but_for_strays(reply: dict[str, Any]) -> None:
    """A daemon has died. Without namespaces its processes cannot be told apart, so no reset is
    clean; nothing else differs."""
    items = reply["differences"]["items"]
    if reply["scope"]["processes"] == "namespace":
        assert (reply["clean"], items) == (True, []), reply
    else:
        assert reply["clean"] is False
        (item,) = items
        assert item["kind"] == "process"
        assert "restart the container" in item["message"]


class Daemons:
    """Daemons one after another, on the same directories."""

    def __init__(self, folder: Path, *flags: str, below: tuple[str, ...] = ()) -> None:
        """``below``: the command that runs the daemon's."""
        self._below = below
        self.base = folder / "base"
        self.base.mkdir()
        (self.base / "file").write_text("kept")
        self._folder = folder
        self._flags = flags
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, dies: str = NEVER, *, is_ready: bool = True) -> None:
        assert self.process is None or self.process.poll() is not None
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [
            *("serve", "--port", str(port), "--base-dir", str(self.base)),
            *("--state-dir", str(self._folder / "state"), "--sessions", "lazy"),
            *("--checkpoint-at-start", str(self.base), *self._flags),
        ]
        with open(self._folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*self._below, sys.executable, "-c", DAEMON, dies, *words], stderr=log
            )
        if is_ready:
            wait_until(self.is_ready, 60)

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        url = self.url + path
        return httpx.post(url, json=fields, headers=headers, timeout=60, trust_env=False)

    def reset(self) -> httpx.Response:
        return self.post("/v1/reset", headers={"Idempotency-Key": "k"})

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(params=["require", "off"])
def make_daemons(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Daemons]]:
    made: list[Daemons] = []
    with kept_traces() as below:

        def make(*flags: str) -> Daemons:
            made.append(Daemons(tmp_path, "--namespaces", request.param, *flags, below=below))
            return made[0]

        yield make
        for daemons in made:
            daemons.kill()


@pytest.mark.parametrize("place", PLACES)
def test_a_reset_whose_daemon_dies_is_finished_by_the_next_one(
    make_daemons: Callable[..., Daemons], place: str
) -> None:
    daemons = make_daemons()
    daemons.start(place)
    episode = daemons.get("/").headers["X-Execd-Episode"]
    script = "rm file; echo new > new; setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    assert daemons.post("/execute", command=script).json()["exit_code"] == 0
    named = {"argv": ["sleep", "1000"], "detach": True, "id": "mine"}
    assert daemons.post("/v1/executions", **named).status_code == 202
    with pytest.raises(httpx.TransportError):
        daemons.reset()
    assert daemons.process is not None
    assert daemons.process.wait(20) == -signal.SIGKILL
    daemons.start()
    # Ready: the reset is over.
    assert sorted(os.listdir(daemons.base)) == ["file"]
    assert daemons.get("/v1/executions/mine").status_code == 404
    before = daemons.get("/").headers["X-Execd-Episode"]
    assert before != episode
    answer = daemons.reset()
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply["episode"] == before
    if place == "after finish":
        assert reply["clean"] is True, "nobody had died when the reset ended"
    else:
        check_clean_but_for_strays(reply)
    assert reply["ended"]["executions"] == 1
    assert daemons.get("/").headers["X-Execd-Episode"] == before, "the reset ran once"


def test_a_repeat_while_the_next_daemon_finishes_gets_the_answer(
    make_daemons: Callable[..., Daemons],
) -> None:
    daemons = make_daemons()
    daemons.start("before restore")
    with pytest.raises(httpx.TransportError):
        daemons.reset()
    assert daemons.process is not None
    daemons.process.wait(20)
    daemons.start("before verify", is_ready=False)
    assert daemons.process.wait(20) == -signal.SIGKILL
    daemons.start()
    check_clean_but_for_strays(daemons.reset().json())


def test_a_reset_that_the_end_of_the_daemon_cuts_off_is_finished_too(
    make_daemons: Callable[..., Daemons], tmp_path: Path
) -> None:
    daemons = make_daemons()
    daemons.start("after finish")
    first = None
    with pytest.raises(httpx.TransportError):
        first = daemons.reset()
    assert first is None, "the answer did not arrive"
    assert daemons.process is not None
    daemons.process.wait(20)
    daemons.start()
    assert daemons.reset().json()["clean"] is True, "nobody had died when the reset ended"
    assert "a former daemon died in a reset" not in (tmp_path / "log").read_text()


def test_without_namespaces_nothing_is_clean_after_a_death_until_the_container_restarts(
    make_daemons: Callable[..., Daemons],
) -> None:
    daemons = make_daemons()
    daemons.start()
    assert daemons.process is not None
    daemons.process.terminate()
    daemons.process.wait(20)
    daemons.start()
    reply = daemons.reset().json()
    assert reply["clean"] is True, f"that end was a clean one: {reply}"
    for _ in range(2):
        daemons.kill()
        daemons.start()
        key = {"Idempotency-Key": daemons.url}
        check_clean_but_for_strays(daemons.post("/v1/reset", headers=key).json())


@pytest.mark.root
@pytest.mark.linux_only("needs a mount namespace outside of the daemon's")
@pytest.mark.parametrize("shape", ["require", "off"])
def test_a_disk_that_user_code_has_filled_is_emptied(tmp_path: Path, shape: str) -> None:
    """The state dir is on the same disk: nothing can be journaled before files are removed."""
    script = (
        f"mount -t tmpfs -o size=4m none {tmp_path} && mkdir {tmp_path}/base && "
        f'echo kept > {tmp_path}/base/file && exec "$@"'
    )
    below = (*own_traces(), "unshare", "--mount", "sh", "-c", script, "sh")
    daemons = Daemons(tmp_path, "--namespaces", shape, below=below)
    try:
        daemons.start()
        free = "df --output=avail . | tail -1"
        fill = f"head -c 3000000 /dev/zero; rm file; cat /dev/zero > fill; {free}"
        done = daemons.post("/execute", command=fill).json()
        assert "No space left" in done["stderr"]
        assert done["stdout"].split()[-1] == "0"
        reply = daemons.reset().json()
        assert (reply["clean"], reply["files"]["removed"]) == (True, 1), reply
        listed = daemons.post("/execute", command="ls; cat file").json()
        assert listed["stdout"] == "file\nkept\n"
        assert daemons.reset().json() == reply
    finally:
        daemons.kill()


def test_what_programs_leave_in_the_kernel_goes_with_the_warden_or_is_named(
    make_daemons: Callable[..., Daemons],
) -> None:
    daemons = make_daemons()
    daemons.start()
    left = daemons.post("/v1/executions", argv=[sys.executable, "-c", LEAVE]).json()
    assert left["exit_code"] == 0, left
    reply = daemons.reset().json()
    found = [str(item) for item in reply["differences"]["items"]]
    if reply["scope"]["processes"] == "namespace":
        assert (reply["clean"], found) == (True, [])
        return
    assert not reply["clean"]
    words = ["shared memory", "message queue", "semaphore", "/dev/shm/execd-left"]
    for word in [*words, *left["stdout"].split()]:
        assert any(word in line for line in found), (word, found)
