"""Executions as records of the journal, and back."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

import msgspec

from execd.engine.executions.command import is_argv, shortened
from execd.engine.executions.end_words import restarted_message
from execd.engine.executions.execution import Execution
from execd.engine.executions.execution_record import Registration
from execd.engine.store.journal import Begin, End, JournaledDisplay
from execd.model import (
    CellFacts,
    Command,
    DisplayMessage,
    ExitReason,
    Limits,
    Program,
    Result,
)

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Keeper
    from execd.engine.store.journal import JournaledExecution

# The journal is read as a whole at the start: pictures would make the start slow.
MAX_JOURNALED_RICH_BYTES = 256 << 10


def begin_record(execution: Execution, base_dir: str) -> Begin:
    shown = shortened(execution.command.program)
    return Begin(
        id=execution.id,
        key=execution.key,
        payload=execution.payload,
        display=_text(shown.display),
        created_at=execution.created_at,
        cwd=_text(execution.command.cwd or base_dir),
        argv=list(map(_text, shown.argv)) if is_argv(shown) else None,
        session_id=execution.cell.session_id if execution.cell is not None else None,
        limits=execution.command.limits,
        timeout_seconds=execution.command.timeout_seconds,
    )


def end_record(execution: Execution, result: Result) -> End:
    """Make the record after the output has been saved, as far as the disk took the output."""
    is_small = execution.output.rich_bytes <= MAX_JOURNALED_RICH_BYTES
    return End(
        id=execution.id,
        result=msgspec.structs.replace(result, message=_text(result.message)),
        ended_at=execution.ended_at or execution.created_at,
        total_bytes={
            str(stream): log.total_bytes for stream, log in execution.output.streams.items()
        },
        started_at=execution.started_at,
        pid=execution.pid,
        started_by=execution.started_by,
        events=execution.output.pack_as_exited(),
        cell=execution.cell,
        rich=list(map(_journaled, execution.output.rich)) if is_small else [],
        omitted_rich_bytes=0 if is_small else execution.output.rich_bytes,
        key=execution.key,
        payload=execution.payload,
    )


SURROGATES = re.compile("[\ud800-\udfff]")


def _text(text: str) -> str:
    """Replace each surrogate, as replies do: JSON in UTF-8 has no form for a byte of a path that is
    not UTF-8."""
    return text if text.isascii() else SURROGATES.sub("\ufffd", text)


RAW_FIELDS = ("data", "metadata", "traceback")
"""The fields of display messages that the engine never decodes."""


def _journaled(message: DisplayMessage) -> JournaledDisplay:
    fields = {
        name: value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))
        for name, value in message.fields.items()
    }
    return JournaledDisplay(message.kind, fields)


def _restored(message: JournaledDisplay) -> DisplayMessage:
    # copy() frees the rest of the journal.
    fields = {
        name: value.copy() if name in RAW_FIELDS else msgspec.json.decode(value)
        for name, value in message.fields.items()
    }
    return DisplayMessage(message.kind, fields)


def restore(past: JournaledExecution, context: EngineContext, keeper: Keeper) -> Execution:
    """Return an execution of a former daemon, with its result or with "daemon_restarted"."""
    begin, end = past.begin, past.end
    program = Program(
        argv=tuple(begin.argv or ()), display=begin.display, is_code=begin.session_id is not None
    )
    execution = Execution(
        Registration(begin.id, begin.key, begin.payload, is_kept=True),
        Command(
            program=program,
            cwd=begin.cwd,
            detached=True,
            limits=begin.limits or Limits(),
            timeout_seconds=begin.timeout_seconds or math.inf,
        ),
        context,
        keeper,
        runner=None,
    )
    execution.is_journaled = True
    execution.created_at = begin.created_at
    if begin.session_id is not None:
        execution.cell = CellFacts(session_id=begin.session_id, status="error")
    assert end is not None
    if isinstance(end, End):
        execution.result, execution.started_at, execution.ended_at = (
            end.result,
            end.started_at,
            end.ended_at,
        )
        execution.pid, execution.cell = end.pid, end.cell
        execution.started_by = end.started_by
        execution.output.rich = list(map(_restored, end.rich))
        execution.output.omitted_rich_bytes = end.omitted_rich_bytes
        execution.output.restore(end.total_bytes, end.events)
        execution.mark_ended(max(0.0, time.time() - end.ended_at))
    else:
        execution.result = Result(
            exit_code=None,
            term_signal=None,
            exit_reason=ExitReason.DAEMON_RESTARTED,
            message=restarted_message(end.shortage),
        )
        execution.output.restore(None, b"")
        execution.mark_ended(max(0.0, time.time() - end.found_at))
    return execution
