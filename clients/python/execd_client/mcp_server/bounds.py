"""What fits into an answer, and words about the rest. No I/O here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execd_client.models import StreamTruncation

STREAM_BYTES = 16_000
"""Output of one stream in one answer: about 4,000 tokens."""
FILE_BYTES = 32_000
"""Content of one file in one answer."""
LINES = 200
"""Entries of a list in one answer."""
LINE_CHARACTERS = 300
"""Of one found line in one answer."""
IMAGE_BYTES = 600_000
"""All images of one answer. As base64 they fit into one event of 1 MiB, the SDK's limit."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Control sequences of terminals: ECMA-48, 5.4."""


def text_of(content: bytes) -> str:
    """UTF-8 without the colours of terminals."""
    return ESCAPES.sub("", content.decode("utf-8", "replace"))


def character_start(content: bytes, place: int) -> int:
    """The place, or the start of the UTF-8 character around the place."""
    start = place
    while place - start < 4 and 0 < start < len(content) and content[start] & 0xC0 == 0x80:
        start -= 1
    return start


def output(name: str, content: bytes, truncation: StreamTruncation | None, job_id: str) -> str:
    """A stream of a job as a paragraph: whole, or the head, a line about the middle, the tail."""
    if not content:
        return ""
    half = STREAM_BYTES // 2
    if len(content) > STREAM_BYTES:
        end = character_start(content, half)
        tail = character_start(content, len(content) - half)
        missing = tail - end
        if truncation is not None:
            end = min(end, character_start(content, truncation.head_bytes))
            missing = (truncation.total_bytes or 0) - end - (len(content) - tail)
        middle = _missing(missing, name, end, job_id)
        shown = f"{text_of(content[:end])}\n{middle}\n{text_of(content[tail:])}"
    else:
        shown = text_of(content)
        if truncation is not None:
            where = _missing(truncation.omitted_bytes or 0, name, truncation.head_bytes, job_id)
            shown = f"{shown.rstrip()}\n{where}"
    return f"{name}:\n{shown.rstrip()}"


def _missing(n_bytes: int, stream: str, start: int, job_id: str) -> str:
    number = f"{n_bytes} bytes" if n_bytes > 0 else "some bytes"
    return (
        f"[{number} of {stream} are left out here: read_job with job_id={job_id!r}, "
        f"stream={stream!r}, start_byte={start} shows them]"
    )


def lines(found: list[str], rest: str) -> str:
    """A list, one entry a line. ``rest`` says how to see entries that do not fit."""
    shown = found[:LINES]
    if len(found) > len(shown):
        shown.append(f"[{len(found) - len(shown)} more are left out: {rest}]")
    return "\n".join(shown)


class Part:
    """The lines of a file from ``start_line`` on, at most ``max_lines`` lines and FILE_BYTES."""

    def __init__(self, start_line: int, max_lines: int) -> None:
        self._start, self._end = start_line, start_line + max_lines
        self._line = 1
        self._taken = bytearray()
        self.is_full = False

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the file."""
        for fragment in re.findall(rb"[^\n]*\n|[^\n]+", piece):
            if self._line >= self._end or len(self._taken) > FILE_BYTES:
                self.is_full = True
                return
            if self._line >= self._start:
                self._taken += fragment
            if fragment.endswith(b"\n"):
                self._line += 1

    def text(self, path: str) -> str:
        """The lines, and words about the rest."""
        if not self._taken and self._line < self._start:
            return f"[{path} has no line {self._start}: its last line is {self._line}]"
        content = bytes(self._taken)
        if len(content) > FILE_BYTES:
            self.is_full = True
            end = content.rfind(b"\n", 0, FILE_BYTES) + 1
            if not end:
                content = content[: character_start(content, FILE_BYTES)]
                rest = f"sed -n {self._start}p {path} | cut -b {len(content) + 1}-"
                return (
                    f"{content.decode('utf-8', 'replace')}\n[line {self._start} goes on: "
                    f"run_command with `{rest}`; the next line is start_line={self._start + 1}]"
                )
            content = content[:end]
        text = content.decode("utf-8", "replace")
        if not self.is_full:
            return text or "[the file is empty]"
        last = self._start + content.count(b"\n") - 1
        return f"{text}[lines {self._start} to {last}; the file goes on at start_line={last + 1}]"
