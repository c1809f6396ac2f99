"""The result of a cell, from what the worker and the warden have said by the cell's end. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from execd.engine.executions import exit_status
from execd.model import NO_EXIT_CODE, RESET_EXIT_CODE, UNKNOWN_USAGE, ExitReason, Result, Usage
from execd.proc.child import Lost
from execd.proc.messages import Exited

if TYPE_CHECKING:
    from execd.engine.sessions import worker_messages
    from execd.proc.messages import CellKilled, Killed, Measured


class CellEnd(NamedTuple):
    """What the worker and the warden have said about a cell."""

    cause: ExitReason | None
    """Why the cell was told to end, if it was."""
    done: worker_messages.Done | None
    """None: the cell has not said that it is done."""
    is_gone: bool
    """The worker has ended, or got KILL."""
    ended: Exited | Lost | None
    """None: the worker lives, or the warden has not told its end."""
    fault: str | None
    """How the worker broke the protocol, if it was killed for that."""
    lost_threads: tuple[str, ...]
    """See ``SessionWorker.lost_threads``."""
    kills: list[CellKilled | Killed | Lost]
    """The ends of the cell's processes."""
    duration_seconds: float


def decide(end: CellEnd, usage: Usage) -> Result:
    """Make the result from the done frame, the worker's end, or the lack of both."""
    result = _early(end, usage) if end.done is None else _by_done(end.done, end, usage)
    if not end.kills:
        return result
    return msgspec.structs.replace(
        result,
        killed=sum(answer.killed for answer in end.kills if not isinstance(answer, Lost)),
        survivors=tuple(end.kills[-1].survivors),
    )


def _by_done(done: worker_messages.Done, end: CellEnd, usage: Usage) -> Result:
    # SystemExit has a code, and ends the cell but not the session. A cell that was told to end has
    # not succeeded, even if its code went on to the last line.
    exit_code = 0
    if done.status == "error" or end.cause is not None:
        exit_code = (0 if done.exit is None else done.exit.code) or 1
    if end.cause is ExitReason.RESET:
        exit_code = RESET_EXIT_CODE
    return Result(
        exit_code=exit_code,
        term_signal=None,
        exit_reason=end.cause or ExitReason.EXITED,
        usage=usage,
        duration_seconds=end.duration_seconds,
    )


def _early(end: CellEnd, usage: Usage) -> Result:
    hint = ""
    if end.lost_threads and end.cause in (ExitReason.TIMEOUT, ExitReason.INTERRUPTED):
        hint = f"; perhaps because it is a branch: {'; '.join(end.lost_threads)}"
    if isinstance(end.ended, Exited):
        exit_ = exit_status.decode(end.ended.wait_status)
        how = (
            f"exit code {exit_.exit_code}"
            if exit_.term_signal is None
            else f"signal {exit_.term_signal}"
        )
        return Result(
            # 0 would be the process' own success, and not the success of the cell.
            exit_code=NO_EXIT_CODE if exit_.exit_code == 0 else exit_.exit_code,
            term_signal=exit_.term_signal,
            exit_reason=end.cause or ExitReason.WORKER_DIED,
            message=(
                f"the session's process ended with {how}, and its state with it{hint}"
                if end.fault is None
                else f"the session's process was ended, and its state with it: {end.fault}"
            ),
            usage=usage,
            duration_seconds=end.duration_seconds,
        )
    if end.is_gone:
        reason, message = (
            ExitReason.INIT_KILLED,
            "the session's process was killed, and its state with it",
        )
    else:
        reason, message = (
            ExitReason.TIMEOUT,
            "the cell was told to stop and has not yet; the next one waits for it",
        )
    return Result(
        exit_code=None,
        term_signal=signal.SIGKILL if end.is_gone else signal.SIGINT,
        exit_reason=end.cause or reason,
        message=f"{message}{hint}",
        usage=usage,
        duration_seconds=end.duration_seconds,
        survivors=() if end.ended is None else end.ended.survivors,
    )


def usage_of_cell(
    output_bytes: int, begun: Measured | None, counted: Measured | None, ended: Exited | Lost | None
) -> Usage:
    """``begun``: the answer at the begin of the cell's count; ``counted``: the answer at the end.
    None: no count, or no answer in time."""
    used: Measured | Exited | None = None
    # An answer without a size says that the worker had ended by then. Then the worker's end has the
    # figures, unless the end came before the count.
    if counted is not None and counted.max_rss_bytes:
        used = counted
    elif begun is not None and begun.max_rss_bytes and isinstance(ended, Exited):
        used = ended
    if used is None:
        return msgspec.structs.replace(UNKNOWN_USAGE, output_bytes=output_bytes)
    return exit_status.usage(used, output_bytes)
