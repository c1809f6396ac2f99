from __future__ import annotations

import subprocess
import sys

from execd.kernel import process_name

# The name before and after, as the process and as a child forked afterwards show themselves.
LOOK = """
import os, sys
from execd.kernel import process_name
def show():
    with open("/proc/self/comm") as comm, open("/proc/self/cmdline", "rb") as arguments:
        print(comm.read().strip(), arguments.read().rstrip(b"\\0").decode(), flush=True)
process_name.take_name(process_name.INTERPRETER)
show()
if os.fork() == 0:
    show()
    os.environ["A"] = "b"
    assert os.getenv("PATH"), "the environment behind the arguments is whole"
    os.execv(sys.executable, [sys.executable, "-c", "print(1)"])
os.wait()
assert sys.argv[1:] == ["python", "execd"], sys.argv
"""


def test_a_process_takes_a_name_that_its_forks_have_and_its_programs_have_not() -> None:
    argv = [sys.executable, "-c", LOOK, "python", "execd"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert shown == [*[process_name.INTERPRETER] * 4, "1"]
