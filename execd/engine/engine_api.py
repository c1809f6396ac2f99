"""What a dialect of another distribution may use of execd's engine: commands, cells, output, files,
errors. A wing imports this module and ``execd.api.wire_api``, and nothing else of execd.
tests/test_wing_api.py freezes the names of both: a name that leaves breaks wings.
"""

from __future__ import annotations

from execd.config import MAX_ID, Config
from execd.engine.bash_sessions import BashSession
from execd.engine.engine import Engine
from execd.engine.executions import passwd
from execd.engine.executions.command import (
    MAX_SESSION_VARIABLES,
    argv_program,
    check_environment,
    code_program,
    line_program,
    shell_program,
)
from execd.engine.executions.execution import Execution
from execd.engine.figures import read_machine
from execd.engine.files.service import FileKind
from execd.engine.files.text_edits import Replacement, read_lines, replace_text
from execd.engine.files.transfers import OpenedFile, Upload
from execd.engine.files.watching import Watching
from execd.engine.in_flight import FREE_BYTES, Lease
from execd.engine.output.follow import (
    DisplayEvent,
    Dropped,
    ExitedEvent,
    Heartbeat,
    Output,
    ProgramStarted,
)
from execd.engine.output.head_tail import incomplete_tail_bytes
from execd.engine.output.log import Excerpt
from execd.engine.restore_detector import Restore
from execd.engine.sessions.cell_run import CellOptions
from execd.engine.sessions.session import Session
from execd.engine.terminals import NamedTerminal
from execd.errors import (
    Conflict,
    ErrorCode,
    ExecdError,
    Internal,
    InvalidArgument,
    NoSpace,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    RangeNotSatisfiable,
    ReadOnly,
    RequestTimeout,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from execd.files.described_tree import DescribedEntry
from execd.files.read import Description
from execd.files.search import Match, SearchResult
from execd.files.watch.changes import Change
from execd.files.watch.watcher import News
from execd.model import (
    NOT_EXECUTABLE_EXIT_CODE,
    NOT_FOUND_EXIT_CODE,
    Command,
    DialectName,
    DisplayMessage,
    ExitReason,
    Origin,
    Program,
    Result,
    State,
    Stream,
    TerminalColumns,
    TerminalRows,
    TerminalSize,
)

__all__ = [
    "BashSession",
    "CellOptions",
    "Change",
    "Command",
    "Config",
    "Conflict",
    "DescribedEntry",
    "Description",
    "DialectName",
    "DisplayEvent",
    "DisplayMessage",
    "Dropped",
    "Engine",
    "ErrorCode",
    "Excerpt",
    "ExecdError",
    "Execution",
    "ExitReason",
    "ExitedEvent",
    "FREE_BYTES",
    "FileKind",
    "Heartbeat",
    "Internal",
    "InvalidArgument",
    "Lease",
    "MAX_ID",
    "MAX_SESSION_VARIABLES",
    "Match",
    "NOT_EXECUTABLE_EXIT_CODE",
    "NOT_FOUND_EXIT_CODE",
    "NamedTerminal",
    "News",
    "NoSpace",
    "NotFound",
    "NotSupported",
    "OpenedFile",
    "Origin",
    "Output",
    "PayloadTooLarge",
    "PermissionDenied",
    "Program",
    "ProgramStarted",
    "RangeNotSatisfiable",
    "ReadOnly",
    "Replacement",
    "RequestTimeout",
    "ResourceExhausted",
    "Restore",
    "Result",
    "SearchResult",
    "Session",
    "State",
    "Stream",
    "TerminalColumns",
    "TerminalRows",
    "TerminalSize",
    "Unauthenticated",
    "Unavailable",
    "Upload",
    "Watching",
    "argv_program",
    "check_environment",
    "code_program",
    "incomplete_tail_bytes",
    "line_program",
    "passwd",
    "read_lines",
    "read_machine",
    "replace_text",
    "shell_program",
]
