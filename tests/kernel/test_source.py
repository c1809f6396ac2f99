from __future__ import annotations

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.core.async_helpers import _should_be_async
from IPython.core.inputtransformer2 import TransformerManager

from execd.kernel.source import CellTransformer, may_contain_await

PIECES = [
    "a", "f", "1", "=", "==", "!=", "!", "!!", "%", "%%", "?", "??", ",", ";", "/",
    "(", ")", "[", "]", "{", "}", ":", ".", "@", " ", "    ", "\t", "\n", "\\\n",
    "#", "'", '"', "'''", '"""', "f'",
    "if ", "def ", "await ", "async ", "for ", "in ", "with ", "return", "lambda: ",
    "%time", "!ls", "\f", "\x0b", "\u2028", "\uff41", "\0", "\r",
    ">>> ", ">>>", "...", "... ", "...:", "In [1]: ", "In [1]", "[nav] In [2]: ", "1>", ">",
    ".", "..",
]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "transformed"),
    [
        ("%time 1", "get_ipython().run_line_magic('time', '1')\n"),
        ("x = %pwd", "x = get_ipython().run_line_magic('pwd', '')\n"),
        ("if x:\n    x = (\n      %pwd\n", None),
        ("x = !ls", "x = get_ipython().getoutput('ls')\n"),
        ("if x:\n  !ls", "if x:\n  get_ipython().system('ls')\n"),
        ("len?", "get_ipython().run_line_magic('pinfo', 'len')\n"),
        ("x = 1\n,f a b", 'x = 1\nf("a", "b")\n'),
        ("x = 1\n  ;f a b", None),
        ("/f a", "f(a)\n"),
        ("a = 7; b = a / 2, a", "a = 7; b = a / 2, a\n"),
    ],
)
def test_ipythons_own_syntax_is_found(cell: str, transformed: str | None) -> None:
    """``None`` expects the same text as from IPython."""
    expected = TransformerManager().transform_cell(cell) if transformed is None else transformed
    assert CellTransformer().transform_cell(cell) == expected


# IPython splits lines at U+2028 and the like.
@pytest.mark.filterwarnings("ignore:.make_tokens_by_line.:UserWarning")
@given(st.lists(st.sampled_from(PIECES)).map("".join))
@example("x = (\n# !\n%pwd)")
@example("if a:\n    b\n  c")
@example("#\r;")
@example("#\x0b,")
@example(">>> a\n... f")
@example("a\n>>> f")
@example("In [1]: a\n   ...: f")
@example("\n\na")
@example("'''\n \n'''")
@example("=%\\\n")
@example("if a:\n\tb\n\n\t1")
def test_any_cell_becomes_what_ipython_makes_of_it(cell: str) -> None:
    try:
        expected = TransformerManager().transform_cell(cell)
    except (SyntaxError, RuntimeError):
        # IPython's tokenizer refuses the cell. Without a reason to tokenize, Python's parser does.
        try:
            found = CellTransformer().transform_cell(cell)
        except (SyntaxError, RuntimeError):
            return
        with pytest.raises(SyntaxError):
            ast.parse(found)
    except IndexError:
        # A fault of IPython, in the search for `x = %magic`. run_cell shows the fault as an error.
        with pytest.raises(IndexError):
            CellTransformer().transform_cell(cell)
    else:
        assert CellTransformer().transform_cell(cell) == expected


def test_transformers_that_somebody_registers_are_asked() -> None:
    class Shout:
        @classmethod
        def find(cls, tokens_by_line: list[list[object]]) -> None:
            asked.append(tokens_by_line)

    asked: list[object] = []
    transformer = CellTransformer()
    transformer.token_transformers = [*transformer.token_transformers, Shout]
    transformer.transform_cell("x = 1")
    assert asked


@given(st.lists(st.sampled_from(PIECES)).map("".join))
@example("await f")
@example("[a async for a in f]")
@example("async with a: f")
@example("[await a for a in f]")
def test_a_cell_that_awaits_has_the_word_in_it(cell: str) -> None:
    assert may_contain_await(cell) or not _should_be_async(cell)
