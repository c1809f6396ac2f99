"""Second readers of the same formats: slow, one byte or one line at a time, without a regular
expression or a column. A target compares each answer of execd with the answer of its second reader.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLANKS = b" \t\n\r\x0b\x0c"
T = TypeVar("T")


def answer(read: Callable[[], T], *refusals: type[Exception]) -> T | str:
    """What ``read`` returns, or "refused"."""
    try:
        return read()
    except refusals:
        return "refused"


# Content-Type.


def boundary(header: bytes) -> bytes | None:
    """
    :raises ValueError: a form without a boundary.
    """
    kind = header.split(b";")[0]
    if kind.strip().lower() != b"multipart/form-data":
        return None
    for name, value in _parameters(header[len(kind) :]):
        if name.lower() == b"boundary":
            if not value:
                break
            return value
    raise ValueError("no boundary")


def _skip(text: bytes, at: int, what: bytes) -> int:
    while at < len(text) and text[at] in what:
        at += 1
    return at


def _parameters(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(text):
        start = at
        at += 1
        if text[start : start + 1] != b";":
            continue
        name_at = name_end = _skip(text, start + 1, BLANKS)
        while name_end < len(text) and text[name_end] not in BLANKS + b"=;":
            name_end += 1
        equals = _skip(text, name_end, BLANKS)
        if name_end == name_at or text[equals : equals + 1] != b"=":
            continue
        value_at = _skip(text, equals + 1, BLANKS)
        at = _quoted_end(text, value_at)
        if at == value_at:
            at = text.find(b";", value_at)
            at = len(text) if at < 0 else at
        yield text[name_at:name_end], _unquoted(text[value_at:at].strip())


def _quoted_end(text: bytes, at: int) -> int:
    """The end of the quoted string at ``at``, or ``at``: none, or one with more behind."""
    if text[at : at + 1] != b'"':
        return at
    end = at + 1
    while end < len(text) and text[end : end + 1] != b'"':
        end += 2 if text[end : end + 1] == b"\\" else 1
    behind = _skip(text, end + 1, BLANKS)
    is_quoted = end < len(text) and text[behind : behind + 1] in (b";", b"")
    return end + 1 if is_quoted else at


def _unquoted(text: bytes) -> bytes:
    if not text.startswith(b'"'):
        return text
    text = text[1:-1] if text.endswith(b'"') and len(text) > 1 else text[1:]
    made, at = b"", 0
    while at < len(text):
        at += text[at : at + 1] == b"\\" and text[at + 1 : at + 2] in (b'"', b"\\")
        made += text[at : at + 1]
        at += 1
    return made


# The event index.


def event_index(data: bytes) -> tuple[int, list[tuple[int, int, int, int]]]:
    """The number of the last trimmed event, and number, kind, offset and size of each event.

    :raises ValueError: ``data`` is not the content of a packed index.
    """
    try:
        max_events, trimmed, count = struct.unpack_from("=3q", data)
    except struct.error:
        raise ValueError("no numbers") from None
    if min(max_events, trimmed, count) < 0 or len(data) != 24 + count * (8 + 8 + 4 + 1):
        raise ValueError("a length")
    steps = struct.unpack_from(f"={count}q", data, 24)
    jumps = list(struct.unpack_from(f"={count}q", data, 24 + 8 * count))
    sizes = struct.unpack_from(f"={count}I", data, 24 + 16 * count)
    kinds = list(data[24 + 20 * count :])
    events: list[tuple[int, int, int, int]] = []
    number, expected = trimmed, [0] * 5
    for position, kind in enumerate(kinds):
        number += steps[position]
        if kind > 4 or steps[position] < 1:
            raise ValueError("an event")
        # The jumps are in the order of the kinds.
        earlier = sum(other < kind for other in kinds) + kinds[:position].count(kind)
        offset = expected[kind] + jumps[earlier]
        if not (0 <= offset < 1 << 64 and number < 1 << 64):
            raise ValueError("a number")
        expected[kind] = offset + sizes[position]
        events.append((number, kind, offset, sizes[position]))
    return trimmed, events


# /proc and the files of cgroups.


def meminfo(text: bytes) -> tuple[int, int, int, int]:
    """Total, used, anonymous and shared bytes. Of a repeated name the first counts that comes after
    the name before.

    :raises ValueError: a name is missing.
    """
    wanted = [
        *(b"MemTotal", b"MemAvailable", b"Active(anon)"),
        *(b"Inactive(anon)", b"Unevictable", b"Shmem"),
    ]
    found: list[int] = []
    for line in text.split(b"\n"):
        if len(found) < len(wanted):
            name, _, rest = line.partition(b":")
            number = rest.removesuffix(b" kB").lstrip(b" ")
            has_unit = rest.startswith(b" ") and rest.endswith(b" kB")
            if name == wanted[len(found)] and has_unit and number.isdigit():
                found.append(int(number) * 1024)
    total, available, active, inactive, unevictable, shared = found
    return total, total - available, active + inactive + unevictable, shared


def zoneinfo(text: bytes, page_bytes: int) -> int:
    """Bytes of the pages that the CPUs keep."""
    pages = 0
    for line in text.split(b"\n"):
        name, _, rest = line.partition(b":")
        number = rest.lstrip(b" ")
        is_count = name.startswith(b" ") and name.lstrip(b" ") == b"count"
        if is_count and rest.startswith(b" ") and number.isdigit():
            pages += int(number)
    return pages * page_bytes


def cgroup(usage: int, stat: bytes, limit: int | None) -> tuple[int, int, int, int]:
    """As ``meminfo``. ``limit``: None for version 1.

    :raises ValueError: a line that is no name and number, or a name is missing.
    """
    figures: dict[bytes, int] = {}
    for line in stat.splitlines():
        words = line.split()
        if len(words) != 2:
            raise ValueError("a line")
        figures[words[0]] = int(words[1])

    def figure(name: bytes) -> int:
        if name not in figures:
            raise ValueError("a name")
        return figures[name]

    if limit is None:
        total = figure(b"hierarchical_memory_limit")
        shared = figures.get(b"total_shmem", 0)
        anonymous = figure(b"total_rss")
        cache = figure(b"total_active_file") + figure(b"total_inactive_file")
    else:
        total, shared = limit, figures.get(b"shmem", 0)
        anonymous = figure(b"anon")
        cache = figure(b"active_file") + figure(b"inactive_file")
    return total, max(0, usage - cache), anonymous + shared, shared


def mount_points(mountinfo: str) -> list[str]:
    """The mount point of each line, without a slash at the end."""
    found = []
    for line in mountinfo.splitlines():
        words = line.split(" - ")[0].split()
        if len(words) > 4:
            first, *pieces = words[4].split("\\")
            for piece in pieces:
                is_code = len(piece) >= 3 and all(digit in "01234567" for digit in piece[:3])
                first += chr(int(piece[:3], 8)) + piece[3:] if is_code else f"\\{piece}"
            found.append(first.rstrip("/"))
    return found
