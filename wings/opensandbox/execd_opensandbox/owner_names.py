"""Names of users and groups, from the passwd and group files themselves: passwd(5), group(5)."""

from __future__ import annotations

from typing import NamedTuple

from execd.engine.engine_api import MAX_ID, InvalidArgument, passwd


class AccountNames(NamedTuple):
    """The names of one reading of the two files."""

    users: dict[int, str]
    groups: dict[int, str]

    def user(self, uid: int) -> str:
        """Return the name, or the number as text."""
        return self.users.get(uid, str(uid))

    def group(self, gid: int) -> str:
        return self.groups.get(gid, str(gid))

    def uid_of(self, owner: str) -> int:
        """Return the number of a user given by name or number. Raises InvalidArgument."""
        return _number_of(self.users, owner, "owner", passwd.PATH)

    def gid_of(self, group: str) -> int:
        return _number_of(self.groups, group, "group", passwd.GROUP_PATH)


def read_owner_names(
    passwd_path: str = passwd.PATH, group_path: str = passwd.GROUP_PATH
) -> AccountNames:
    """Read the files. A file that cannot be read has no names. Call in a thread."""
    return AccountNames(passwd.names_by_number(passwd_path), passwd.names_by_number(group_path))


def _number_of(names: dict[int, str], text: str, field: str, path: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_ID:
        return int(text)
    for number, name in names.items():
        if name == text:
            return number
    raise InvalidArgument(
        f"{field}: {path} has no entry {text!r}; give the number instead", field=field
    )
