"""Files as text: some lines of a file, and the replacement of a text in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from execd.errors import PayloadTooLarge
from execd.model import Precondition

if TYPE_CHECKING:
    from execd.engine.files.service import Files
    from execd.engine.files.transfers import OpenedFile

READ_AT_ONCE_BYTES = 1 << 20
MAX_TEXT_BYTES = 64 << 20
"""Size of a file for a replacement, and of the lines of one reply. More are 413.

Both are in memory as a whole."""


class Replacement(NamedTuple):
    """What to replace in a file."""

    old: bytes
    new: bytes


async def replace_text(files: Files, path: str, replacement: Replacement) -> int:
    """Replace each occurrence of ``old``, from left to right, and return the number of
    occurrences. The file is replaced in one step, and keeps its permission bits.

    Raises NotFound, PayloadTooLarge (before or after the replacement), PreconditionFailed (somebody
    else has changed the file meanwhile), and the errors of ``Files.create``.
    """
    assert replacement.old
    async with await files.open(path) as file:
        _refuse_size(path, file.size_bytes)
        content = bytearray()
        while data := await file.read(len(content), READ_AT_ONCE_BYTES):
            content += data
            _refuse_size(path, len(content))
        etag = file.etag
    old, new = replacement
    count = await files.run(lambda: content.count(old))
    if not count:
        return 0
    _refuse_size(path, len(content) + count * (len(new) - len(old)))
    changed = await files.run(lambda: bytes(content.replace(old, new)))
    unchanged_since = Precondition(match=frozenset((etag,)))
    async with await files.create(path, precondition=unchanged_since) as upload:
        await upload.write(changed)
        await upload.commit()
    return count


async def read_lines(file: OpenedFile, first: int, count: int | None) -> bytes:
    """Return ``count`` lines (None: all) from line number ``first`` on, 1 for the first line,
    without their line ends and joined by newlines. Raises PayloadTooLarge."""
    assert first >= 1
    assert count is None or count >= 1
    wanted = bytearray()
    skips, takes, offset = first - 1, count, 0
    while data := await file.read(offset, READ_AT_ONCE_BYTES):
        offset += len(data)
        if skips:
            at, skips = _after_lines(data, skips)
            data = data[at:]
        if takes is not None:
            at, takes = _after_lines(data, takes)
            data = data[:at]
        wanted += data
        _refuse_size(file.name, len(wanted))
        if takes == 0:
            break
    lines = bytes(wanted).split(b"\n")
    if lines[-1] == b"":
        lines.pop()  # behind the last line end
    return b"\n".join(line.removesuffix(b"\r") for line in lines)


def _after_lines(data: bytes, count: int) -> tuple[int, int]:
    """Return the place behind the next ``count`` line ends in ``data``, and the number of line ends
    that ``data`` lacks."""
    at = 0
    while count:
        found = data.find(b"\n", at)
        if found < 0:
            return len(data), count
        at, count = found + 1, count - 1
    return at, 0


def _refuse_size(path: str, size_bytes: int) -> None:
    if size_bytes > MAX_TEXT_BYTES:
        raise PayloadTooLarge(
            f"{path!r}: as text at most {MAX_TEXT_BYTES} bytes are handled; read or write the file "
            "in pieces"
        )
