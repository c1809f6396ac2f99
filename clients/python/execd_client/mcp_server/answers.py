"""Results as text for a model. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import execd_client
from execd_client.checkpointing import words_of
from execd_client.mcp_server import bounds
from execd_client.results import CellResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd_client import Bundle, Result
    from execd_client.models import ChangeItem, ExecutionItem, ExecutionReply, ResetReply

STEPS: list[tuple[type[execd_client.ExecdError], str]] = [
    (
        execd_client.Unreachable,
        "execd does not answer: the sandbox may be starting or gone. Repeat the call once, then "
        "tell the user to check the address with `execctl doctor`.",
    ),
    (
        execd_client.EpisodeEnded,
        "The sandbox was reset: its files are those of a checkpoint, and variables and jobs are "
        "gone. Look around, and go on.",
    ),
    (execd_client.Unauthenticated, "Tell the user to start `execctl mcp` with EXECD_TOKEN."),
    (execd_client.ConnectionLost, "The call may have had its effect: look before you repeat it."),
    (execd_client.ResourceExhausted, "End jobs that are not needed: list_jobs, then kill_job."),
    (execd_client.Gone, "The output is no longer kept: let a command write to a file instead."),
    (execd_client.NotFound, "list_files, search_files and list_jobs show what there is."),
    (execd_client.SessionBusy, "A cell still runs: wait_job or kill_job with its job_id."),
    (execd_client.NoSpace, "The disk is full: `df -h` and `du` with run_command show by what."),
    (execd_client.Internal, "This is a fault of execd; the id is for the user's report."),
]
"""What to do about an error."""


def next_step(error: execd_client.ExecdError) -> str:
    """The message of an error, and the next step where there is one."""
    for kind, step in STEPS:
        if isinstance(error, kind):
            return f"{error.message}\nNext: {step}"
    return error.message


def of_job(result: Result) -> str:
    """A command or a cell: how the job ended or that it runs, and the output."""
    parts = [_headline(result)]
    if isinstance(result, CellResult):
        parts += _cell(result)
    truncated = result.truncated
    for name, content in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        parts.append(bounds.output(name, content, getattr(truncated, name, None), result.id))
    shown = [part for part in parts if part]
    if len(shown) == 1:
        shown.append("(no output)")
    return "\n".join(shown)


def _headline(result: ExecutionReply | ExecutionItem) -> str:
    if result.state != "EXITED":
        where = f"job_id={result.id!r}"
        return (
            f"still {result.state.lower()} as a job: wait_job with {where} waits for the end, "
            f"read_job shows the output so far, kill_job ends the job"
        )
    seconds = "" if result.duration_seconds is None else f" after {result.duration_seconds:.1f} s"
    if result.exit_reason == "exited":
        return f"exit code {result.exit_code}{seconds}"
    reason = f": {result.message}" if result.message else ""
    return f"exit code {result.exit_code}{seconds}, {result.exit_reason}{reason}"


def _cell(result: CellResult) -> list[str]:
    parts = []
    if result.state_lost:
        parts.append("The interpreter was replaced: all variables are gone. Run the setup again.")
    if result.error is not None:
        trace = "\n".join([*result.error.traceback, f"{result.error.name}: {result.error.value}"])
        parts.append(_bounded("error", trace))
    parts += [_bounded("display", _words(each)) for each in result.displays if not each.image]
    if result.result is not None and (value := result.text):
        parts.append(_bounded("value", value))
    return parts


def _words(bundle: Bundle) -> str:
    return str(bundle.data.get("text/markdown") or bundle.text or ", ".join(bundle.data))


def _bounded(name: str, text: str) -> str:
    """The end of a long traceback says most; the beginning of a long value."""
    text = bounds.ESCAPES.sub("", text)
    limit = bounds.STREAM_BYTES // 2
    if len(text) > limit:
        left_out = len(text) - limit
        if name == "error":
            text = f"[{left_out} characters left out]\n{text[-limit:]}"
        else:
            text = f"{text[:limit]}\n[{left_out} characters left out: print a part of the value]"
    return f"{name}:\n{text}"


def of_changes(found: Sequence[ChangeItem]) -> str:
    """What has changed, one path a line."""
    if not found:
        return "nothing has changed"
    rest = "narrow path"
    return bounds.lines([f"{each.change}  {each.path}" for each in found], rest)


def of_patch(patch: bytes) -> str:
    """A patch, or its beginning."""
    end = bounds.character_start(patch, bounds.FILE_BYTES)
    if end >= len(patch):
        return bounds.text_of(patch) or "nothing has changed"
    left_out = f"[{len(patch) - end} bytes are left out: narrow path]"
    return f"{bounds.text_of(patch[:end])}\n{left_out}"


def of_reset(outcome: ResetReply) -> str:
    """Whether a reset has left anything behind."""
    if outcome.clean:
        return "clean: the sandbox is as it was at the checkpoint"
    found = list(map(words_of, outcome.differences.items))
    shown = bounds.lines(found, "the rest is alike")
    return f"NOT clean, {outcome.differences.total} differences:\n{shown}"


def of_list(jobs: list[ExecutionItem]) -> str:
    """Jobs, newest first."""
    if not jobs:
        return "no jobs: start_job starts one"
    found = []
    for job in jobs:
        ended = job.state == "EXITED"
        state = f"exit code {job.exit_code}" if ended else job.state.lower()
        words = " ".join((job.command or job.code or " ".join(job.argv or [])).split())
        found.append(f"{job.id}  {state}  {words[:100]}")
    return bounds.lines(found, "kill_job ends jobs that are not needed")
