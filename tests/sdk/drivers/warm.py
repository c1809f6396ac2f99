"""Runs programs in processes that have imported an SDK already: the imports take longer than most
programs.

    warm.py MODULE...

A line of standard input is a JSON list: a program's path, its arguments, and in the end the paths
of the files for its standard output and standard error. A process forked from this one runs the
program; the answer is the exit code in a line. Runs in an environment that has the SDK and nothing
of execd.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys


def next_program() -> list[str] | None:
    """In the forked process: the program and its arguments. In this process: None, after the
    end."""
    for line in sys.stdin:
        *program, stdout, stderr = json.loads(line)
        if pid := os.fork():
            _, wait_status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(wait_status), flush=True)
            continue
        for fd, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, stdout, os.O_WRONLY),
            (2, stderr, os.O_WRONLY),
        ):
            opened = os.open(path, flags)
            os.dup2(opened, fd)
            os.close(opened)
        return program
    return None


for name in sys.argv[1:]:
    importlib.import_module(name)
if program := next_program():
    sys.argv = program
    sys.path.insert(0, os.path.dirname(program[0]))
    # The forked process ends as an interpreter ends, with its threads and its exit handlers.
    runpy.run_path(program[0], run_name="__main__")
