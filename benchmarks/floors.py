"""The lower limits: starting ``/bin/sh -c true`` and waiting for the shell, and answering an HTTP
request with nothing.

python floors.py spawn          prints a line of JSON: milliseconds
python floors.py serve PORT     a bare aiohttp application on uvloop; only in execd's environment
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

COUNT = 300


def spawn() -> dict[str, float]:
    """posix_spawn is vfork and exec in C: no server that starts a shell per request can be
    faster."""
    taken = []
    for number in range(COUNT + 20):
        started = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "true"], {}), 0)
        if number >= 20:
            taken.append(time.perf_counter() - started)
    taken.sort()
    return {"p50_ms": statistics.median(taken) * 1000, "p95_ms": taken[int(COUNT * 0.95)] * 1000}


def serve(port: int) -> None:
    import uvloop
    from aiohttp import web

    async def root(_: web.Request) -> web.Response:
        return web.Response(body=b'{"status":"ok"}', content_type="application/json")

    async def make() -> web.Application:
        app = web.Application()
        app.router.add_get("/", root)
        return app

    web.run_app(
        make(),
        host="127.0.0.1",
        port=port,
        print=None,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        print(json.dumps(spawn()))
    else:
        serve(int(sys.argv[2]))
