"""The text of a stream in a reply, from the kept bytes. Pure."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from execd.engine.output.log import Excerpt
    from execd.model import Truncation


class OmittedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a stream that the reply does not have."""

    total_bytes: int
    """The bytes of the whole stream."""
    head_bytes: int
    """The bytes before the omitted ones."""
    omitted_bytes: int
    """The number of omitted bytes."""


UTF8_CONTINUATION_BYTES = 3
"""Most bytes of a character after the first byte."""


def render(excerpt: Excerpt, *, ended: bool = True) -> tuple[str, Truncation | None]:
    """Decode as UTF-8 with replacement characters. Return the text, and the numbers of a
    truncation. ``ended``: the stream is complete, so a cut last character stays cut.

    A line in the text says how many bytes are omitted. A character that the truncation cuts is
    omitted whole and counted as omitted: every replacement character in the text comes from the
    program's own bytes.
    """
    cut = excerpt.truncation
    if cut is None:
        assert not excerpt.tail
        return _decode(excerpt.head, ended), None
    assert cut.head_bytes == len(excerpt.head)
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
    """Return ``text`` followed by ``line`` on a line of its own."""
    return text + ("" if not text or text.endswith("\n") else "\n") + line
