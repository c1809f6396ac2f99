"""Changes since a checkpoint as a patch that ``git apply`` takes.

A patch holds what git knows: the content of files, one bit of their modes, and links. Everything
else is a comment line before the first diff, with the path and the reason, and the names in
comments are quoted as in diffs. A comment also stands for what git would refuse, because
``git apply`` refuses a patch as a whole: names such as ``.git``, and a file in the place of a FIFO.

One pair of files is in memory at a time. Text has hunks up to MAX_TEXT_BYTES and MAX_TEXT_LINES;
larger text, and files with a zero byte, become binary patches as long as the new content has at
most MAX_BINARY_BYTES. A binary patch states the old content by its digest only, so a file of any
size can be deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from base64 import b85encode
from typing import TYPE_CHECKING, NamedTuple

from execd.files.archive.pack import read_exactly
from execd.files.checkpoints.line_diff import hunks
from execd.files.resolve import held

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set

    from execd.files.checkpoints.entries import TreeChange, TreeEntry

MAX_BINARY_BYTES = 1 << 20
"""Bytes of a binary file in a patch. A larger file is a comment line, unless it was deleted."""
MAX_TEXT_BYTES = 8 << 20
"""Bytes of a text file in a patch, before and after. A larger file counts as a binary file."""
MAX_TEXT_LINES = 200_000
"""Lines of a text file in a patch, before and after. A file with more counts as a binary file."""
_BINARY_LINE_BYTES = 52  # git's
_UNQUOTED = re.compile(rb"[!#-\[\]-~]+")
_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")
# git's verify_path, with core.protectNTFS, which is on by default.
_REFUSED = re.compile(rb"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)
_REFUSED_FOR_LINKS = re.compile(rb"\.gitmodules|gitmod~|gi7", re.IGNORECASE)


class Sources(NamedTuple):
    """Where contents come from: descriptors, which the patch closes. Both raise ExecdError and
    OSError."""

    open_old: Callable[[TreeEntry], int]
    open_new: Callable[[str, TreeEntry], int]
    """Gets the root, and the entry below the root."""


def patch(
    changes: Iterable[TreeChange], prefixes: Mapping[str, bytes], sources: Sources
) -> Generator[bytes, None, None]:
    """Yield the patch in pieces. Blocking.

    ``prefixes``: for each root whose content is kept, what stands before the paths in the patch.
    Changes of other roots are comments. Raises ExecdError, OSError: the patch is not complete.
    """
    parts = [_Part(change, prefixes.get(change.root), sources) for change in changes]
    _leave_out_unremovable(parts)
    folders = _parents(part.name for part in parts if part.reason is None and part.is_known)
    for part in parts:
        if reason := part.reason or part.loss(folders):
            kind = part.change.kind.encode()
            yield b"# %b %b: %b\n" % (kind, quoted(part.name), _ESCAPED.sub(b"?", reason))
    for part in parts:
        if part.reason is None:
            yield from part.diffs()


class _Blob(NamedTuple):
    """A content as git knows it."""

    mode: bytes
    digest: bytes
    """git's name of the content, which binary patches state."""
    content: bytes | None
    """None: more than MAX_TEXT_BYTES."""


_NOTHING = _Blob(b"", b"0" * 40, b"")


class _Part:
    """A change, and why the patch leaves the change out."""

    def __init__(self, change: TreeChange, prefix: bytes | None, sources: Sources) -> None:
        self.change = change
        self._sources = sources
        self.old, self.new = _known(change.old), _known(change.new)
        if prefix is None:
            self.name = os.fsencode(change.root).rstrip(b"/") + b"/" + change.path
            self.reason: bytes | None = b"the checkpoint has no content of a watched directory"
        else:
            self.name = prefix + change.path
            self.reason = self._reason()

    @property
    def is_known(self) -> bool:
        """Whether git knows the old or the new entry."""
        return self.old is not None or self.new is not None

    def _reason(self) -> bytes | None:
        """Why the patch cannot have the change; None: the patch has all of it that git knows."""
        for entry in (self.change.old, self.change.new):
            if entry is None:
                continue
            if entry.trouble:
                return entry.trouble.encode()
            if entry.type not in ("file", "link", "directory"):
                return b"git knows no %b" % entry.type.encode()
            names = re.split(rb"[/\\]", self.name)
            if any(map(_REFUSED.fullmatch, names)):
                return b"git refuses the name"
            if entry.type == "link" and any(map(_REFUSED_FOR_LINKS.match, names)):
                return b"git refuses the name for a link"
        if self.new is not None and self._is_too_large(self.new):
            return b"%d bytes are too many for a patch" % self.new.size_bytes
        return None

    def _is_too_large(self, new: TreeEntry) -> bool:
        if new.size_bytes <= MAX_BINARY_BYTES or self._has_same_content():
            return False
        old = self.old if self.old is not None and self.old.type == "file" else None
        return (
            max(new.size_bytes, old.size_bytes if old else 0) > MAX_TEXT_BYTES
            or not _is_text(self._read(new))
            or (old is not None and not _is_text(self._read(old)))
        )

    def _has_same_content(self) -> bool:
        old, new = self.old, self.new
        if old is None or new is None or old.type != new.type:
            return False
        return old.digest == new.digest != b"" if old.type == "file" else old.target == new.target

    def loss(self, folders: Set[bytes]) -> bytes | None:
        """What a diff cannot say of the change. ``folders``: the directories of all diffs."""
        new = self.change.new
        is_same = _mode(self.old) == _mode(self.new)
        if self.change.kind == "mode" and is_same and new is not None:
            return b"git does not keep the mode %04o" % new.mode
        if self.change.kind == "modified" and is_same and self._has_same_content():
            return b"git keeps neither owners, attributes nor hard links"
        is_directory = self.change.last.type == "directory"
        if is_directory and self.change.kind != "mode" and self.name not in folders:
            return b"git knows no empty folder"
        return None

    def diffs(self) -> Iterator[bytes]:
        old, new = self.old, self.new
        if old is not None and new is not None and old.type != new.type:
            yield from self._diff(self._blob(old), _NOTHING)
            old = None
        if self._has_same_content():
            # git's digest is needed where the content differs only.
            old_blob, new_blob = (_NOTHING._replace(mode=_mode(entry)) for entry in (old, new))
        else:
            old_blob, new_blob = self._blob(old), self._blob(new)
        yield from self._diff(old_blob, new_blob)

    def _diff(self, old: _Blob, new: _Blob) -> Iterator[bytes]:
        if (old.mode, old.digest) == (new.mode, new.digest):
            return
        names = quoted(b"a/" + self.name), quoted(b"b/" + self.name)
        yield b"diff --git %b %b\n" % names
        if not old.mode:
            yield b"new file mode %b\n" % new.mode
        elif not new.mode:
            yield b"deleted file mode %b\n" % old.mode
        elif old.mode != new.mode:
            yield b"old mode %b\nnew mode %b\n" % (old.mode, new.mode)
        if old.digest != new.digest:
            mode = b" " + old.mode if old.mode == new.mode else b""
            yield b"index %b..%b%b\n" % (old.digest, new.digest, mode)
        if old.content == new.content:
            return
        assert new.content is not None, "the part is left out"
        if old.content is None or not (_is_text([old.content]) and _is_text([new.content])):
            yield b"GIT binary patch\n"
            yield from _literal(new.content)
            if old.content is not None and len(old.content) <= MAX_BINARY_BYTES:
                yield from _literal(old.content)  # for git apply --reverse
            return
        yield b"--- %b\n" % (names[0] if old.mode else b"/dev/null")
        yield b"+++ %b\n" % (names[1] if new.mode else b"/dev/null")
        yield from hunks(old.content, new.content)

    def _blob(self, entry: TreeEntry | None) -> _Blob:
        if entry is None:
            return _NOTHING
        size_bytes = len(entry.target) if entry.type == "link" else entry.size_bytes
        digest = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
        kept: list[bytes] = []
        for piece in self._read(entry):
            digest.update(piece)
            if size_bytes <= MAX_TEXT_BYTES:
                kept.append(piece)
        content = b"".join(kept) if size_bytes <= MAX_TEXT_BYTES else None
        return _Blob(_mode(entry), digest.hexdigest().encode(), content)

    def _read(self, entry: TreeEntry) -> Iterator[bytes]:
        """Yield as many bytes as the entry, the old or the new one, states. Raises Conflict."""
        if entry.type == "link":
            yield entry.target
            return
        is_new, sources = entry is self.change.new, self._sources
        opened = sources.open_new(self.change.root, entry) if is_new else sources.open_old(entry)
        with held(opened) as fd:
            yield from read_exactly(fd, entry.size_bytes, self.name)


def _known(entry: TreeEntry | None) -> TreeEntry | None:
    """The entry, if git knows such entries."""
    return entry if entry is not None and entry.type in ("file", "link") else None


def _is_text(pieces: Iterable[bytes]) -> bool:
    n_lines = 0
    for piece in pieces:
        n_lines += piece.count(b"\n")
        if b"\0" in piece or n_lines > MAX_TEXT_LINES:
            return False
    return True


def _mode(entry: TreeEntry | None) -> bytes:
    if entry is None:
        return b""
    if entry.type == "link":
        return b"120000"
    return b"100755" if entry.mode & 0o100 else b"100644"


def _leave_out_unremovable(parts: Sequence[_Part]) -> None:
    """Leave out each new file in whose place something stays. git removes files and links, and a
    directory with its last file. git removes no FIFO, and no directory with empty ones in it."""
    removed = [part for part in parts if part.change.is_removal]
    emptied = _parents(part.name for part in removed if part.reason is None and part.is_known)
    stuck, staying = set(), set()
    for part in removed:
        assert part.change.old is not None, "removed"
        is_directory = part.change.old.type == "directory"
        if is_directory and part.name not in emptied:
            staying.add(part.name)
        elif not is_directory and part.reason is not None:
            stuck.add(part.name)
    full = _parents(stuck | staying)
    for part in parts:
        if part.reason is None and part.new is not None:
            above = _parents([part.name])
            if part.name in full or part.name in stuck or not stuck.isdisjoint(above):
                part.reason = b"git cannot remove what was in its place"


def _parents(names: Iterable[bytes]) -> set[bytes]:
    """All directories above the names."""
    found: set[bytes] = set()
    for name in names:
        while (name := name.rpartition(b"/")[0]) and name not in found:
            found.add(name)
    return found


def quoted(name: bytes) -> bytes:
    """A name as in git's patches: bytes that are not printable ASCII in octal, in quotes."""
    if _UNQUOTED.fullmatch(name):
        return name
    return b'"' + _ESCAPED.sub(lambda found: b"\\%03o" % ord(found[0]), name) + b'"'


def _literal(content: bytes) -> Iterator[bytes]:
    """A content in git's base 85: each line begins with its number of bytes, A for 1 to z for
    52."""
    yield b"literal %d\n" % len(content)
    packed = zlib.compress(content)
    for start in range(0, len(packed), _BINARY_LINE_BYTES):
        line = packed[start : start + _BINARY_LINE_BYTES]
        mark = ord("A") + len(line) - 1 if len(line) <= 26 else ord("a") + len(line) - 27
        yield b"%c%b\n" % (mark, b85encode(line, pad=True))
    yield b"\n"
