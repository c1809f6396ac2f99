"""agent-sandbox's Go router, the real program, in front of a daemon.

EXECD_SANDBOX_ROUTER names the program. Its 30 s for the headers of an answer are scaled to 3 s.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from ..free_port import free_port
from .target import SLACK_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTER = os.environ.get("EXECD_SANDBOX_ROUTER", "")
HEADER_TIMEOUT_SECONDS = 3.0
LONG_SECONDS = 2 * HEADER_TIMEOUT_SECONDS

needs_router = pytest.mark.skipif(
    not ROUTER, reason="set EXECD_SANDBOX_ROUTER to the Go router's program"
)


@contextmanager
def routed(
    host: str, port: int, patience_seconds: float = HEADER_TIMEOUT_SECONDS
) -> Iterator[httpx.Client]:
    """Start a router for the block, and yield a client of the port behind the router.
    ``patience_seconds``: how long the router waits for the headers of an answer."""
    router_port = free_port()
    with ExitStack() as ends:
        router = ends.enter_context(
            subprocess.Popen(
                [
                    ROUTER,
                    f"--http-bind-address=127.0.0.1:{router_port}",
                    f"--metrics-bind-address=127.0.0.1:{free_port()}",
                    f"--health-probe-bind-address=127.0.0.1:{free_port()}",
                    f"--response-header-timeout={patience_seconds}s",
                    "--allow-loopback-pod-ip",
                ]
            )
        )
        ends.callback(router.kill)
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{router_port}",
            timeout=60 + SLACK_SECONDS,
            trust_env=False,
            headers={
                "X-Sandbox-ID": "sandbox",
                "X-Sandbox-Namespace": "default",
                "X-Sandbox-Port": str(port),
                "X-Sandbox-Pod-IP": host,
            },
        )
        ends.callback(client.close)

        def answers() -> bool:
            try:
                return client.get("/").status_code < 500
            except httpx.TransportError:
                return False

        wait_until(answers, 20, "the router answers")
        yield client
