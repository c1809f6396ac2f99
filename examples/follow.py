"""Start a command that keeps running, follow the output, and come back after a lost connection.
Standard library only.

python3 examples/follow.py [URL]
"""

from __future__ import annotations

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8888"


def call(
    path: str, body: dict[str, object] | None = None, **headers: str
) -> urllib.request.Request:
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(URL + path, data, {"Content-Type": "application/json", **headers})


def main() -> None:
    body = {"command": "for i in 1 2 3 4 5; do echo step $i; sleep 0.1; done", "detach": True}
    with urllib.request.urlopen(call("/v1/executions", body)) as reply:
        execution = json.load(reply)
    last = 0
    for lines_until_the_line_breaks in (2, 1_000_000):
        path = f"/v1/executions/{execution['id']}/events?after={last}"
        with urllib.request.urlopen(call(path, Accept="application/x-ndjson")) as stream:
            for count, line in enumerate(filter(bytes.strip, stream), start=1):
                event = json.loads(line)
                last = event["sequence"]
                print(
                    event.get("text") or f"[{event['event']}]", end="" if "text" in event else "\n"
                )
                if count == lines_until_the_line_breaks:
                    print("[the connection is lost, and made again]")
                    break


main()
