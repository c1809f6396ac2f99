"""How ``execctl`` ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading
from execd_client import cli
from execd_client.cli import program
def execctl():
    if sys.argv[1] == "a thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    atexit.register(print, "taken apart")
    print("said", end=" ")
    sys.exit(7)
program.execctl = execctl
cli.main()
"""


@pytest.mark.parametrize(
    ("running", "said"), [("a thread", "said "), ("nothing", "said taken apart\n")]
)
def test_the_interpreter_is_not_taken_apart_below_a_thread(running: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, running], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, said, "")
