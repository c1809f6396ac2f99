"""Imports of the server without parts of its libraries that execd does not use: TLS, OpenSSL, and
the client half of aiohttp. Together 8 MiB of memory.

execd speaks no TLS, but ``import ssl`` loads libssl and libcrypto. asyncio and aiohttp run on a
Python without ssl. Python has a documented way to have no such module: None in ``sys.modules``
(https://docs.python.org/3/reference/import.html#the-module-cache). uvloop alone needs names of ssl
at its import, for connections with TLS, and gets stand-ins.

hashlib prefers OpenSSL's functions. During the imports of the server it takes Python's own, which
hash a token or a page as fast. An ``import hashlib`` afterwards loads OpenSSL, 3.4 MiB: modules
that hash bytes of callers import hashlib in their functions.

``import aiohttp`` loads both halves of aiohttp. The package that stands in during the imports
loads submodules only, so ``aiohttp.web`` loads what it needs. The first use of any other name of
the package runs the package's own code.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec


OWN_HASHES = ("_md5", "_sha1", "_blake2", "_sha3")
"""Python's own implementations. A build may lack them."""


def hide_tls() -> None:
    """Import uvloop, and make further imports of ssl fail for the life of the process.

    Does nothing if ssl is imported already.
    """
    if "ssl" in sys.modules:
        return
    hidden: dict[str, Any] = sys.modules  # the type of the values does not know None
    hidden["ssl"] = None
    import asyncio  # noqa: F401  # takes None for ssl

    sys.modules["ssl"] = _TlsNames("ssl")
    try:
        import uvloop  # noqa: F401
    finally:
        hidden["ssl"] = None


class _TlsNames(ModuleType):
    """Stands in for ssl. Every name is there: a class, or a number if the name is a constant's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return -1 if name.isupper() else type(name, (OSError,), {})


@contextlib.contextmanager
def own_hashes() -> Iterator[None]:
    """Let hashlib be imported without OpenSSL; the next import gets another hashlib, with OpenSSL.

    Does nothing if hashlib is imported already, or if this Python has OpenSSL's functions only.
    """
    if "hashlib" in sys.modules or not all(map(importlib.util.find_spec, OWN_HASHES)):
        yield
        return
    hidden: dict[str, Any] = sys.modules
    hidden["_hashlib"] = None
    try:
        yield
    finally:
        del hidden["_hashlib"]
        hidden.pop("hashlib", None)


def halve_aiohttp() -> None:
    """Put a package in the place of ``aiohttp`` that loads submodules on demand.

    Does nothing if aiohttp is imported already.
    """
    if "aiohttp" not in sys.modules:
        spec = importlib.util.find_spec("aiohttp")
        assert spec is not None, "a dependency"
        sys.modules["aiohttp"] = _make_lazy(spec)


def _make_lazy(spec: ModuleSpec) -> ModuleType:
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _LazyPackage
    return package


class _LazyPackage(ModuleType):
    """A package whose own code runs when a name is missing."""

    def __getattr__(self, name: str) -> Any:
        assert self.__spec__ is not None
        if name == "__version__":  # for the header Server, which execd replaces
            return _version(self.__spec__)
        if name.startswith("__") or importlib.util.find_spec(f"{self.__name__}.{name}"):
            raise AttributeError(name)  # the import of a submodule goes on
        assert self.__spec__.loader is not None
        package: ModuleType = self
        package.__class__ = ModuleType
        self.__spec__.loader.exec_module(package)
        return getattr(package, name)


def _version(spec: ModuleSpec) -> str:
    assert spec.origin is not None
    with open(spec.origin) as code:
        found = re.search(r'^__version__ = "(.+)"$', code.read(), re.MULTILINE)
    if found is None:
        raise AttributeError("__version__")
    return found[1]
