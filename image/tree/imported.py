"""Print the files that a session's interpreter imports before its first cell, a path in each line.

    TREE/bin/python3 image/tree/imported.py PYTHON PREFIX

PYTHON: the interpreter, which gets execd's kernel and the IPython that the tree lends. PREFIX: a
folder for bytecode, made anew by the interpreter: what is there afterwards has been imported.
Needs ``app`` of the tree on PYTHONPATH.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from execd.engine.sessions.zygote_process import zygote_argv, zygote_environment

CONTROL_FD = 3


def main(python: str, prefix: str) -> None:
    while os.open(os.devnull, os.O_RDONLY) < CONTROL_FD:
        pass  # the pair must not get the number
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), CONTROL_FD)
    environment = zygote_environment(
        {"PATH": os.environ["PATH"], "HOME": prefix, "PYTHONPYCACHEPREFIX": prefix}
    )
    process = subprocess.Popen(zygote_argv(python), env=environment, pass_fds=[CONTROL_FD])
    os.close(CONTROL_FD)
    theirs.close()
    said = b""
    while b'"ready"' not in said:
        if not (data := ours.recv(1 << 16)) or b'"refused"' in said:
            raise SystemExit(f"imported: {python} cannot serve sessions: {said!r}")
        said += data
    ours.close()  # the interpreter ends
    process.wait()
    for compiled in sorted(Path(prefix).rglob("*.pyc")):
        folder, (name, *_) = compiled.parent, compiled.name.split(".")
        print(Path("/") / folder.relative_to(prefix) / f"{name}.py")


if __name__ == "__main__":
    main(*sys.argv[1:])
