"""The tree: one folder with execd, a Python and all libraries, put into any image.

    bin/python3   the tree's own Python
    app/execd     this package, which sessions on that Python cannot import
    sha256sums    the digest of each file in PARTS, as sha256sum(1) writes and checks them

In a tree the image belongs to somebody else, so a few settings have other defaults (``config``).
"""

from __future__ import annotations

import errno
import os
import stat
import sys

PARTS = ("app", "bin", "lib")
"""What execd runs. ``share`` has what the Python of sessions runs, which is user code."""
DIGESTS = "sha256sums"
_DIGITS, _CHUNK_BYTES = 64, 1 << 18


def root(prefix: str = sys.prefix, package: str = os.path.dirname(__file__)) -> str | None:
    """Return the folder of the tree; None if execd was installed in another way. ``prefix``: of the
    Python that runs execd. ``package``: the folder of the package execd."""
    expected = os.path.join(prefix, "app", "execd")
    return prefix if os.path.realpath(expected) == os.path.realpath(package) else None


def own_python(tree: str | None) -> str:
    """Return the Python that runs execd."""
    return sys.executable if tree is None else os.path.join(tree, "bin", "python3")


def movable_parents(tree: str, uid: int) -> list[str]:
    """Return the directories above the tree that programs of ``uid`` can rename, the outermost
    first: with another tree in their place execd would run other files."""
    parents: list[str] = []
    path = os.path.dirname(os.path.realpath(tree))
    while path != "/":
        parents.insert(0, path)
        path = os.path.dirname(path)
    return [path for path in parents if _can_rename(path, uid)]


def is_in_reach(tree: str, uid: int) -> bool:
    """Whether programs of ``uid`` can write the tree, or put another in its place, where no mount
    stands in the way. Looks at the upper folders, because a tree has one owner."""
    try:
        return (
            any(_can_write(os.path.join(tree, name), uid) for name in ("", *PARTS))
            or _can_rename(os.path.realpath(tree), uid)
            or bool(movable_parents(tree, uid))
        )
    except OSError:  # somebody has moved the tree
        return True


def _can_write(folder: str, uid: int) -> bool:
    """Every group counts as a group of the user."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return False
    found = os.stat(folder)
    return uid in (0, found.st_uid) or bool(found.st_mode & 0o022)


def _can_rename(path: str, uid: int) -> bool:
    parent = os.path.dirname(path)
    found = os.stat(parent)
    owners = (0, found.st_uid, os.stat(path).st_uid)
    return _can_write(parent, uid) and (not found.st_mode & stat.S_ISVTX or uid in owners)


def check(tree: str) -> None:
    """Compare the tree with its own list of digests. Raises OSError, with the path of the first
    difference.

    Finds a tree that was written in part, damaged, or changed by accident. Whoever changes the tree
    on purpose can change the list too.
    """
    listed = os.path.join(tree, DIGESTS)
    with open(listed, encoding="utf-8", errors="surrogateescape") as lines:
        digests = {line[_DIGITS + 2 : -1]: line[:_DIGITS] for line in lines}
    for part in PARTS:
        for folder, _, names in os.walk(os.path.join(tree, part)):
            # Python puts bytecode here that no option and no version of the daemon asks for.
            allows_others = os.path.basename(folder) == "__pycache__"
            for name in names:
                path = os.path.join(folder, name)
                digest = digests.pop(path[len(tree) + 1 :], None)
                if digest is None and not allows_others:
                    raise OSError(errno.EBADMSG, f"not in {listed}, the files of execd", path)
                if digest is not None and digest != _digest_of(path):
                    raise OSError(errno.EBADMSG, f"changed: not the digest of {listed}", path)
    for name in digests:
        raise OSError(errno.ENOENT, f"missing, but in {listed}", os.path.join(tree, name))


def _digest_of(path: str) -> str | None:
    import hashlib  # see lean_imports

    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()
