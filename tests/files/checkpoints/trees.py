"""Trees for tests: made, described and compared by a walk that shares no code with execd."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from execd.files.checkpoints.entries import TreeChange, TreeEntry
from execd.files.checkpoints.patch import Sources, patch

if TYPE_CHECKING:
    from execd.model import EntryChange, EntryType

GIT = {
    **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "HOME"), "/dev/null"),
    "GIT_CEILING_DIRECTORIES": "/",
    "PATH": os.environ["PATH"],
}
TYPES: dict[int, EntryType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
Tree = dict[bytes, TreeEntry]


def described(folder: Path) -> Tree:
    """All entries below a folder."""
    found: Tree = {}
    todo = [b""]
    while todo:
        inside = todo.pop()
        for name in os.listdir(os.path.join(os.fsencode(folder), inside)):
            path = os.path.join(inside, name)
            found[path] = entry = _entry(os.fsencode(folder), path)
            if entry.type == "directory":
                todo.append(path)
    return found


def _entry(folder: bytes, path: bytes) -> TreeEntry:
    whole = os.path.join(folder, path)
    info = os.lstat(whole)
    kind = TYPES[stat.S_IFMT(info.st_mode)]
    content = Path(os.fsdecode(whole)).read_bytes() if kind == "file" else b""
    return TreeEntry(
        path,
        kind,
        stat.S_IMODE(info.st_mode),
        info.st_uid,
        info.st_gid,
        len(content),
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_dev,
        info.st_ino,
        info.st_nlink,
        target=os.readlink(whole) if kind == "link" else b"",
        digest=hashlib.sha256(content).digest() if kind == "file" else b"",
    )


def changes_between(old: Tree, new: Tree, root: str = "/root") -> list[TreeChange]:
    """In the order of names."""
    found = []
    for path in sorted(old.keys() | new.keys()):
        kind = _kind(old.get(path), new.get(path))
        if kind is not None:
            found.append(TreeChange(root, kind, old.get(path), new.get(path)))
    return found


def _kind(old: TreeEntry | None, new: TreeEntry | None) -> EntryChange | None:
    if old is None or new is None:
        return "created" if old is None else "deleted"
    if old.type != new.type:
        return "type"
    if (old.digest, old.target) != (new.digest, new.target):
        return "modified"
    return None if old.mode == new.mode else "mode"


def sources(old: Path, new: Path) -> Sources:
    """The contents of two folders."""

    def opened(folder: Path, entry: TreeEntry) -> int:
        return os.open(os.path.join(os.fsencode(folder), entry.path), os.O_RDONLY)

    return Sources(lambda entry: opened(old, entry), lambda _root, entry: opened(new, entry))


def patch_between(old: Path, new: Path) -> bytes:
    changes = changes_between(described(old), described(new))
    return b"".join(patch(changes, {"/root": b""}, sources(old, new)))


def apply(content: bytes, folder: Path, *options: str) -> None:
    """``git apply``, as a user would call it."""
    command = ["git", "apply", "--allow-empty", "--whitespace=nowarn", *options]
    ended = subprocess.run(command, cwd=folder, input=content, env=GIT, capture_output=True)
    assert ended.returncode == 0, (ended.stderr.decode(), content)


def comments(content: bytes) -> dict[bytes, str]:
    """The paths that a patch leaves out, and the reasons."""
    found = {}
    for line in content.splitlines():
        if not line.startswith(b"# "):
            break
        _, _, rest = line[2:].partition(b" ")
        match = re.fullmatch(rb'("[^"]*"|[^ ]+): (.*)', rest)
        assert match, line
        found[_unquoted(match[1])] = match[2].decode()
    return found


def _unquoted(name: bytes) -> bytes:
    if not name.startswith(b'"'):
        return name
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name[1:-1])


def as_git_sees(tree: Tree) -> dict[bytes, tuple[str, bytes]]:
    """Files with the one bit of their modes, and links."""
    return {
        path: (_git_type(entry), entry.digest + entry.target)
        for path, entry in tree.items()
        if entry.type in ("file", "link")
    }


def _git_type(entry: TreeEntry) -> str:
    return "program" if entry.type == "file" and entry.mode & 0o100 else entry.type
