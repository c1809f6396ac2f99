"""Writes the blocking and the async client from ``sources/``.

    python clients/python/generator/blocking.py            writes the files anew
    python clients/python/generator/blocking.py --check    exits with 1 if a file is old

All decisions are in the plans, which both clients share; the two clients differ in ``await`` only.
The wheel has the docstrings once, in the blocking client: importing ``execd_client``
gives the docstrings to the async client too.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from formatting import formatted

SOURCES = Path(__file__).parent / "sources"
PACKAGE = Path(__file__).parents[1] / "execd_client"
PAIRS = {"aio.py": "blocking.py", "terminal_async.py": "terminal_blocking.py"}
HEADER = '"""Generated from ``generator/sources/{}`` by ``generator/blocking.py``."""\n\n'
WORDS = [
    (r"async def", "def"),
    (r"async (with|for)", r"\1"),
    # First the awaits in parentheses of their own: print((await f()).x).
    (r"\(await ((?:[\w.]+)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\)\.", r"\1."),
    (r"await ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"drive_async", "drive_blocking"),
    (r"terminal_async", "terminal_blocking"),
    (r"websockets\.asyncio", "websockets.sync"),
    (r"enter_async_context", "enter_context"),
    (r"\.aclose\(", ".close("),
    (r"httpx\.Async(\w+)", r"httpx.\1"),
]


def parts_of(name: str) -> str:
    """The source behind its docstring."""
    head, _, rest = (SOURCES / name).read_text().partition('"""\n\n')
    assert head.startswith('"""'), "the file begins with a docstring of one paragraph"
    return rest


def blocking_text(name: str) -> str:
    rest = parts_of(name)
    for pattern, replacement in WORDS:
        rest = re.sub(pattern, replacement, rest)
    return formatted(HEADER.format(name) + rest, PACKAGE / PAIRS[name])


def async_text(name: str) -> str:
    rest = parts_of(name)
    lines = rest.splitlines(keepends=True)
    described = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    docstrings = [
        node.body[0]
        for node in ast.walk(ast.parse(rest))
        if isinstance(node, described) and ast.get_docstring(node) and len(node.body) > 1
    ]
    for found in sorted(docstrings, key=lambda node: node.lineno, reverse=True):
        lines[found.lineno - 1 : found.end_lineno] = []
    return formatted(HEADER.format(name) + "".join(lines), PACKAGE / name)


def main() -> int:
    is_old = 0
    for source, target in PAIRS.items():
        for name, text in ((source, async_text(source)), (target, blocking_text(source))):
            if "--check" in sys.argv:
                is_old |= text != (PACKAGE / name).read_text()
            else:
                (PACKAGE / name).write_text(text)
    return is_old


if __name__ == "__main__":
    sys.exit(main())
