from __future__ import annotations

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IMPORT_AS_THE_DAEMON = """
import sys
from execd import lean_imports
lean_imports.hide_tls()
lean_imports.halve_aiohttp()
with lean_imports.own_hashes():
    import execd.server
execd.server.load_api()
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules(program: str) -> set[str]:
    return set(run(program + "print(*(name for name in sys.modules if sys.modules[name]))").split())


def test_the_daemon_loads_neither_tls_nor_the_client_of_aiohttp_nor_click() -> None:
    loaded = modules("import execd.cli\n" + IMPORT_AS_THE_DAEMON)
    assert {"execd.server", "execd.api.routes", "aiohttp.web", "uvloop"} <= loaded
    unwanted = {
        *("ssl", "_ssl", "_hashlib", "aiohttp.client", "aiohttp.connector", "click"),
        *("aiohttp.cookiejar", "aiohttp.tracing", "google", "grpclib", "IPython"),
    }
    assert not loaded & unwanted


def test_the_first_use_of_the_client_of_aiohttp_loads_the_client() -> None:
    use = """
import aiohttp
from aiohttp import ClientSession, WSMsgType, hdrs, web
print(aiohttp.__version__, aiohttp.http.SERVER_SOFTWARE, ClientSession.__module__)
"""
    assert run(IMPORT_AS_THE_DAEMON + use) == run(use)


def test_hashes_of_callers_bytes_are_openssls() -> None:
    use = "import hashlib; print(hashlib.sha256().__class__.__module__)"
    assert run(IMPORT_AS_THE_DAEMON + use) == run(use)


def test_a_process_with_tls_keeps_tls() -> None:
    before = "import ssl, hashlib, aiohttp\n"
    after = "import ssl, hashlib\nprint(ssl.SSLContext, hashlib.sha256, aiohttp.ClientSession)"
    assert run(before + IMPORT_AS_THE_DAEMON + after) == run(before + after)
