"""The events of a session's log on the wire."""

from __future__ import annotations

from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from execd.api.v1.session_events import SessionDeletedEvent, render_events
from execd.api.wire.encoders import WireEvent
from execd.engine.sessions.session_log import LogBudget, SessionLog

if TYPE_CHECKING:
    from execd.engine.sessions.session import Session


async def test_a_heartbeat_of_the_log_is_a_heartbeat_of_the_stream() -> None:
    log = SessionLog(LogBudget())
    session = cast("Session", SimpleNamespace(log=log))
    async with aclosing(render_events(session, 0, "text", 0.01)) as rendered:
        assert await anext(rendered) is None
        log.close(is_deleted=True)
        while (event := await anext(rendered)) is None:
            pass  # more of the silence before the end
        assert event == WireEvent(log.newest, "deleted", SessionDeletedEvent())
