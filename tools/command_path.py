"""Lists the definitions that a ``POST /execute`` of ``true`` goes through in the daemon, from the
socket of the caller to the socket of the warden, and writes the list into docs/architecture.md.

    python -m tools.command_path [--write]

A daemon runs with a profile hook (``sys.setprofile``) and answers some commands; then the hook
notes the functions of execd that the next command calls, each once, in order. Constructors and
properties count. Comprehensions and lambdas do not: they are parts of their function.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

import execd

PACKAGE = Path(execd.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- python -m tools.command_path --write -->\n", "<!-- end of the list -->\n"
WARM_UP = 20
START_SECONDS = 30.0
# Runs in the daemon. SIGUSR1 sets the hook; the call of sendmsg that sends the start ends it.
HOOKED = """
import runpy, signal, sys
package, file, sys.argv = sys.argv[1], sys.argv[2], ["execd", *sys.argv[3:]]
seen = {}

def hook(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        if code.co_qualname.endswith("HttpConnection.data_received"):
            seen.setdefault("", None)
        if seen and not code.co_name.startswith("<"):
            seen.setdefault(f"{code.co_filename[len(package) + 1:]} {code.co_qualname}", None)
    elif event == "c_call" and seen and getattr(argument, "__name__", "") == "sendmsg":
        sys.setprofile(None)
        with open(file, "w") as out:
            out.write("\\n".join(filter(None, seen)))

signal.signal(signal.SIGUSR1, lambda *_: sys.setprofile(hook))
runpy.run_module("execd", run_name="__main__")
"""


def definitions() -> list[tuple[str, str]]:
    """Return (file below execd/, qualified name) of each definition, in the order of the calls."""
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as free:
        port, found = free.getsockname()[1], Path(directory, "found")
        free.close()
        Path(directory, "base").mkdir()
        options = ["--port", str(port), "--base-dir", "base", "--state-dir", "state"]
        hooked = [sys.executable, "-I", "-c", HOOKED, str(PACKAGE), str(found)]
        with subprocess.Popen(
            [*hooked, "serve", "--log-level", "error", *options], cwd=directory
        ) as daemon:
            try:
                for _ in range(WARM_UP):
                    _run_true(port)
                os.kill(daemon.pid, signal.SIGUSR1)
                _run_true(port)
            finally:
                daemon.terminate()
        lines = found.read_text().splitlines()
    return [(file, name) for file, name in (line.split(" ") for line in lines)]


def _run_true(port: int) -> None:
    request = urllib.request.Request(  # the daemon above
        f"http://127.0.0.1:{port}/execute",
        json.dumps({"command": "true"}).encode(),
        {"Content-Type": "application/json"},
    )
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request) as reply:
                assert json.load(reply)["exit_code"] == 0
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def as_markdown(found: list[tuple[str, str]]) -> str:
    files: dict[str, list[str]] = {}
    for file, name in found:
        files.setdefault(file, []).append(f"`{name}`")
    lines = [
        textwrap.fill(
            f"* `{file}`: {', '.join(names)}",
            100,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for file, names in files.items()
    ]
    return f"{len(found)} definitions in {len(files)} files:\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    text = as_markdown(definitions())
    print(text, end="")
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        block = re.escape(BEGIN) + ".*" + re.escape(END)
        PAGE.write_text(re.sub(block, lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
