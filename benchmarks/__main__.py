"""``make bench``: execd beside a FastAPI server of the same contract, in the same run, natively and
inside gVisor.

    python -m benchmarks [--rounds N] [--runsc PATH] [--only native|gvisor] [--without-files]

Machines are noisy and drift, so do not compare figures across runs. Each round starts every server
afresh and measures the server. The order of the servers turns from round to round. The table shows
medians over the rounds and the ratio of the two servers. The same rounds measure the floors. Server
and load generator share the machine's cores, so every figure includes the cost of sharing.

``python -m benchmarks.compare OLD NEW`` measures two checkouts of execd in rounds like the above,
with the bounds of each ratio: before and after a change.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.load import command_count
from benchmarks.servers import HERE, Place, baseline_interpreter, load

Samples = dict[str, dict[str, list[float]]]

# Row, the figure's name in the results of ``measure``, and the figure's format.
ROWS = [
    ("`POST /execute` true, p50, ms", "command p50_ms", "{:.2f}"),
    ("`POST /execute` true, p95, ms", "command p95_ms", "{:.2f}"),
    ("`POST /execute` true, CPU of the server and what is below it, ms", "cpu", "{:.2f}"),
    ("`POST /execute` true, 32 connections, per second", "crowd per_second", "{:.0f}"),
    (
        "32 connections, true, ls, a pipeline and a Python script in turn, per second",
        "mixed-crowd per_second",
        "{:.0f}",
    ),
    ("`GET /` of another process beside these, p50, ms", "mixed-crowd probe_p50_ms", "{:.2f}"),
    ("`GET /` of another process beside these, p99, ms", "mixed-crowd probe_p99_ms", "{:.2f}"),
    ("`GET /` idle, p50, ms", "probe p50_ms", "{:.3f}"),
    ("`GET /` idle, p99, ms", "probe p99_ms", "{:.3f}"),
    ("`GET /` beside 16 commands, p50, ms", "loaded-probe p50_ms", "{:.2f}"),
    ("`GET /` beside 16 commands, p99, ms", "loaded-probe p99_ms", "{:.2f}"),
    ("start to first answer, s", "start", "{:.2f}"),
    ("idle memory of the server (RSS), MiB", "memory server", "{:.1f}"),
    ("idle memory of processes below it (RSS), MiB", "memory below", "{:.1f}"),
    ("upload of 1 GiB, MB/s", "upload mb_per_second", "{:.0f}"),
    ("download of 1 GiB, MB/s", "download mb_per_second", "{:.0f}"),
]


def measure(place: Place, kind: str, found: dict[str, list[float]], files: bool) -> None:
    with place.serving(kind) as server:
        found["start"].append(server.start_seconds)
        _keep(found, "probe", load(server.port, "probe"))
        if kind == "bare":
            return
        if place.runsc is None:  # gVisor's processes are not this machine's
            _keep(found, "memory", server.resident_mib())
            before = server.cpu_seconds()
            _keep(found, "command", load(server.port, "command"))
            found["cpu"].append((server.cpu_seconds() - before) * 1000 / command_count())
        else:
            _keep(found, "command", load(server.port, "command"))
        for scenario in (
            "crowd",
            "mixed-crowd",
            "loaded-probe",
            *(("upload", "download") if files else ()),
        ):
            _keep(found, scenario, load(server.port, scenario))


def _keep(found: dict[str, list[float]], name: str, figures: dict[str, float]) -> None:
    for figure, value in figures.items():
        found[f"{name} {figure}"].append(value)


def rounds(place: Place, count: int, files: bool) -> Samples:
    found: Samples = defaultdict(lambda: defaultdict(list))
    kinds = ["execd", "baseline", "bare"]
    for number in range(count):
        print(f"{place.name}: round {number + 1} of {count}", file=sys.stderr)
        # Large files take long and vary little: twice is enough.
        for kind in kinds:
            measure(place, kind, found[kind], files and number < 2)
        _keep(
            found["floor"],
            "spawn",
            json.loads(place.run([sys.executable, str(HERE / "floors.py"), "spawn"])),
        )
        kinds = kinds[1:] + kinds[:1]
    return found


def table(place: Place, found: Samples) -> str:
    lines = ["| " + place.name + " | execd | baseline | execd / baseline |", "|---|--:|--:|--:|"]
    for row, figure, form in ROWS:
        execd, baseline = (found[kind].get(figure) for kind in ("execd", "baseline"))
        if execd and baseline:
            mine, theirs = statistics.median(execd), statistics.median(baseline)
            ratio = f"{mine / theirs:.2f}" if theirs else ""
            lines.append(f"| {row} | {form.format(mine)} | {form.format(theirs)} | {ratio} |")
    command = statistics.median(found["execd"]["command p50_ms"])
    probe = statistics.median(found["execd"]["probe p50_ms"])
    for row, floor, mine in (
        ("`sh -c true` by vfork, exec and wait, p50, ms", found["floor"]["spawn p50_ms"], command),
        ("`GET /` of a bare aiohttp on uvloop, p50, ms", found["bare"]["probe p50_ms"], probe),
    ):
        lowest = statistics.median(floor)
        lines.append(f"| floor: {row} | {lowest:.3f} | | execd / floor {mine / lowest:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    python = platform.python_version()
    return f"{os.cpu_count()} CPUs ({model}), Linux {platform.release()}, Python {python}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--runsc", default=os.environ.get("RUNSC") or shutil.which("runsc"), help="default: on PATH"
    )
    parser.add_argument("--only", choices=["native", "gvisor"])
    parser.add_argument("--without-files", action="store_true")
    args = parser.parse_args()
    if args.only == "gvisor" and not args.runsc:
        parser.error("--only gvisor needs --runsc")

    baseline_interpreter()
    places = [Place()] if args.only != "gvisor" else []
    if args.runsc and args.only != "native":
        places.append(Place(args.runsc))
    print(
        f"{machine()}; servers and load generator share its CPUs. Medians of {args.rounds} "
        "interleaved rounds.\n"
    )
    for place in places:
        print(table(place, rounds(place, args.rounds, not args.without_files)) + "\n", flush=True)
    if not args.runsc:
        print("Nothing was measured in gVisor: no runsc on PATH, in RUNSC or --runsc.")


if __name__ == "__main__":
    main()
