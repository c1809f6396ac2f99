"""Stream the output of a command, lose the connection, and go on where the stream broke off.

python examples/follow.py [URL]     needs httpx
"""

import base64
import itertools
import json
import sys

import httpx

sandbox = httpx.Client(base_url=[*sys.argv, "http://127.0.0.1:8888"][1], timeout=None)
run = {"command": "for i in 1 2 3 4 5; do echo step $i; sleep 0.1; done", "detach": True}
execution = sandbox.post("/v1/executions", json=run).json()
url = f"/v1/executions/{execution['id']}/events?encoding=base64"
sequence, received = 0, 0
for events_until_the_cut in (3, None):
    with sandbox.stream(
        "GET", f"{url}&after={sequence}", headers={"Accept": "application/x-ndjson"}
    ) as stream:
        lines = filter(None, stream.iter_lines())  # an empty line is a heartbeat
        for event in map(json.loads, itertools.islice(lines, events_until_the_cut)):
            sequence = event["sequence"]
            if event["event"] == "stdout":
                data = base64.b64decode(event["base64"])
                sys.stdout.buffer.write(data[max(0, received - event["offset"]) :])
                received = event["offset"] + len(data)
print("exit code", event["exit_code"])
