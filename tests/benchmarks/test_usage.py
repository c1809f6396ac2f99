from __future__ import annotations

import subprocess
import sys

from benchmarks import usage
from benchmarks.usage import Counts, Process

PARENT = """
import subprocess, sys
for line in sys.stdin:
    if line == "work\\n":
        end = __import__("time").process_time() + 0.3
        while __import__("time").process_time() < end:
            pass
    else:
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
    print("done", flush=True)
"""


def test_only_processes_of_both_readings_count() -> None:
    stays, ends, comes = Process(1, 5), Process(2, 5), Process(3, 6)
    before = {stays: Counts(1.0, 100, 10), ends: Counts(9.0, 900, 90)}
    after = {stays: Counts(1.5, 150, 13), comes: Counts(7.0, 700, 70)}
    used = usage.used(before, after)
    assert (used.own_seconds, used.with_commands_seconds, used.waits) == (0.5, 1.0, 3)


def test_the_cpu_of_a_command_is_not_the_cpu_of_the_process_that_runs_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        found = {}
        parent.stdin.write("work\n")  # imports come before the first reading
        parent.stdout.readline()
        for asked in ("work", "command"):
            before = usage.read(parent.pid)
            parent.stdin.write(f"{asked}\n")
            parent.stdout.readline()
            found[asked] = usage.used(before, usage.read(parent.pid))
        parent.stdin.close()
    assert found["work"].own_seconds >= 0.3
    command = found["command"]
    assert command.with_commands_seconds > 2 * command.own_seconds
    assert command.waits >= 1


def test_memory_of_a_process_is_at_least_its_share_of_pages() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before, the process may not even be Python yet
        assert usage.proportional_mib(process.pid) > 1
        assert usage.resident_mib(process.pid) > 0
        assert usage.tree(process.pid) == [process.pid]
        assert process.stdin is not None
        process.stdin.close()
    assert usage.tree(process.pid) == []
