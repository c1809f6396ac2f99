"""Stands in for OpenSandbox's lifecycle server, which the SDK asks for nothing but the address of
the sandbox's daemon. All requests but these go to the daemon itself."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


def begin(daemon: str, token: str | None) -> str:
    """Start the stand-in for a daemon at HOST:PORT; return the stand-in's own HOST:PORT. The end of
    the process ends the stand-in."""
    headers = {} if token is None else {"X-EXECD-ACCESS-TOKEN": token}
    reply = json.dumps({"endpoint": daemon, "headers": headers}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path.startswith("/v1/sandboxes/sandbox-1/endpoints/")
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            """The driver's output is its results."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"
