"""Imports of the server without the parts of its libraries that execd does not use: TLS, OpenSSL,
and the client half of aiohttp. Together 8 MiB of memory and an eighth of the start.

execd speaks no TLS, but ``import ssl`` loads libssl and libcrypto. asyncio and aiohttp run on a
Python without ssl. Python has a documented way to have no such module: None in ``sys.modules``
(https://docs.python.org/3/reference/import.html#the-module-cache). uvloop alone needs names of ssl
at its import, for connections with TLS, and gets stand-ins.

hashlib prefers OpenSSL's functions. During the imports of the server it takes Python's own, which
hash a token or a page as fast. An ``import hashlib`` afterwards loads OpenSSL: modules that hash
bytes of callers import hashlib in their functions.

``import aiohttp`` loads both halves of aiohttp. The package that stands in during the imports
loads submodules only, so ``aiohttp.web`` loads what it needs. The first use of any other name of
the package runs the package's own code.

aiohttp and yarl import functions of modules that a server hardly ever calls: argparse,
urllib.request, html (all entities) and idna (tables of letters). Functions that import the module
when they are called stand in.

aiohttp takes attrs for its records (0.9 MiB), and aiohttp and msgspec take typing_extensions (0.5
MiB), for names that typing has too, and for the defaults of type variables, which mean nothing at
run time. dataclasses and typing stand in. For a name that a stand-in lacks, the stand-in gives its
place to the module itself.

shutil imports the compressors bz2 and lzma, for archives that execd does not make with shutil (0.3
MiB, most of that the libraries).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import re
import sys
import typing
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec

CALLED_LATE = ("argparse", "html", "idna", "urllib.request")
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
def lean() -> Iterator[None]:
    """Import by ``late_calls``, ``own_hashes``, ``plain_types`` and ``no_compressors`` in the
    block."""
    with late_calls(), own_hashes(), plain_types(), no_compressors():
        yield


@contextlib.contextmanager
def late_calls() -> Iterator[None]:
    """Let each function that is imported from CALLED_LATE import its module when it is called.

    A module that is imported already stays as it is.
    """
    stand_ins = [name for name in CALLED_LATE if name not in sys.modules]
    sys.modules.update({name: _LateModule(name) for name in stand_ins})
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _LateModule(ModuleType):
    """Stands in for a module of which only functions are imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__

        def call(_stand_in: type, *arguments: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*arguments, **options)

        # A class, because the name may be a class's, and another version may derive from it.
        return type(name, (), {"__new__": call})


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


@contextlib.contextmanager
def plain_types() -> Iterator[None]:
    """Let the records of attrs be dataclasses, and type variables have no default.

    A module that is imported already stays as it is.
    """
    stand_ins: dict[str, ModuleType] = {
        module.__name__: module
        for module in (
            _PartModule("attr", s=_record),
            _PartModule(
                "typing_extensions",
                TypeVar=_without_default(typing.TypeVar),
                TypeVarTuple=_without_default(typing.TypeVarTuple),
                NotRequired=typing.NotRequired,
                Required=typing.Required,
                get_type_hints=typing.get_type_hints,
            ),
        )
        if module.__name__ not in sys.modules
    }
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _PartModule(ModuleType):
    """Stands in for a module of which ``parts`` are used. Another name loads the module."""

    def __init__(self, name: str, **parts: Any) -> None:
        super().__init__(name)
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(self.__name__), name)


def _load(name: str) -> ModuleType:
    """Import the module itself. A stand-in gives its place up."""
    if isinstance(sys.modules.get(name), _PartModule):
        del sys.modules[name]
    return importlib.import_module(name)


def _record(*classes: type, auto_attribs: bool = False, **options: bool) -> Any:
    """``attr.s``, for records whose fields are annotations alone."""
    is_loaded = not isinstance(sys.modules.get("attr"), _PartModule)
    if (
        is_loaded
        or classes
        or not auto_attribs
        or not options.keys() <= {"frozen", "slots", "repr"}
    ):
        return _load("attr").s(*classes, auto_attribs=auto_attribs, **options)
    return dataclasses.dataclass(**options)


def _without_default(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(name: str, *bounds: Any, default: object = None, **options: Any) -> Any:
        return kind(name, *bounds, **options)

    return make


@contextlib.contextmanager
def no_compressors() -> Iterator[None]:
    """Let modules be imported as if this Python had neither bz2 nor lzma.

    Modules that read archives are not for this block: zipfile would refuse such members for ever.
    """
    hidden: dict[str, Any] = sys.modules
    absent = [name for name in ("bz2", "lzma") if name not in sys.modules]
    hidden.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        assert "zipfile" not in sys.modules or not absent
        for name in absent:
            del hidden[name]


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
