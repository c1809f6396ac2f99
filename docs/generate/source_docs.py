"""The docstrings under the fields of a class, and under the constants of a module. Python keeps
them in the source only."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import textwrap
from typing import TYPE_CHECKING

import msgspec

from docs.generate.markdown import paragraphs

if TYPE_CHECKING:
    from collections.abc import Iterable


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of ``cls``, in the order of the source. A field without
    a docstring has the docstring of the constant that is its annotation, or an empty text."""
    found = {}
    for name, docstring in _docstrings(_class_body(cls)).items():
        alias = str(cls.__annotations__.get(name, ""))
        [found[name]] = paragraphs(docstring or _constant_docs(cls.__module__).get(alias, ""))
    return found


@functools.cache
def _constant_docs(module: str) -> dict[str, str]:
    """Return the docstrings under the constants of a module, and under those that the module
    imports from modules of execd."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    found = _docstrings(body)
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("execd."):
            docs = _constant_docs(str(node.module))
            found |= {each.name: docs[each.name] for each in node.names if each.name in docs}
    return found


@functools.cache
def struct_docs(cls: type) -> dict[str, str]:
    """As ``field_docs``, with the fields of the bases too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= field_docs(base)
    return found


def docs_of(name: str) -> list[str]:
    """Return the paragraphs of the docstring under a constant (``module.NAME``) or under a field
    (``module:Class.field``)."""
    owner, _, last = name.rpartition(".")
    if ":" in owner:
        body: Iterable[ast.stmt] = _class_body(pkgutil.resolve_name(owner))
    else:
        body = ast.parse(inspect.getsource(pkgutil.resolve_name(owner))).body
    return paragraphs(_docstrings(body)[last])


def _class_body(cls: type) -> list[ast.stmt]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return tree.body


def _docstrings(body: Iterable[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    last = None
    for node in body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = ""
                last = name
            case ast.Expr(value=ast.Constant(value=str(text))) if last is not None:
                found[last] = text
                last = None
            case _:
                last = None
    return found
