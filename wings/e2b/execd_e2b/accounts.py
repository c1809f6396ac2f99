"""Users and paths as E2B's clients name them.

A request names a user: as the user of Basic authorization without a password (RPCs), or as
``username`` in the query (``/files``). E2B's daemon is root and becomes any user. execd becomes
another user only as root without ``--run-as``. "root" and "user" are the names that E2B's SDKs and
templates use by default, so they stand for the daemon's own user where execd cannot become them.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.engine_api import InvalidArgument, PermissionDenied, Unauthenticated, passwd

if TYPE_CHECKING:
    from execd.engine.engine_api import Config, Engine

DEFAULT_NAMES = ("root", "user")


class UnknownUser(Unauthenticated):
    """No user has this name. E2B's answer is the one for a wrong token."""


class RequestAccount(NamedTuple):
    """The user of a request."""

    user: str | None
    """UID:GID for a command; None: the user of every command."""
    home: str
    env: dict[str, str]
    """The variables that name the user."""


def basic_user(header: str | None) -> str | None:
    """Return the user of an Authorization header, None without one. The password is not checked, as
    in envd. Raises InvalidArgument."""
    scheme, _, encoded = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidArgument(
            "Authorization: Basic needs base64 of user:password", field="Authorization"
        ) from None
    return decoded.partition(":")[0] or None


async def find_account(engine: Engine, name: str | None) -> RequestAccount:
    """Return the account of a command. Raises UnknownUser, PermissionDenied."""
    own = RequestAccount(None, engine.config.base_dir, {})
    if name is None:
        return own
    return await engine.files.run(functools.partial(_look_up, engine.config, name, own))


async def find_own_account(engine: Engine, name: str | None) -> RequestAccount:
    """Return the account of a request on files, which execd serves as the daemon's own user.
    Raises UnknownUser, PermissionDenied."""
    account = await find_account(engine, name)
    if account.user is not None:
        raise PermissionDenied(
            f"username: files are read and written by the daemon's own user, not by {name!r}; "
            "leave the user out, or use a command"
        )
    return account


def _look_up(config: Config, name: str, own: RequestAccount) -> RequestAccount:
    uid = os.geteuid() if config.run_as is None else int(config.run_as.partition(":")[0])
    if name in (str(uid), passwd.name_of(uid, passwd.PATH)):
        return own
    try:
        if name[0].isdigit():
            raise InvalidArgument("a number")
        user, env = passwd.resolve(name)
    except InvalidArgument:
        if name in DEFAULT_NAMES:
            return own
        raise UnknownUser(f"invalid username: {name!r}") from None
    if int(user.partition(":")[0]) == uid:
        return own
    if os.geteuid() == 0 and config.run_as is None:
        return RequestAccount(user, env["HOME"], env)
    if name in DEFAULT_NAMES:
        return own
    raise PermissionDenied(
        f"user: this daemon runs everything as the user {uid} and cannot become {name!r}; leave "
        "the user out"
    )


def expand(path: str, account: RequestAccount, workdir: str | None = None) -> str:
    """Return the absolute path, as envd expands it: "~" is the home, a relative path begins at the
    home, and an empty path is the default workdir, else the home. Raises InvalidArgument."""
    if not path:
        return workdir or account.home
    if path == "~" or path.startswith("~/"):
        path = account.home + path[1:]
    elif path.startswith("~"):
        raise InvalidArgument(
            f"path: {path[:64]!r} names another user's home; give the absolute path", field="path"
        )
    normal = posixpath.normpath(posixpath.join(account.home, path))
    return "/" + normal.lstrip("/")
