"""A daemon behind agent-sandbox's Go router: the scripted router of ``scripted_routers``, and the
real program where EXECD_SANDBOX_ROUTER names the program. The router's 30 s for the headers of an
answer are 3 s here.

Go's reverse proxy cuts an answer that begins before the proxy has seen the end of the request
(https://github.com/golang/go/issues/40747): the proxy sends as many bytes as Content-Length says,
and then asks the client's connection for more; meanwhile the answer's headers close the request's
body, the question fails, and the proxy closes the connection to execd. On a starved machine an
answer that begins at once meets this race. ``RoutedClient.asked`` repeats such a request, and the
router's own log has to name the cut.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import httpx
import pytest

from ..client.proxies import serving
from ..free_port import free_port
from ..patience import patience
from .scripted_routers import GoRouter
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
ROUTER = os.environ.get("EXECD_SANDBOX_ROUTER", "")
HEADER_TIMEOUT_SECONDS = 3.0
LONG_SECONDS = 2 * HEADER_TIMEOUT_SECONDS

needs_router = pytest.mark.skipif(
    not ROUTER, reason="set EXECD_SANDBOX_ROUTER to the Go router's program"
)
KINDS = ["scripted", pytest.param("go", marks=needs_router)]

TRIES = 5
CUT = b"ReverseProxy read error during body copy"


class RoutedClient(httpx.Client):
    """A client of a port behind a router. ``router_log``: what the router has written."""

    router_log: BinaryIO

    def asked(self, ask: Callable[[], T]) -> T:
        """Ask, and ask again when the router has cut an answer that began early."""
        for _ in range(TRIES - 1):
            seen = self._n_cuts()
            try:
                return ask()
            except httpx.RemoteProtocolError:
                if self._n_cuts() == seen:
                    raise
        return ask()

    def _n_cuts(self) -> int:
        self.router_log.seek(0)
        return self.router_log.read().count(CUT)


@contextmanager
def routed(
    kind: str, host: str, port: int, patience_seconds: float = HEADER_TIMEOUT_SECONDS
) -> Iterator[RoutedClient]:
    """Start a router for the block, and yield a client of the port behind the router.
    ``patience_seconds``: how long the router waits for the headers of an answer."""
    with ExitStack() as ends:
        log = ends.enter_context(tempfile.TemporaryFile())
        client = RoutedClient(
            timeout=patience.seconds(60),
            trust_env=False,
            headers={
                "X-Sandbox-ID": "sandbox",
                "X-Sandbox-Namespace": "default",
                "X-Sandbox-Port": str(port),
                "X-Sandbox-Pod-IP": host,
            },
        )
        client.router_log = log
        ends.callback(client.close)
        if kind == "scripted":
            router = ends.enter_context(serving(GoRouter(patience_seconds)))
            client.base_url = f"http://127.0.0.1:{router.port}"
            yield client
            return
        # Another test may take a port between the choice and the router's bind; then the router
        # ends.
        while not _begin_router(ends, client, patience_seconds):
            log.seek(0)
            assert b"address already in use" in log.read()
            log.seek(0)
            log.truncate()
        yield client


def _begin_router(ends: ExitStack, client: RoutedClient, patience_seconds: float) -> bool:
    """Start a router that the end of ``ends`` ends. Return whether the router has got its ports."""
    port = free_port()
    client.base_url = f"http://127.0.0.1:{port}"
    router = ends.enter_context(
        subprocess.Popen(
            [
                ROUTER,
                f"--http-bind-address=127.0.0.1:{port}",
                f"--metrics-bind-address=127.0.0.1:{free_port()}",
                f"--health-probe-bind-address=127.0.0.1:{free_port()}",
                f"--response-header-timeout={patience_seconds}s",
                "--allow-loopback-pod-ip",
            ],
            stderr=client.router_log,
        )
    )
    ends.callback(router.kill)

    def answers() -> bool:
        try:
            return client.get("/").status_code < 500
        except httpx.TransportError:
            return False

    wait_until(
        lambda: router.poll() is not None or answers(), 60, "the router answers or has ended"
    )
    return router.poll() is None
