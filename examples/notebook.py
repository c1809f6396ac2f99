"""Run cells that share their state, show an error, and save a plot.

python examples/notebook.py [URL]     needs httpx, and matplotlib in the sandbox
"""

import base64
import sys
from pathlib import Path

import httpx

sandbox = httpx.Client(base_url=[*sys.argv, "http://127.0.0.1:8888"][1], timeout=None)


def run(code: str) -> dict:
    return sandbox.post("/v1/code", json={"session_id": "notebook", "code": code}).json()


run("squares = [n * n for n in range(10)]")
print("sum:", run("sum(squares)")["result"]["data"]["text/plain"])
print("error:", run("squares[10]")["error"]["value"])
plot = run("import matplotlib.pyplot as plt\nplt.plot(squares);")["displays"][0]
Path("squares.png").write_bytes(base64.b64decode(plot["data"]["image/png"]))
sandbox.delete("/v1/sessions/notebook")
