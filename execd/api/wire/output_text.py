"""The text of a stream in a reply, from what is kept of its bytes. Pure."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from execd.engine.output.log import Excerpt
    from execd.model import Truncation

UTF8_CONTINUATION_BYTES = 3
"""At most that many bytes of a character come after its first."""


def render(excerpt: Excerpt, *, ended: bool = True) -> tuple[str, Truncation | None]:
    """The text, UTF-8 with replacement, and what it leaves out. Not ``ended``: a character begun at
    its end may yet be completed.

    Where bytes are left out, a line of its own says how many. A character that the cut went through
    is left out whole, so that no replacement character appears which the program did not cause; the
    numbers count it in.
    """
    cut = excerpt.truncation
    if cut is None:
        return _decode(excerpt.head, ended), None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    head = decoder.decode(excerpt.head)
    head_excess = len(decoder.getstate()[0])
    tail_excess = 0
    while (
        tail_excess < min(UTF8_CONTINUATION_BYTES, len(excerpt.tail))
        and 0x80 <= excerpt.tail[tail_excess] < 0xC0
    ):
        tail_excess += 1
    tail = _decode(excerpt.tail[tail_excess:], ended)
    cut = msgspec.structs.replace(
        cut,
        head_bytes=cut.head_bytes - head_excess,
        omitted_bytes=cut.omitted_bytes + head_excess + tail_excess,
    )
    return append_line(head, f"[execd: {cut.omitted_bytes} bytes omitted]\n{tail}"), cut


def _decode(data: bytes, final: bool) -> str:
    if data.isascii():
        return data.decode("ascii")
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def append_line(text: str, line: str) -> str:
    """``text`` and then ``line``, with a line end between them unless there is one, or no text."""
    return text + ("" if not text or text.endswith("\n") else "\n") + line
