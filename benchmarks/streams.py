"""Five hundred streams on a daemon: their cost to the probe, and their memory.

    python -m benchmarks.streams [--streams N] [--seconds S]

First all streams read the same program, with a numbered line ten times a second. Then each stream
has a separate program, with a line a second, since each line is a fork of the shell's. Beside the
streams GET / is asked every 10 ms. Server, programs and load generator share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import aiohttp

from benchmarks.servers import Place, Server

LINES_PER_SECOND = {False: 10, True: 1}
"""False: of the shared program. True: of each stream's separate program."""


async def read(session: aiohttp.ClientSession, request: str, url: str, body: bytes | None) -> int:
    """How many lines came."""
    async with session.request(
        request, url, data=body, headers={"Accept": "text/event-stream"}
    ) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.read()).count(b"event: stdout")


async def probe(session: aiohttp.ClientSession, url: str, into: list[float]) -> None:
    while True:
        began = time.perf_counter()
        async with session.get(url) as answer:
            await answer.read()
        into.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.01)


async def measure(server: Server, streams: int, seconds: int, *, own_programs: bool) -> None:
    url = f"http://127.0.0.1:{server.port}"
    pace = LINES_PER_SECOND[own_programs]
    lines = seconds * pace
    command = f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); sleep {1 / pace}; done"
    body = json.dumps({"command": command, "detach": not own_programs}).encode()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=seconds * 20)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        aiohttp.ClientSession() as other,
    ):
        idle = server.resident_mib()["server"]
        if own_programs:
            readers = [read(session, "POST", f"{url}/v1/executions", body) for _ in range(streams)]
        else:
            async with session.post(f"{url}/v1/executions", data=body) as answer:
                events = f"{url}/v1/executions/{(await answer.json())['id']}/events"
            readers = [read(session, "GET", events, None) for _ in range(streams)]
        began = time.perf_counter()
        times: list[float] = []
        asking = asyncio.create_task(probe(other, f"{url}/", times))
        counts = await asyncio.gather(*readers)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        gained = server.resident_mib()["server"] - idle
        took = time.perf_counter() - began
    shares = statistics.quantiles(times, n=100)
    what = "a program each" if own_programs else "one program"
    print(
        f"{streams} streams, {what}: {min(counts)} events at the least in {took:.1f} s;"
        f" GET / p50 {shares[49]:.1f} ms, p99 {shares[98]:.1f} ms; {gained:+.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=10)
    args = parser.parse_args()
    for own_programs in (False, True):
        with Place().serving("execd", f"--max-running={args.streams}") as server:
            asyncio.run(measure(server, args.streams, args.seconds, own_programs=own_programs))


if __name__ == "__main__":
    main()
