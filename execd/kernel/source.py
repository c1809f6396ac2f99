"""Transformation of a cell's text from IPython's syntax to Python's; plain Python cells skip it.

IPython strips prompts and indentation from each cell, tokenizes the cell, in Python code, to find
IPython's syntax (magics, ``!``, ``?``, escapes at the beginning of a line), and compiles the cell a
second time to find a top-level ``await``. Most cells contain none of the characters involved, and a
search for the characters costs nearly nothing: a cell of a hundred lines starts a few milliseconds
earlier. If the search finds a character, IPython decides.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

# IPython's escapes at the beginning of a line (inputtransformer2.ESCAPE_SINGLES). ``%`` and ``!``
# also count after an ``=``, and ``?`` at the end of a line, so IPython decides wherever they stand.
_ANYWHERE = re.compile("[%!?]")
_AT_THE_BEGINNING = (",", ";", "/")
# Text that IPython may change: IPython's syntax, whitespace at the beginning or alone in a line
# (``textwrap.dedent``), and prompts. Control characters and characters beyond ASCII count as well,
# because IPython ends lines at some of them.
_MAY_CHANGE = re.compile(
    r"[^\t\n -~]|[%!?]|\A\s|^[ \t]*[,;/]|^[ \t]+$|>>>|\.\.\.|In \[", re.MULTILINE
)
_OWN_TRANSFORMERS = TransformerManager().token_transformers


def _text_transforms(manager: TransformerManager) -> list[Any]:
    """Return the transformations before the search for IPython's syntax."""
    return [*manager.cleanup_transforms, *manager.line_transforms]


_OWN_TEXT_TRANSFORMS = _text_transforms(TransformerManager())


class CellTransformer(TransformerManager):
    """IPython's transformer with shortcuts. Transformers registered by user code disable the
    shortcuts."""

    def transform_cell(self, cell: str) -> str:
        """Return ``cell`` as Python, with a line feed at the end."""
        if (
            cell
            and not _MAY_CHANGE.search(cell)
            and self.token_transformers == _OWN_TRANSFORMERS
            and _text_transforms(self) == _OWN_TEXT_TRANSFORMS
        ):
            return cell if cell.endswith("\n") else f"{cell}\n"
        return str(super().transform_cell(cell))

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Return ``lines`` with IPython's syntax replaced by Python's."""
        is_special = any(
            _ANYWHERE.search(line) or line.lstrip().startswith(_AT_THE_BEGINNING) for line in lines
        )
        if self.token_transformers == _OWN_TRANSFORMERS and not is_special:
            return lines
        transformed: list[str] = super().do_token_transforms(lines)
        return transformed


def may_contain_await(cell: str) -> bool:
    """Return False if the cell surely has no ``await``, ``async for`` or ``async with``."""
    return "await" in cell or "async" in cell
