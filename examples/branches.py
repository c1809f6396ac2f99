"""Prepare a session once, and try four ideas on four copies of the live state at the same time.

python examples/branches.py [URL]     needs httpx
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import httpx

sandbox = httpx.Client(base_url=[*sys.argv, "http://127.0.0.1:8888"][1], timeout=None)
prepare = {"session_id": "trunk", "code": "data = list(range(1_000_000))"}
sandbox.post("/v1/code", json=prepare).raise_for_status()
branches = sandbox.post("/v1/sessions/trunk/fork", json={"count": 4}).json()["sessions"]


def try_out(branch: dict, idea: str) -> str:
    url = f"/v1/sessions/{branch['id']}/execute"
    return sandbox.post(url, json={"code": f"print({idea})"}).json()["stdout"]


ideas = ["sum(data)", "max(data)", "data.clear()", "len(data)"]
with ThreadPoolExecutor() as threads:
    for idea, found in zip(ideas, threads.map(try_out, branches, ideas), strict=True):
        print(f"{idea}: {found}", end="")
for name in ["trunk", *(branch["id"] for branch in branches)]:
    sandbox.delete(f"/v1/sessions/{name}")
