"""Files and their owners as this dialect shows them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from execd.api.wire_api import replace_surrogates
from execd.engine.engine_api import InvalidArgument
from execd_opensandbox.owner_names import read_owner_names

if TYPE_CHECKING:
    from execd.engine.engine_api import Description, Engine, FileKind, Match
    from execd_opensandbox.owner_names import AccountNames

TYPES: dict[FileKind, str] = {"file": "file", "directory": "directory", "symlink": "symlink"}
"""All other kinds are "other". The SDK knows these four words only."""
MAX_MODE = 7777


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file, a directory or a link itself."""

    path: str
    type: str
    size: int
    modified_at: str
    created_at: str
    """The time of the last change of the inode, as in OpenSandbox."""
    owner: str
    group: str
    mode: int
    """The octal digits of the permission bits, as a decimal number: 644."""


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """Owner and permission bits. Null, an empty text and 0: as it is."""

    owner: str | None = None
    group: str | None = None
    mode: Annotated[int, Meta(ge=0, le=MAX_MODE)] | None = None

    @property
    def bits(self) -> int | None:
        """The permission bits. Raises InvalidArgument."""
        if not self.mode:
            return None
        try:
            return int(str(self.mode), 8)
        except ValueError:
            raise InvalidArgument(
                f"mode: {self.mode} has a digit that is not octal", field="mode"
            ) from None


def absolute(engine: Engine, path: str) -> str:
    """Return the absolute form of an expanded path."""
    return os.path.normpath(os.path.join(engine.config.base_dir, path))


def file_info(path: str, found: Description | Match, accounts: AccountNames) -> FileInfo:
    """Return the reply for a file. ``path``: absolute."""
    return FileInfo(
        path=replace_surrogates(path),
        type=TYPES.get(found.kind, "other"),
        size=found.size_bytes,
        modified_at=_time(found.modified_at),
        created_at=_time(found.changed_at),
        owner=replace_surrogates(accounts.user(found.uid)),
        group=replace_surrogates(accounts.group(found.gid)),
        mode=int(f"{found.mode & 0o777:o}"),
    )


def _time(seconds: float) -> str:
    # datetime has the years 1 to 9999.
    bounded = min(max(seconds, 0.0), 253_402_300_799.0)
    return datetime.fromtimestamp(bounded, UTC).isoformat().replace("+00:00", "Z")


async def change_owner(engine: Engine, path: str, wanted: Permission) -> None:
    """Set owner and group, as far as they are given. Raises InvalidArgument, PermissionDenied."""
    if not wanted.owner and not wanted.group:
        return
    accounts = await engine.files.run(read_owner_names)
    await engine.tree_files.change_owner(
        path,
        accounts.uid_of(wanted.owner) if wanted.owner else None,
        accounts.gid_of(wanted.group) if wanted.group else None,
    )
