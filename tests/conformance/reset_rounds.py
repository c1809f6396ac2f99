"""Random sequences of pollutions and resets, judged from outside.

    python -m tests.conformance.reset_rounds [--rounds 100] [--seconds S] [--seed 0]
        [--namespaces require|off] [--tmpfs]

All rounds have one daemon. After each reset: ``clean: true`` and the judge finds nothing, or
``clean: false`` and everything that the judge finds is named. At the end the daemon's memory,
descriptors and files of the state dir are compared with those after the first rounds. Exit code 1:
a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import found
from .pollutions import TABLE
from .world import World, is_named

if TYPE_CHECKING:
    from . import eyes
    from .pollutions import Pollution

DRAWN = [pollution for pollution in TABLE if pollution.is_drawn]
MAX_POLLUTIONS = 5
SLOW_SECONDS = 15.0
SCRAMBLE = r"""
import os, random, signal, sys
def late(*_):
    raise OSError("a FIFO")
signal.signal(signal.SIGALRM, late)
rng = random.Random(sys.argv[1])
roots = ["work", "home", "tmp", "bin"]
def some(kinds=None):
    found = []
    for root in roots:
        for path, folders, files in os.walk(root):
            found += [os.path.join(path, name) for name in folders + files]
    return rng.choice(found) if found else rng.choice(roots)
def new():
    where = some()
    folder = where if os.path.isdir(where) else os.path.dirname(where)
    return os.path.join(folder, rng.choice("abcdefgh") + str(rng.randrange(4)))
def in_place(p):
    with open(p, "r+b") as f:
        f.seek(rng.randrange(max(1, os.path.getsize(p))))
        f.write(bytes([rng.randrange(256)]) * rng.randrange(1, 9))
def keep_time(p):
    s = os.stat(p)
    in_place(p)
    os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))
acts = [
    lambda: open(some(), "ab").write(b"more"), lambda: open(new(), "wb").write(os.urandom(9)),
    lambda: in_place(some()), lambda: keep_time(some()),
    lambda: os.rename(some(), new()), lambda: os.rename(some(), some()),
    lambda: os.link(some(), new()), lambda: os.symlink(some(), new()),
    lambda: os.symlink(os.path.abspath("outside/sub"), new()),
    lambda: os.chmod(some(), rng.choice([0, 0o777, 0o600, 0o4755, 0o1777, 0o500])),
    lambda: os.utime(some(), (rng.randrange(1 << 30), rng.randrange(1 << 30))),
    lambda: os.unlink(some()), lambda: os.rmdir(some()), lambda: os.mkdir(new()),
    lambda: os.mkfifo(new()), lambda: os.truncate(some(), rng.randrange(100000)),
    lambda: os.setxattr(some(), "user.r%d" % rng.randrange(3), os.urandom(3)),
    lambda: [os.removexattr(p, n) for p in [some()] for n in os.listxattr(p)],
    lambda: os.replace(some(), some()),
]
for _ in range(rng.randrange(1, 40)):
    try:
        act = rng.choice(acts)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        act()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except OSError:
        pass
"""


class Sizes(NamedTuple):
    """What may grow."""

    pss_bytes: int
    n_descriptors: int
    n_state_files: int
    state_bytes: int


def sizes(world: World) -> Sizes:
    """Of a daemon on this machine."""
    pss_bytes = 0
    with contextlib.suppress(FileNotFoundError):  # gVisor has none
        text = Path(f"/proc/{world.target.pid}/smaps_rollup").read_text()
        pss_bytes = int(text.partition("\nPss:")[2].split()[0]) * 1024
    pss_bytes = pss_bytes or world.target.resident_bytes()
    files = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(world.folder / "state")
        for name in names
    ]
    n_bytes = sum(os.lstat(path).st_blocks * 512 for path in files if os.path.lexists(path))
    return Sizes(pss_bytes, world.target.descriptor_count(), len(files), n_bytes)


def judge_reply(
    world: World,
    reply: dict[str, Any],
    outside: dict[bytes, eyes.Facts],
    *,
    has_writers: bool = False,
) -> list[eyes.Finding]:
    """Fail for a false "clean", and for what is not named. Return what the judge finds.
    ``outside``, ``has_writers``: see ``World.judge_outside``."""
    findings = world.judge_records() + world.judge()
    differences = reply["differences"]["items"]
    assert reply["clean"] == (reply["differences"]["total"] == 0), reply
    if reply["clean"]:
        assert not findings, f"clean, and not as before: {findings}\n{reply}"
    else:
        unnamed = [finding for finding in findings if not is_named(finding, differences)]
        assert not unnamed, f"not named: {unnamed}\n{reply}"
    touched = world.judge_outside(outside, has_writers=has_writers)
    assert not touched, f"the reset has touched what is outside of the roots: {touched}\n{reply}"
    return findings


class Rounds:
    """The rounds of one seed on one daemon."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        self.n_clean = self.n_named = self.n_seen = 0
        self.needs_checkpoint = True
        world.is_patient = False

    def play(self, number: int) -> list[str]:
        """One round. Return the names of its pollutions. Raises AssertionError."""
        rng = random.Random(f"{self.seed} {number}")
        world = self.world
        chosen: list[Pollution] = rng.sample(DRAWN, rng.randrange(MAX_POLLUTIONS + 1))
        names = [pollution.name for pollution in chosen]
        if sum(pollution.prepare is not None for pollution in chosen) > 1:
            chosen = [each for each in chosen if each.prepare is None]
        scrambles = rng.randrange(3)
        verify = rng.choice(["auto", "auto", "content"])
        renews = rng.random() < 0.2
        try:
            for pollution in chosen:
                if pollution.prepare is not None:
                    world.is_patient = True  # nothing has been polluted yet
                    pollution.prepare(world)
                    world.is_patient = False
                    renews = True
            if renews or self.needs_checkpoint:
                world.checkpoint()
                self.needs_checkpoint = False
            for pollution in chosen:
                try:
                    pollution.pollute(world)
                except (AssertionError, LookupError, OSError):
                    pass  # the pollutions before may have taken what this one needs
            for scramble in range(scrambles):
                world.python(SCRAMBLE, f"{self.seed} {number} {scramble}")
            outside = world.see_outside()
            reply = world.reset(verify=verify)
            world.finish()
            has_writers = any(each.kind == "process" for each in chosen)
            findings = judge_reply(world, reply, outside, has_writers=has_writers)
            self.n_clean += reply["clean"]
            self.n_named += bool(findings)
            if not reply["clean"]:
                world.put_right()
                world.renew()
                self.needs_checkpoint = True
        except AssertionError as error:
            raise AssertionError(
                f"seed {self.seed}, round {number}: {names}, {scrambles} scrambles, {verify}\n"
                f"{error}"
            ) from error
        finally:
            world.end_round()
        return names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.reset_rounds")
    parser.add_argument("--rounds", type=int, default=100, help="default: 100")
    parser.add_argument("--seconds", type=float, default=1e9, help="default: no limit")
    parser.add_argument("--seed", type=int, help="default: random")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--namespaces", choices=["require", "off"], default="require")
    parser.add_argument("--tmpfs", action="store_true", help="the base dir is a tmpfs (as root)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**9)
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), f"--namespaces={options.namespaces}", has_tmpfs=options.tmpfs)
        rounds = Rounds(world, seed)
        early, n_done, n_failed = None, 0, 0
        for number in range(options.first, options.first + options.rounds):
            if time.monotonic() > end:
                break
            try:
                began = time.monotonic()
                names = rounds.play(number)
                if time.monotonic() - began > SLOW_SECONDS:
                    print(f"round {number} took {time.monotonic() - began:.1f} s: {names}")
            except AssertionError as error:
                print(f"{error}\n{world.target.log_text()[-2000:]}", flush=True)
                n_failed += 1
                name = f"{seed}-{number}-{options.namespaces}"
                found.keep("resets", name, str(error).encode(errors="replace"))
                if n_failed >= 5:
                    break
                world.put_right()
                world.renew()
                rounds.needs_checkpoint = True
            n_done += 1
            if n_done == 20 and world.is_local:
                early = sizes(world)
            if n_done % 50 == 0:
                print(f"{n_done} rounds, {rounds.n_clean} clean", flush=True)
        late = sizes(world) if world.is_local else None
        print(
            f"{n_done} rounds of seed {seed}: {rounds.n_clean} clean, {rounds.n_named} with named"
            f" findings, {n_failed} failed; {early} and at the end {late}"
        )
        world.close()
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
