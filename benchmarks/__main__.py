"""``make bench``: execd beside a FastAPI server of the same contract and beside its peers, in the
same rounds: latency, throughput, CPU, memory and wake-ups, with spreads, JSON and plots.

    python -m benchmarks [--peers DIR] [--gvisor] [--publish] [--rounds N] [--subjects A,B,...]
                         [--add NAME=DIALECT+http://HOST:PORT[?probes=PORT][#PID]]...
                         [--python PATH] [--scale X] [--output DIR]

Machines are noisy and drift, so figures of two runs do not compare. A round starts every subject
afresh, and then takes figure after figure from all subjects in turn. Subjects and client share the
machine's cores, so every figure includes the cost of sharing.

``python -m benchmarks.compare OLD NEW`` measures two checkouts of execd in rounds like the above,
with the bounds of each ratio: before and after a change.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environments, report, subjects
from benchmarks.environments import REPOSITORY
from benchmarks.figures import Found
from benchmarks.machine import machine, release_of
from benchmarks.rounds import Run
from benchmarks.servers import Place

if TYPE_CHECKING:
    from benchmarks.environments import Python
    from benchmarks.subjects import Subject

PUBLISHED = REPOSITORY / "docs" / "benchmarks"
PEERS = ("sandboxd", "OpenSandbox", "E2B envd")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--scale", type=float, default=1.0, help="of all periods; 0.1 is a trial")
    add(
        "--peers",
        type=Path,
        default=os.environ.get("BENCHMARK_PEERS"),
        help="folder of the programs sandboxd, os-execd and envd, plain or NAME.xz",
    )
    add("--subjects", help="names, separated by commas; default: all that run here")
    add("--add", action="append", default=[], type=subjects.parse_subject, metavar="SUBJECT")
    add("--python", type=Path, help="of execd and FastAPI; default: Debian's, as in the image")
    add("--gvisor", action="store_true", help="in gVisor instead of natively")
    add("--runsc", default=os.environ.get("RUNSC") or shutil.which("runsc"))
    add("--output", type=Path, default=REPOSITORY / "build" / "benchmarks")
    add("--publish", action="store_true", help="write the JSON into docs/benchmarks")
    given = parser.parse_args()
    if given.gvisor and not given.runsc:
        parser.error("--gvisor needs runsc: on PATH, in RUNSC or by --runsc")
    return given


def selected(given: argparse.Namespace, python: Python, notes: list[str]) -> list[Subject]:
    daemon, user, baseline = (
        environments.made(python.path, requirements)
        for requirements in (environments.DAEMON, environments.USER, environments.BASELINE)
    )
    found = subjects.execd_subjects(python, daemon, user)
    found.append(subjects.fastapi_subject(python, baseline, user))
    if given.peers:
        found += subjects.peer_subjects(given.peers, user)
    missing = [name for name in PEERS if name not in {each.name for each in found}]
    if missing:
        notes.append(f"{', '.join(missing)}: --peers names no folder with the programs")
    found += given.add
    if given.subjects:
        wanted = given.subjects.split(",")
        if unknown := set(wanted) - {each.name for each in found}:
            names = ", ".join(each.name for each in found)
            raise SystemExit(f"no subject {', '.join(sorted(unknown))}; there are {names}")
        found = [each for each in found if each.name in wanted]
    return found


def commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def main() -> None:
    given = arguments()
    python = environments.examine(given.python or environments.default_python())
    place = Place(given.runsc) if given.gvisor else Place()
    notes: list[str] = []
    run = Run(place, selected(given, python, notes), Found(), given.scale, notes)
    release = release_of(place.runsc) if place.runsc else ""
    print(f"{machine(release)}: {', '.join(each.name for each in run.subjects)}", file=sys.stderr)
    for note in notes:
        print(note, file=sys.stderr)
    began = time.monotonic()
    for number in range(given.rounds):
        run.measure_round(number)
        took = time.monotonic() - began
        print(f"round {number + 1} of {given.rounds}: {took:.0f} s", file=sys.stderr, flush=True)
    done = report.Report(
        f"gvisor-{release[:4]}" if release else "native",
        machine(release),
        commit(),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        str(environments.examine(Path(sys.executable))),
        given.rounds,
        time.monotonic() - began,
        {each.name: each.software for each in run.subjects},
        run.notes,
        run.found,
    )
    report.write(done, PUBLISHED if given.publish else given.output)
    report.draw(done, given.output)
    text = report.summary(done)
    (given.output / f"{done.place}.md").write_text(f"{text}\n")
    print(text)
    if given.publish:
        print(
            "`make reference` writes the tables of README.md and docs/benchmarks.md",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
