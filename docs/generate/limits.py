"""The tables of limits. A limit is one of two:

* a constant of the code. The first paragraph of its docstring has the name of the limit, and what
  happens: `Parts of a form. More are 400.`;
* a setting or a field of requests, with the words in this module.

The words refer to the code, and a reference without a target is an error:

    {NAME}           the default of a setting, or the value of a constant by its whole name
    {flag NAME}      the flag of a setting
    {field NAME}     a field of a request to run something; `limits.NAME` is a field of `limits`
    {reason NAME}    an exit reason
    {status CODE}    the HTTP status of an error
"""

from __future__ import annotations

import pkgutil
import re
from inspect import signature
from typing import NamedTuple

from docs.generate.markdown import code, table
from docs.generate.source_docs import docs_of
from execd import config
from execd.api.v1.execution_request import ExecutionRequest, LimitsRequest
from execd.api.wire.errors import V1_HTTP_STATUS
from execd.command_line import descriptions
from execd.model import ExitReason

HEAD = ("limit", "setting", "default", "what happens")
REFERENCE = re.compile(r"\{(?:(flag|field|reason|status) )?([\w.:]+)\}")
CONSTANT = re.compile(r"`([\w.]*[A-Z]{2,}[\w.]*)`")
STATUSES: dict[str, int] = {code: int(status) for code, status in V1_HTTP_STATUS.items()}
SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}


class Limit(NamedTuple):
    """A limit with a setting, or a field of requests."""

    name: str
    setting: str
    default: str
    effect: str


PROGRAM = (
    Limit(
        "run time",
        "{flag timeout}, {flag max_timeout}, {field timeout_seconds}",
        "{timeout}",
        "TERM to the tree, KILL after {timeout_grace_seconds}; exit code 124, {reason timeout}",
    ),
    Limit(
        "silence",
        "{field no_output_timeout_seconds}",
        "none",
        "as at the run time limit; {reason no_output_timeout}",
    ),
    Limit(
        "run time of a cell",
        "{field timeout_seconds}, {flag code_timeout_seconds}",
        "{timeout}, {code_timeout_seconds} on `/v1/code`",
        "SIGINT; KILL to the worker after {flag interrupt_grace_seconds}; {reason timeout}",
    ),
    Limit(
        "processes and threads of the tree",
        "{flag processes}, {field limits.processes}",
        "{processes}",
        "KILL to the tree, {reason process_limit}",
    ),
    Limit(
        "CPU time of a process",
        "{flag cpu_seconds}, {field limits.cpu_seconds}",
        "{cpu_seconds}",
        "SIGXCPU, KILL a second later; {reason cpu_limit}, also where a shell reports 152 or 137 "
        "for a child that used this time",
    ),
    Limit(
        "CPU time of a cell",
        "{flag cpu_seconds}, the session's {field limits.cpu_seconds}",
        "{cpu_seconds}",
        "as at the run time limit of a cell; {reason cpu_limit}. "
        "[Other processes of the session](#cpu-time-in-a-session) get KILL",
    ),
    Limit(
        "memory of the tree",
        "{flag memory_bytes}, {field limits.memory_bytes}",
        "{memory_bytes}",
        "KILL to the tree, {reason memory_limit} (sampled, an upper bound; "
        "[shorter peaks](#memory-for-less-than-a-sample))",
    ),
    Limit(
        "memory of the pod",
        "{flag pod_memory_bytes}; 0: no guard",
        "{pod_memory_bytes}, with a warning",
        "the largest tree gets KILL, {reason memory_limit}, before the reserve is gone: 10 %, "
        "from {execd.proc.pod_memory.MIN_RESERVE_BYTES} to a quarter of the pod; of a machine "
        "at most {execd.proc.pod_memory.MAX_MACHINE_RESERVE_BYTES}",
    ),
    Limit(
        "bytes in the base dir, in `/tmp`",
        "{flag base_dir_bytes}, {flag tmp_dir_bytes}; 0: no guard",
        "none; in the manifest the `sizeLimit` of the volume",
        "the tree that writes gets KILL, {reason disk_limit}, when an eighth of the limit is left, "
        "at most {execd.engine.disk.disk_policy.MAX_RESERVE_BYTES}; uploads, copies and archives "
        "are {status NO_SPACE} then",
    ),
    Limit(
        "size of a file",
        "{flag file_size_bytes}, {field limits.file_size_bytes}",
        "{file_size_bytes}",
        "SIGXFSZ, {reason file_size_limit}; where the program ignores the signal (Python does) "
        "write fails with EFBIG",
    ),
    Limit(
        "address space of a process",
        "{flag address_space_bytes}, {field limits.address_space_bytes}",
        "{address_space_bytes}",
        "allocations fail with ENOMEM (`MemoryError`). Go, Node.js and Java need "
        "[much more than they use](#the-least-address-space-of-a-runtime)",
    ),
    Limit(
        "open files of a process",
        "{flag open_files}, {field limits.open_files}",
        "{execd.proc.rlimits.DEFAULT_OPEN_FILES}, and at most three quarters of the daemon's own "
        "limit",
        "EMFILE",
    ),
    Limit("core file", "", "0", "the kernel writes no core file"),
    Limit(
        "output in a reply, per stream",
        "{flag reply_bytes}, {field limits.reply_bytes}",
        "{reply_bytes}",
        "head, one marker line, tail; `truncated` has the numbers",
    ),
    Limit(
        "output kept, per stream",
        "{flag stream_memory_bytes}, {flag log_bytes}, {field limits.log_bytes}",
        "{stream_memory_bytes} in memory, {log_bytes} on disk",
        "execd keeps the first and the newest bytes, and the program runs on "
        '(`"on_output_limit": "kill"`: {reason output_limit})',
    ),
    Limit(
        "output between cells, and events of a session",
        "",
        "the newest {execd.engine.sessions.session_log.SESSION_BYTES} of a session, "
        "{execd.engine.sessions.session_log.ALL_SESSIONS_BYTES} of all sessions",
        "the oldest events are lost: `truncated` of `background`, `dropped`, and {status GONE} for "
        "their numbers",
    ),
    Limit(
        "displays of a cell",
        "",
        "{execd.kernel.mime_bundles.CELL_BYTES} and {execd.kernel.mime_bundles.CELL_EVENTS} "
        "displays",
        "a short note replaces each display that does not fit in the rest of the bytes; beyond "
        "{execd.kernel.mime_bundles.LATE_BYTES} of notes or the number, the last display has the "
        "number of omitted displays",
    ),
)

CALLERS = (
    "execd.engine.output.held_pipes.MAX_HELD_PIPES",
    Limit("commands at once", "{flag max_running}", "{max_running}", "the next command waits"),
    Limit(
        "commands in their first moments",
        "{flag max_starting}",
        "{max_starting}",
        "the next command waits",
    ),
    Limit(
        "commands that wait, and cells",
        "{flag max_queued}, {flag queue_wait_seconds}",
        "{max_queued}, {queue_wait_seconds}",
        "{status RESOURCE_EXHAUSTED} with Retry-After",
    ),
    Limit(
        "sessions that live",
        "{flag max_sessions}",
        "{max_sessions}",
        "{status RESOURCE_EXHAUSTED}",
    ),
    Limit(
        "idle session",
        "{flag session_idle_seconds}",
        "{session_idle_seconds}",
        "the session loses its state, and the next cell has `state_lost: true`",
    ),
    Limit(
        "connections",
        "",
        "a quarter of RLIMIT_NOFILE, at most {execd.api.wire.connections.MAX_OPEN}",
        "a new connection closes the idle connection that has been idle longest; without an idle "
        "connection execd answers probes, and everything else with {status UNAVAILABLE}",
    ),
    "execd.engine.in_flight.MAX_BYTES",
    "execd.api.wire.connections:ConnectionLimits.request_seconds",
    "execd.api.wire.connections:ConnectionLimits.body_seconds",
    Limit(
        "JSON body",
        "{flag max_body_bytes}",
        "{max_body_bytes}",
        "{status PAYLOAD_TOO_LARGE}",
    ),
    "execd.api.wire.fields.MAX_STRINGS",
    "execd.engine.executions.command.MAX_SESSION_VARIABLES",
    "execd.engine.sessions.manager.MAX_COMPLETED_CHARACTERS",
    "execd.api.wire.multipart.MAX_PARTS",
    "execd.api.wire.socket_viewer.MESSAGES_PER_SECOND",
    "execd.engine.files.service.MAX_LARGE_LISTINGS",
    "execd.engine.files.service.MAX_LARGE_ZIPS",
    Limit(
        "entries of a downloaded zip",
        "{flag max_unpacked_entries}",
        "{max_unpacked_entries}",
        "the download is cut; a tar has no limit",
    ),
    "execd.files.archive.tree.MAX_NAMES_BYTES",
    "execd.files.archive.tree.MAX_STEPS",
    "execd.files.checkpoints.patch.MAX_TEXT_BYTES",
    "execd.files.checkpoints.patch.MAX_TEXT_LINES",
    "execd.files.checkpoints.patch.MAX_BINARY_BYTES",
    Limit("upload", "{flag max_upload_bytes}", "none", "{status PAYLOAD_TOO_LARGE}"),
    Limit(
        "size of an unpacked archive",
        "{flag max_unpacked_bytes}, {flag max_unpacked_entries}",
        "{max_unpacked_bytes}, {max_unpacked_entries}",
        "{status PAYLOAD_TOO_LARGE}, and no file is left",
    ),
)

TABLES: dict[str, tuple[Limit | str, ...]] = {"program": PROGRAM, "callers": CALLERS}


def limits(name: str) -> str:
    """Return one of the tables."""
    return table(HEAD, [_row(limit) for limit in TABLES[name]])


def _row(limit: Limit | str) -> tuple[str, ...]:
    if isinstance(limit, Limit):
        return tuple(REFERENCE.sub(_resolved, words) for words in limit)
    name, _, effect = docs_of(limit)[0].partition(". ")
    module = limit.partition(":")[0] if ":" in limit else limit.rpartition(".")[0]

    def constant(match: re.Match[str]) -> str:
        found = match[1] if "." in match[1] else f"{module}.{match[1]}"
        return in_words(found)

    name, effect = (CONSTANT.sub(constant, words) for words in (name, effect))
    assert effect.endswith(".")
    return name[0].lower() + name[1:], "", in_words(limit), effect[0].lower() + effect[1:-1]


def _resolved(match: re.Match[str]) -> str:
    kind, name = match.groups()
    match kind:
        case "flag":
            assert name in config.Config.__struct_fields__
            return code(config.flag(name))
        case "field":
            outer, _, inner = name.rpartition(".")
            struct = {"": ExecutionRequest, "limits": LimitsRequest}[outer]
            assert inner in struct.__struct_fields__
            return code(name)
        case "reason":
            return code(ExitReason(name))
        case "status":
            return str(STATUSES[name])
    return in_words(name)


def in_words(name: str) -> str:
    """Return the default of a setting, the value of a constant by its whole name, or the default
    of a field (``module:Class.field``), with the unit that the name ends in."""
    value = _value(name)
    if isinstance(value, str):
        return value
    last = name.rpartition(".")[2].lower()
    if last.endswith("_bytes"):
        unit, size = next((unit, size) for unit, size in SIZES.items() if value >= size)
        return f"{value / size:g} {unit}"
    if last.endswith("seconds") and not last.endswith("per_second"):
        return f"{value / 3600:g} h" if value >= 3600 else f"{value:g} s"
    return f"{value:g} s" if last == "timeout" else f"{value:,}"


def _value(name: str) -> float | str:
    if ":" in name:
        cls, _, field = name.rpartition(".")
        return float(signature(pkgutil.resolve_name(cls)).parameters[field].default)
    if "." in name:
        found = pkgutil.resolve_name(name)
        assert isinstance(found, int | float)
        return found
    default = getattr(config.Config(), name)
    return descriptions()[name].default if default is None else default
