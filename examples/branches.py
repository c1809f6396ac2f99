"""Prepare a session once, and try four ideas on four copies of the live state at the same time.

python examples/branches.py [URL]     needs execd-client
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from execd_client import Execd

ideas = ["sum(data)", "max(data)", "data.clear()", "len(data)"]
with Execd([*sys.argv, "http://127.0.0.1:8888"][1]) as sandbox, ThreadPoolExecutor() as threads:
    trunk = sandbox.sessions.create()
    trunk.run("data = list(range(1_000_000))")
    branches = trunk.fork(len(ideas))
    found = threads.map(lambda branch, idea: branch.run(f"print({idea})"), branches, ideas)
    for idea, cell in zip(ideas, found, strict=True):
        print(f"{idea}: {cell.stdout}", end="")
    for session in [trunk, *branches]:
        session.delete()
