"""What the routes of the dialect share: the settings of ``/init``, the watchers that clients poll,
and how much of a command's output clients have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from aiohttp import web

from execd.api.wire_api import ENGINE, GATE
from execd.engine.engine_api import InvalidArgument, NotFound
from execd_e2b.accounts import basic_user, expand, find_account, find_own_account
from execd_e2b.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from execd.api.wire_api import TokenGate
    from execd.engine.engine_api import Engine, Execution, Stream
    from execd_e2b.accounts import RequestAccount

E2B_VARIABLES = {"E2B_SANDBOX": "true"}
"""What E2B sets in each sandbox; programs recognise an E2B sandbox by it."""


class Settled(NamedTuple):
    """What ``/init`` sets."""

    env: Mapping[str, str] = E2B_VARIABLES
    """For commands and contexts."""
    default_user: str | None = None
    default_workdir: str | None = None
    at: datetime | None = None
    """The timestamp of the latest ``/init`` that had one."""


class Sandbox:
    """One for each daemon."""

    def __init__(self, engine: Engine, gate: TokenGate) -> None:
        self.engine = engine
        self._gate = gate
        self.settled = Settled()
        self._first: Settled | None = None
        self.watchers = Watchers()
        self._received: WeakKeyDictionary[Execution, dict[Stream, int]] = WeakKeyDictionary()

    @property
    def env(self) -> dict[str, str]:
        return dict(self.settled.env)

    @property
    def default_user(self) -> str | None:
        return self.settled.default_user

    @property
    def default_workdir(self) -> str | None:
        return self.settled.default_workdir

    def settle(self, settled: Settled) -> None:
        """Take what an ``/init`` sets. The first one stays in a reset, if it must be the
        platform's: it has a token, or no user code may have run yet."""
        if self._first is None:
            has_token = self._gate.token_sha256 is not None
            is_platform = has_token or not self.engine.may_have_run
            self._first = settled if is_platform else self.settled
        self.settled = settled

    async def forget_episode(self) -> None:
        """The reset: the settings as before any user code."""
        self.settled = self._first or Settled()
        await self.watchers.close()

    def received(self, execution: Execution) -> dict[Stream, int]:
        """By stream, how much of the output some client of this dialect has taken. A client that
        connects later gets the rest."""
        return self._received.setdefault(execution, {})

    async def check_directory(self, path: str, what: str, field: str) -> None:
        """Raises InvalidArgument, which names the field, if there is no such directory."""
        try:
            found = await self.engine.tree_files.describe(path)
        except NotFound:
            raise InvalidArgument(f"{what} {path!r} does not exist", field=field) from None
        if found.kind != "directory":
            raise InvalidArgument(f"{what} {path!r} is not a directory", field=field)

    async def account(self, header: str | None) -> RequestAccount:
        """Return the account of an RPC, by its Authorization header. Raises UnknownUser,
        PermissionDenied, InvalidArgument."""
        return await find_account(self.engine, basic_user(header) or self.default_user)

    async def path(self, path: str, header: str | None) -> str:
        """Return the absolute path that an RPC names. Raises as ``account``."""
        user = basic_user(header)
        return await self.path_of(path, user)

    async def path_of(self, path: str, user: str | None) -> str:
        """Return the absolute path that a request of this user names. Raises as ``account``."""
        account = await find_own_account(self.engine, user or self.default_user)
        return expand(path, account, self.default_workdir)


SANDBOX: web.AppKey[Sandbox] = web.AppKey("e2b_sandbox", Sandbox)
IS_CODE_PORT: web.AppKey[bool] = web.AppKey("e2b_is_code_port", bool)
"""Whether the port is the code interpreter's, and not envd's."""
_sandboxes: WeakKeyDictionary[TokenGate, Sandbox] = WeakKeyDictionary()
"""By the gate, which the ports of a daemon share."""


def share_sandbox(app: web.Application) -> None:
    """Add the daemon's sandbox to the application: both ports show the same. The end of an
    application ends the watchers."""
    is_new = app[GATE] not in _sandboxes
    sandbox = app[SANDBOX] = _sandboxes.setdefault(app[GATE], Sandbox(app[ENGINE], app[GATE]))

    if is_new:
        sandbox.engine.on_reset(sandbox.forget_episode)

    async def end(_app: web.Application) -> None:
        await sandbox.watchers.close()

    app.on_cleanup.append(end)
