"""The sessions of this daemon by id, and the counts for the limits of sessions.

A session stays in the table until its deletion, with or without a worker. The limit
``max_sessions`` bounds live workers. An id without a worker costs a kilobyte, so the table may hold
NAMES_PER_SESSION times as many ids.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from execd.engine.executions import command as commands
from execd.engine.executions import page_cursor
from execd.engine.sessions.session_state import SessionState
from execd.errors import Conflict, InvalidArgument, NotFound

if TYPE_CHECKING:
    from execd.engine.sessions.session import Session
    from execd.model import DialectName

NAMES_PER_SESSION = 16


class SessionTable:
    """Base of ``Sessions``, for finding and counting."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._n_branching = 0
        """Branches of the forks under way."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def n_live(self) -> int:
        """The number of live workers, and of workers being made."""
        return self._n_branching + sum(
            session.state is not SessionState.DEAD for session in self._sessions.values()
        )

    def count_states(self) -> Counter[SessionState]:
        """Return the number of sessions by state."""
        return Counter(session.state for session in self._sessions.values())

    def get(self, session_id: str) -> Session:
        """Return the session. Raises NotFound."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id!r}")
        return session

    def find(self, session_id: str | None) -> Session | None:
        """Return the session, or None if there is no session of this id."""
        return None if session_id is None else self._sessions.get(session_id)

    def of_dialect(self, dialect: DialectName) -> list[Session]:
        """Return the sessions that the dialect lists as its own, the oldest first."""
        found = (one for one in self._sessions.values() if one.dialect == dialect)
        return sorted(found, key=_age)

    def page(self, *, limit: int, cursor: str | None) -> tuple[list[Session], str | None]:
        """Return sessions, the oldest first, and the cursor of the next page; None: the last page.

        Raises InvalidArgument for a cursor that no page returned.
        """
        found = sorted(self._sessions.values(), key=_age)
        if cursor is not None:
            last = page_cursor.decode(cursor)
            found = [session for session in found if _age(session) > last]
        page = found[:limit]
        return page, page_cursor.encode(*_age(page[-1])) if len(found) > limit else None

    def _add(self, session: Session) -> None:
        assert session.id not in self._sessions, "two sessions of one id"
        self._sessions[session.id] = session

    def _remove(self, session: Session) -> bool:
        """Take a session out of the table. Return whether the table had this session."""
        if self._sessions.get(session.id) is not session:
            return False  # a session of the same id may have come since
        del self._sessions[session.id]
        session.is_deleted = True
        session.log.close(is_deleted=True)
        return True

    def _refuse_taken(self, session_id: str) -> None:
        """Raise Conflict if there is a session of this id."""
        if session_id in self._sessions:
            raise Conflict(
                f"there is a session {session_id!r} already; use that session, delete it, or "
                "leave out id"
            )


def check_id(session_id: str | None, field: str = "id") -> str:
    """Return a valid id; for None, a new id. Raises InvalidArgument that names ``field``."""
    if session_id is None:
        return secrets.token_hex(8)
    if not commands.ID_PATTERN.fullmatch(session_id):
        raise InvalidArgument(f"{field}: must match {commands.ID_PATTERN.pattern}", field=field)
    return session_id


def _age(session: Session) -> tuple[float, str]:
    return session.created_at, session.id
