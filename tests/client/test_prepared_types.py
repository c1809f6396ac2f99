"""The first results of a process, read in many threads at once."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from execd_client import Execd

PROGRAM = """
import sys, threading
import msgspec
from execd_client.results import result_of
N_THREADS = 8
fields = msgspec.json.decode(sys.stdin.buffer.read())
together = threading.Barrier(N_THREADS)
said = []
def read():
    together.wait()
    said.append(result_of(fields))
threads = [threading.Thread(target=read) for _ in range(N_THREADS)]
sys.setswitchinterval(1e-6)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(said) == N_THREADS
assert all(result == said[0] for result in said)
print(said[0].error.name)
"""
N_PROCESSES = 5


def test_many_threads_may_read_their_first_results_at_once(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        reply = msgspec.json.encode(session.run("1 / 0"))
    for _ in range(N_PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=reply, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (0, b"ZeroDivisionError\n"), done.stderr.decode()
