"""The forms of execd side by side: an installed package, the tree, and the single file.

    python -m benchmarks.forms --tree TREE --single FILE [--rounds N]
                               [--only native|gvisor] [--runsc RUNSC]

Each start is of a fresh process with empty folders. Start: until the first answer to GET /. First
cell: from the first answer on, so the wait for a worker counts; in execd's own Python, whatever
the machine has. Memory: PSS of execd's processes
with one idle session, natively; in gVisor a sandbox has no PSS of its own, and the row says so. The
single file unpacks in its first start, and finds the tree in the next.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import usage
from benchmarks.idle import open_session
from benchmarks.machine import machine
from benchmarks.servers import Place, parse_with_places


class Form(NamedTuple):
    name: str
    program: Path | None
    """None: the package in this environment."""
    unpacks: bool = False
    """In each start anew."""
    unpack_dir: Path | None = None


class Row(NamedTuple):
    start_seconds: float
    cell_seconds: float
    proportional_mib: float


def measure(place: Place, form: Form) -> Row:
    with tempfile.TemporaryDirectory(prefix="execd-bench-", dir="/var/tmp") as fresh:
        folder = Path(fresh) if form.unpacks else form.unpack_dir
        with place.serving(
            "execd", "--python=own", program=form.program, unpack_dir=folder
        ) as server:
            began = time.perf_counter()
            open_session(server)
            cell_seconds = time.perf_counter() - began
            server.wait_idle()
            memory = float("nan") if place.runsc else usage.proportional_mib(server.pid)
            return Row(server.start_seconds, cell_seconds, memory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--single", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    asked, places = parse_with_places(parser)
    print(machine())
    print("| | start, ms | first cell, ms | memory, MiB |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="execd-bench-", dir="/var/tmp") as kept:
        for place in places:
            forms = [
                Form("package", None),
                Form("tree", asked.tree / "bin" / "execd"),
                Form("single file, first start", asked.single, unpacks=True),
            ]
            if not place.runsc:  # a sandbox of gVisor keeps no folder for the next
                forms.append(Form("single file, next start", asked.single, unpack_dir=Path(kept)))
                measure(place, forms[-1])
            found: dict[str, list[Row]] = {form.name: [] for form in forms}
            for turn in range(asked.rounds):
                for form in forms[:: -1 if turn % 2 else 1]:
                    found[form.name].append(measure(place, form))
            for name, rows in found.items():
                start, cell, memory = (
                    statistics.median(column) for column in zip(*rows, strict=True)
                )
                shown = "" if place.runsc else f"{memory:.1f}"
                print(f"| {place.name}: {name} | {start * 1e3:.0f} | {cell * 1e3:.0f} | {shown} |")


if __name__ == "__main__":
    main()
