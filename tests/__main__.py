"""Run a tier of the tests, part by part, and tell all failures at the end.

    python -m tests [clients] [--processes N]

Without an argument: what `make test` runs, all tests that need the extra `test` and nothing else.
`clients`: the tests marked `third_party`, for which `make test-clients` has installed the packages
of SDKs, frameworks and data work.

Each part is a run of pytest. Engines run inside the tests' own processes, and an engine would take
a daemon that the same process has started for a leftover; so the tests that start daemons are a
part of their own. The tests marked `alone` or `timed` judge the memory or the time of the whole
machine, so nothing runs beside them.

Each pytest has a session (setsid) of its own. A terminal that closes ends no part of a run under
nohup, and a Ctrl-C reaches pytest once, from here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Most tests wait most of the time: six processes keep two CPUs busy. tests/guards.py puts the
# files in order.
PROCESSES = 6
DAEMONS = [
    f"tests/{name}"
    for name in (
        *("client", "conformance", "dialects", "model", "soak"),
        *("test_examples.py", "test_guide.py", "test_reference.py", "test_wings_page.py"),
    )
]


def parts(tier: str, n_processes: int) -> dict[str, list[str]]:
    """The arguments of pytest for each part, by the name of the part."""
    at_once = [f"--numprocesses={n_processes}", "--dist=loadfile", "--no-loadscope-reorder"]
    ignored = [f"--ignore={path}" for path in DAEMONS]
    if tier == "clients":
        return {"third parties": [*at_once, "-m", "third_party"]}
    return {
        "parts of execd": [*at_once, "-m", "not third_party and not alone and not timed", *ignored],
        "daemons": [*at_once, "-m", "not third_party and not alone and not timed", *DAEMONS],
        "alone": ["-m", "not third_party and (alone or timed)"],
    }


def run(arguments: list[str], record: Path) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "EXECD_TEST_RECORD": str(record)},
        start_new_session=True,
    )
    try:
        return process.wait()
    except BaseException:
        # A Ctrl-C (KeyboardInterrupt) or a signal (SystemExit): pytest ends its fixtures' daemons.
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=30)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failures(record: Path) -> list[str]:
    found = []
    # The last line of a pytest that was killed may be cut off.
    for line in re.findall(r"^\{.*\}$", record.read_text(), re.MULTILINE):
        phase = json.loads(line)
        if phase["outcome"] == "failed":
            first, *_rest = phase["reason"].splitlines() or [""]
            found.append(f"{phase['test']} ({phase['phase']}): {first}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests")
    parser.add_argument("tier", nargs="?", choices=["test", "clients"], default="test")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    with tempfile.TemporaryDirectory() as folder:
        record = Path(os.environ.get("EXECD_TEST_RECORD", f"{folder}/record"))
        record.touch()
        exit_codes = {}
        for name, arguments in parts(options.tier, options.processes).items():
            print(f"== {name}", flush=True)
            exit_codes[name] = run(arguments, record)
        failed = failures(record)
    broken = [f"{name}: pytest ended with {code}" for name, code in exit_codes.items() if code]
    print("\n== all parts:", "failed" if broken else "passed")
    for line in [*broken, *failed]:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
