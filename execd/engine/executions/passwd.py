"""Names of users, from the passwd file itself (passwd(5)). Without NSS, which may ask the network,
loads libraries into the daemon, and waits for ever if user code has left a FIFO in the place of the
file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from execd.config import MAX_ID
from execd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH, GROUP_PATH = "/etc/passwd", "/etc/group"
MAX_BYTES = 1 << 20
"""How much of the file is read. A file of a container has about 1 KB."""


class PasswdEntry(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str


def resolve(user: str, path: str = PATH) -> tuple[str, dict[str, str]]:
    """Return UID[:GID] of a user given by name, UID or UID:GID, and the variables that name the
    user to programs. Reads the file, so call in a thread. Raises InvalidArgument for an unknown
    name.

    A number needs no entry, and has HOME=/ without an entry, as in Docker.
    """
    is_number = user[0].isdigit()
    try:
        content, is_whole = _read(path)
    except OSError as error:
        if is_number:
            return user, variables(None, user)
        raise InvalidArgument(
            f"user: {path} cannot be read: {error.strerror}; give the number instead", field="user"
        ) from None
    if is_number:
        return user, variables(find_number(content, int(user.partition(":")[0])), user)
    found = find(content, user)
    if found is not None:
        return f"{found.uid}:{found.gid}", variables(found, user)
    if is_whole:
        raise InvalidArgument(
            f"user: {path} has no user {user!r}; give the number instead", field="user"
        )
    raise InvalidArgument(
        f"user: {path} is too long to be searched: its first {MAX_BYTES} bytes have no user "
        f"{user!r}; give the number instead",
        field="user",
    )


def variables(account: PasswdEntry | None, user: str) -> dict[str, str]:
    """Return USER, LOGNAME and HOME, as runuser(1) sets them. ``account``: the entry of ``user``,
    if there is one."""
    number = user.partition(":")[0]
    name, home = (number, "/") if account is None else (account.name, account.home)
    # User code may have written the file: no NUL and no broken UTF-8 may come into the environment.
    name = name if name.isprintable() and name else number
    home = home if home.isprintable() and home.startswith("/") else "/"
    return {"USER": name, "LOGNAME": name, "HOME": home}


def entry_of(uid: int, path: str = PATH) -> PasswdEntry | None:
    """Return the first entry with this number; None if there is none, or the file cannot be
    read."""
    try:
        content, _ = _read(path)
    except OSError:
        return None
    return find_number(content, uid)


def name_of(uid: int, path: str = PATH) -> str | None:
    """Return the name of the first user with this number, or None."""
    found = entry_of(uid, path)
    return None if found is None else found.name


def names_by_number(path: str) -> dict[int, str]:
    """Return the names in a file of users or of groups (group(5)), the first of each number. Empty
    if the file cannot be read."""
    try:
        content, _ = _read(path)
    except OSError:
        return {}
    found: dict[int, str] = {}
    for line in content.split("\n"):
        name, _, rest = line.partition(":")
        number = rest.split(":")[1] if ":" in rest else ""
        if name and name.isprintable() and _is_id(number):
            found.setdefault(int(number), name)
    return found


def _read(path: str) -> tuple[str, bool]:
    """Return the first MAX_BYTES of the file, and whether they are the whole file."""
    # Without O_NONBLOCK a FIFO in the place of the file would hold the thread.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = os.read(fd, MAX_BYTES)
        is_whole = len(content) < MAX_BYTES or not os.read(fd, 1)
        return content.decode("utf-8", "surrogateescape"), is_whole
    finally:
        os.close(fd)


def find(content: str, name: str) -> PasswdEntry | None:
    """Return the first entry of the name. Skips lines that are no entries, as libc does."""
    return next((entry for entry in _entries(content) if entry.name == name), None)


def find_number(content: str, uid: int) -> PasswdEntry | None:
    """Return the first entry of the number."""
    return next((entry for entry in _entries(content) if entry.uid == uid), None)


def _entries(content: str) -> Iterator[PasswdEntry]:
    """Yield each line that is an entry: no comment, and nothing for NIS."""
    for line in content.split("\n"):
        fields = line.split(":")
        if len(fields) != 7 or line.startswith(("#", "+", "-")):
            continue
        if _is_id(fields[2]) and _is_id(fields[3]):
            yield PasswdEntry(fields[0], int(fields[2]), int(fields[3]), fields[5])


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_ID
