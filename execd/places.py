"""The base dir and the state dir where ``auto`` leaves the choice to execd, as in a tree.

The base dir is the image's WORKDIR, where a person would look for the files. The state dir is the
first place that can be made and written, because nobody knows which parts of an image are writable.
In a directory that others may write too (/dev/shm), a folder may be planted. There a folder counts
only if it belongs to the daemon's user and is closed to others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from execd.config import AUTO, ConfigError, check_apart, conflict_of
from execd.engine.executions.command import parse_identity
from execd.engine.executions.environment import commands_uid, home_of_commands
from execd.engine.files.threads import as_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from execd.config import Config

STATE_DIRS = ("/var/lib/execd", "/run/execd", f"/dev/shm/execd-{os.geteuid()}")
BASE_DIR = "/workspace"
"""The second choice of a base dir, after the WORKDIR."""


def choose(
    config: Config,
    environment: Mapping[str, str],
    tree: str | None,
    state_dirs: Sequence[str] = STATE_DIRS,
) -> Config:
    """Return the settings with both directories chosen. Makes a chosen state dir. ``tree``: the
    folder of the tree, which is no place for a base dir. Raises ConfigError."""
    base_dir, state_dir = config.base_dir, config.state_dir
    for flag, path in (("--base-dir", base_dir), ("--state-dir", state_dir)):
        if tree and path != AUTO and _is_inside(tree, path):
            raise ConfigError(f"{flag}: execd's own tree {tree} is inside {path}")
    if AUTO not in (base_dir, state_dir):
        return config
    if base_dir == AUTO:
        base_dir = _find_base_dir(config, environment, tree)
    if state_dir == AUTO:
        state_dir = _make_state_dir(config, base_dir, tree, state_dirs)
    if base_dir == AUTO:
        base_dir = _folder_beside(state_dir, config)
    config = msgspec.structs.replace(config, base_dir=base_dir, state_dir=state_dir)
    check_apart(config)
    return config


def _find_base_dir(config: Config, environment: Mapping[str, str], tree: str | None) -> str:
    """Return the first directory that commands can write; AUTO: there is none."""
    try:
        work_dir = os.getcwd()
    except OSError:  # removed, or below a directory that is closed to the daemon
        work_dir = "/"
    identity = parse_identity(config.run_as)
    home = home_of_commands(config, environment)
    for path in (work_dir, BASE_DIR, home):
        if (
            os.path.isabs(path)  # a user without a home has the base dir, AUTO
            and os.path.realpath(path) != "/"
            and not (tree and (_is_inside(path, tree) or _is_inside(tree, path)))
            and as_user(identity, lambda path=path: _can_write(path))  # type: ignore[misc]
        ):
            return os.path.abspath(path)
    return AUTO


def _can_write(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _is_inside(path: str, folder: str) -> bool:
    folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), folder]) == folder


def _make_state_dir(config: Config, base_dir: str, tree: str | None, places: Sequence[str]) -> str:
    refused = []
    for path in places:
        reason: str | None = None
        if base_dir != AUTO and conflict_of(base_dir, path):
            reason = f"this place and the base dir {base_dir} lie one inside the other"
        elif tree and _is_inside(tree, path):
            reason = f"the tree {tree} is inside, and would be hidden from commands"
        if not reason:
            reason = _reason_against(path, is_open=config.run_as is not None)
        if not reason:
            return path
        refused.append(f"{path}: {reason}")
    raise ConfigError(
        f"--state-dir: no place for the state dir: {'; '.join(refused)}. Mount a volume at one of "
        "the places (an emptyDir will do), or name another directory"
    )


def _reason_against(path: str, *, is_open: bool) -> str | None:
    """Make the folder, and return why it cannot be the state dir; None: it can. ``is_open``:
    another user runs commands, and has to pass through the folder to its bin."""
    try:
        parent = os.path.dirname(path)
        if not os.path.lexists(parent):
            os.makedirs(parent, 0o755)
        is_shared = bool(os.stat(parent).st_mode & 0o022)
        mode = 0o700 if is_shared and not is_open else 0o711
        with contextlib.suppress(FileExistsError):
            if not os.path.lexists(path):
                os.mkdir(path, mode)
        return _fault_of(path, mode if is_shared else None)
    except OSError as error:
        return error.strerror or type(error).__name__


def _fault_of(path: str, widest_mode: int | None) -> str | None:
    """Judge an existing folder. ``widest_mode``: in a directory that others may write too."""
    found = os.lstat(path) if widest_mode is not None else os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        return "no directory, but another file has the name"
    if widest_mode is not None:
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid():
            return f"belongs to uid {found.st_uid}, which may have planted it"
        if mode & ~widest_mode:
            return f"has mode {mode:04o}, so others may have put files there; remove it"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        return os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    return None


def _folder_beside(state_dir: str, config: Config) -> str:
    """Return the folder that becomes the base dir if the image has no directory to write. The start
    of the daemon makes it. Raises ConfigError for a folder of another user."""
    path = f"{state_dir}-workspace"
    if os.path.lexists(path):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, commands_uid(config)):
            raise ConfigError(
                f"--base-dir: {path} belongs to uid {found.st_uid}, which may have planted it; "
                "name a directory that commands can write"
            )
    return path
