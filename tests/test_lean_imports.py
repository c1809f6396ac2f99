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
with lean_imports.lean():
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
        *("argparse", "urllib.request", "http.client", "html", "idna", "difflib"),
        *("attr", "typing_extensions", "bz2", "lzma"),
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


def test_functions_that_are_called_late_are_the_modules_own() -> None:
    use = """
import aiohttp.helpers, aiohttp.web, argparse, os, urllib.request
os.environ["http_proxy"] = "http://proxy:1"
print(aiohttp.helpers.getproxies(), type(aiohttp.web.ArgumentParser(prog="x")))
assert urllib.request.getproxies() == aiohttp.helpers.getproxies()
print(aiohttp.web_urldispatcher.html_escape("<&"))
from yarl import URL
print(URL("http://b\u00fccher.example/").raw_host, URL("http://xn--bcher-kva.example/").host)
"""
    assert run(IMPORT_AS_THE_DAEMON + use) == run(use)


def test_the_records_of_aiohttp_are_what_attrs_makes() -> None:
    use = """
from aiohttp import web
from aiohttp.helpers import ETag, MimeType, parse_mimetype
print(web.get("/", print), ETag("a") == ETag("a", False), hash(ETag("a")) == hash(ETag("a")))
print(ETag("a", is_weak=True), parse_mimetype("text/plain; charset=utf-8"))
try:
    ETag("a").value = "b"
except AttributeError:
    print("frozen")
print(web.FileField("n", "f", None, "c", None), web.WebSocketResponse[bool])
"""
    assert run(IMPORT_AS_THE_DAEMON + use) == run(use)


def test_records_with_other_options_are_those_of_attrs() -> None:
    use = """
import attr
@attr.s(auto_attribs=True, order=False)
class A:
    x: int = 1
@attr.s
class B:
    x = attr.ib(default=2)
@attr.s(auto_attribs=True, frozen=True)
class C:
    x: int = attr.ib(default=3)
print(*(attr.asdict(each()) for each in (A, B, C)))
"""
    lean = "\n".join(["import execd.lean_imports as l", "with l.plain_types():"])
    inside = lean + use.replace("\n", "\n    ")
    assert run(inside) == run(use)


def test_the_client_of_aiohttp_can_be_loaded_among_the_imports() -> None:
    use = """
import aiohttp.client, attr
print(attr.evolve(aiohttp.client.ClientTimeout(), total=1.0).total)
"""
    lean = "import execd.lean_imports as l\nl.halve_aiohttp()\nwith l.lean():"
    assert run(lean + use.replace("\n", "\n    ")) == run(use)


def test_attrs_and_typing_extensions_are_the_real_modules_afterwards() -> None:
    use = """
import aiohttp.helpers, attr, typing_extensions
print(attr.s.__module__, attr.evolve.__module__, typing_extensions.TypeVar.__module__)
print(aiohttp.helpers.attr.evolve.__module__)
"""
    assert run(IMPORT_AS_THE_DAEMON + use) == run(use)


def test_a_process_with_tls_keeps_tls() -> None:
    before = "import ssl, hashlib, aiohttp\n"
    after = "import ssl, hashlib\nprint(ssl.SSLContext, hashlib.sha256, aiohttp.ClientSession)"
    assert run(before + IMPORT_AS_THE_DAEMON + after) == run(before + after)
