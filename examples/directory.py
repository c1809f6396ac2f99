"""Send a directory up, run a command in the directory, and fetch the directory of the results.

python examples/directory.py SOURCE RESULTS [URL]     needs httpx
"""

import io
import sys
import tarfile
import zipfile

import httpx

source, results, url = [*sys.argv[1:], "http://127.0.0.1:8888"][:3]
sandbox = httpx.Client(base_url=url, timeout=None)
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    tar.add(source, arcname=".")
sandbox.put("/v1/archive/job?format=tar.gz", content=packed.getvalue()).raise_for_status()
run = {"command": "mkdir -p results && wc -w *.txt > results/words.txt", "cwd": "job"}
print("exit code", sandbox.post("/v1/executions", json=run).json()["exit_code"])
reply = sandbox.get("/v1/archive/job/results?format=zip").raise_for_status()
# A zip: zipfile keeps every entry inside the target; tarfile does so from Python 3.11.4 on only.
zipfile.ZipFile(io.BytesIO(reply.content)).extractall(results)
