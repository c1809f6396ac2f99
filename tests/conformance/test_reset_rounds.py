"""Drawn sequences of pollutions and resets with fixed seeds, and proof that the judge sees faults:
each planted fault makes a reset that lies, and the judge must complain. `make explore` draws new
sequences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .. import found
from .conftest import SHAPES
from .pollutions import BY_NAME
from .reset_rounds import Rounds, judge_reply
from .target import can_start, wait_until
from .test_judges import PROGRAM
from .world import World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not can_start(),
    reason=(
        "the daemon runs elsewhere: a reset would end the other tests' commands "
        "(EXECD_CONFORMANCE_LAUNCHER)"
    ),
)
N_ROUNDS = 6
FIXED_SEED = 1

VERIFIES_NOTHING = """
from execd.files.checkpoints import operations
operations.Operations.verify = lambda *_: operations.Verified("content", [], 0)
"""
RESTORES_NO_FILE = (
    VERIFIES_NOTHING
    + """
from execd.files.checkpoints import restore
restore.RootRestore._replace = lambda *_: None
"""
)
REMOVES_NOTHING = (
    VERIFIES_NOTHING
    + """
from execd.files.checkpoints import restore, scan
restore.RootRestore._remove = lambda *_: None
scan._Scan._clear = lambda *_: False
"""
)
SETS_NO_ATTRIBUTES = (
    VERIFIES_NOTHING
    + """
from execd.files.checkpoints import restore
restore._set_attributes = lambda *_: None
"""
)
WRITES_IN_PLACE = """
import os
from execd.files.checkpoints import restore
def write(self, entry):
    if entry.type == "file":
        parent, name = self._directories.open_parent(entry.path)
        fd = os.open(name, os.O_WRONLY, dir_fd=parent)
        os.write(fd, b"kept")
        os.close(fd)
restore.RootRestore._replace = write
"""
SEES_NO_TRACES = """
from execd.engine import surroundings
surroundings.Surroundings.compare = lambda *_, **__: iter(())
"""
LEAVES_A_PROCESS = """
import subprocess
from execd.engine import reset_steps
original = reset_steps.ResetSteps.go_on
async def go_on(self):
    subprocess.Popen(["sleep", "1000"])
    await original(self)
reset_steps.ResetSteps.go_on = go_on
"""
ENDS_NOBODY = """
import subprocess
from execd.engine import reset_steps, surroundings
surroundings.Surroundings.wait_gone = lambda *_, **__: []
halt = reset_steps.ResetSteps._halt
async def keep(self, run):
    pass
reset_steps.ResetSteps._halt = reset_steps.ResetSteps._start = keep
"""
FORGETS_NOTHING = """
from execd.engine.executions import retention
retention.Retention.end_episode = lambda *_, **__: None
"""
NAMES_NOTHING = """
from execd.engine import reset_outcome
def count(self, difference):
    self.total += 1
reset_outcome.ResetDifferences.append = count
"""
FAULTS = {
    # name: the fault, a pollution, flags of the daemon, words of the judge
    "file is not restored": (RESTORES_NO_FILE, "truncated", "require", "work/file"),
    "deleted directory": (RESTORES_NO_FILE, "deleted_directory", "require", "work/sub/a"),
    "hard links": (RESTORES_NO_FILE, "hard_link_parted", "require", "links"),
    "new file stays": (REMOVES_NOTHING, "files_in_tmp", "require", "tmp/a/b/c"),
    "socket stays": (REMOVES_NOTHING, "unix_socket_that_nobody_holds", "require", "work/socket"),
    "mode": (SETS_NO_ATTRIBUTES, "modes", "require", "mode: "),
    "setuid": (SETS_NO_ATTRIBUTES, "setuid", "require", "mode: "),
    "time": (SETS_NO_ATTRIBUTES, "touched", "require", "modified_ns: "),
    "attributes": (SETS_NO_ATTRIBUTES, "attributes", "require", "attributes: "),
    "outside": (WRITES_IN_PLACE, "hard_link_from_the_outside", "require", "outside/sub/a"),
    "watched": (VERIFIES_NOTHING, "watched_directory", "require", "watched/passwd"),
    "shared memory": (SEES_NO_TRACES, "dev_shm", "off", "/dev/shm/"),
    "System V": (SEES_NO_TRACES, "system_v", "off", "segment"),
    "new process": (LEAVES_A_PROCESS, "touched", "require", "sleep 1000"),
    "old process": (ENDS_NOBODY, "empty_environment", "require", "lived before"),
    "old process without namespaces": (ENDS_NOBODY, "double_fork", "off", "lived before"),
    "records": (FORGETS_NOTHING, "touched", "require", "/v1/executions"),
    "unnamed difference": (NAMES_NOTHING, "watched_mode", "require", "not named"),
}


@pytest.fixture
def nothing_leaks() -> None:
    """Replaces the guard of the suite: a world closes what it holds."""


@pytest.mark.parametrize("shape", list(SHAPES))
def test_drawn_pollutions_are_gone_or_named_after_each_reset(tmp_path: Path, shape: str) -> None:
    world = World(tmp_path, *SHAPES[shape])
    try:
        rounds = Rounds(world, FIXED_SEED)
        for number in range(N_ROUNDS):
            rounds.play(number)
        assert rounds.n_clean, "most rounds are clean"
    finally:
        world.close()


def test_rounds_that_once_failed_pass(tmp_path: Path) -> None:
    """A case of `make explore` is SEED-ROUND-POLICY."""
    for case in found.cases("resets"):
        seed, number, policy = case.name.split("-")
        world = World(tmp_path / case.name, f"--namespaces={policy}")
        try:
            Rounds(world, int(seed)).play(int(number))
        finally:
            world.close()


def test_what_a_program_writes_by_another_name_is_no_fault_of_the_reset(tmp_path: Path) -> None:
    """Seed 12: round 128 of 132 walks `outside` through the link in the place of `home`, and may
    link `beats`, which the program of round 132 writes until the reset."""
    world = World(tmp_path)
    try:
        world.checkpoint()
        world.shell("ln outside/beats outside/sub/beats", check=True)
        BY_NAME["not_dumpable"].pollute(world)
        outside = world.see_outside()
        wait_until(lambda: world.see_outside() != outside, 20, "the program writes on")
        reply = world.reset()
        assert reply["clean"], reply
        judge_reply(world, reply, outside, has_writers=True)
    finally:
        world.close()


READS_NO_PROCESS = """
from execd.engine import surroundings
surroundings.SCAN_SECONDS, surroundings.GONE_SECONDS = -1.0, 0.1
"""


@pytest.mark.any_kernel  # and the fault is planted in a daemon of this machine
def test_processes_that_could_not_all_be_read_are_a_difference(tmp_path: Path) -> None:
    below = (sys.executable, "-c", PROGRAM.format(fault=READS_NO_PROCESS))
    world = World(tmp_path, "--namespaces=off", below=below)
    try:
        world.checkpoint()
        found = world.reset()["differences"]["items"]
        assert [each["message"] for each in found if each["kind"] == "step"] == [
            "the step halt failed: not all processes could be read"
        ]
    finally:
        world.kill()


@pytest.mark.any_kernel  # and the faults are planted in a daemon of this machine
@pytest.mark.parametrize("name", FAULTS)
def test_judge_of_resets_sees_each_planted_fault(tmp_path: Path, name: str) -> None:
    fault, pollution, policy, words = FAULTS[name]
    below = (sys.executable, "-c", PROGRAM.format(fault=fault))
    world = World(tmp_path, f"--namespaces={policy}", below=below)
    try:
        world.checkpoint()
        BY_NAME[pollution].pollute(world)
        outside = world.see_outside()
        reply = world.reset()
        with pytest.raises(AssertionError) as complaint:
            judge_reply(world, reply, outside)
        assert words in str(complaint.value)
    finally:
        world.put_right()
        world.end_round()
        world.kill()
