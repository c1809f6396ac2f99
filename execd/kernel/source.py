"""What IPython does to a cell's text before Python reads it, and not more often than the text gives
reason to.

IPython tokenizes each cell, in Python, to look for its own syntax (magics, ``!``, ``?``, escapes at
the beginning of a line), and compiles it once more to learn whether it awaits. For most cells a
look at the characters says as much: a cell of a hundred lines runs a few milliseconds earlier for
it. Where the characters are there the question is IPython's.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import TransformerManager

# Where a line begins, any of ESCAPE_SINGLES; of these ``%`` and ``!`` also after an ``=``, ``?``
# also at the end.
_ANYWHERE = re.compile("[%!?]")
_AT_THE_BEGINNING = (",", ";", "/")
_OWN_TRANSFORMERS = TransformerManager().token_transformers


class CellTransformer(TransformerManager):
    """IPython's, and as exact: others that are registered are asked as ever."""

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """``lines`` in Python's syntax only."""
        is_special = any(
            _ANYWHERE.search(line) or line.lstrip().startswith(_AT_THE_BEGINNING) for line in lines
        )
        if self.token_transformers == _OWN_TRANSFORMERS and not is_special:
            return lines
        transformed: list[str] = super().do_token_transforms(lines)
        return transformed


def may_contain_await(cell: str) -> bool:
    """Whether there can be a top-level ``await`` in it, or an ``async for`` or ``with``."""
    return "await" in cell or "async" in cell
