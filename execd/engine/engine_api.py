"""What a dialect of another distribution may use of execd's engine: commands, cells, output, files,
errors. A wing imports this module and ``execd.api.wire_api``, and nothing else of execd.
tests/test_wing_api.py freezes the names of both: a name that leaves breaks wings.
``as`` with the same name exports the name.
"""

from __future__ import annotations

from execd.config import MAX_ID as MAX_ID
from execd.config import Config as Config
from execd.engine.bash_sessions import BashSession as BashSession
from execd.engine.engine import Engine as Engine
from execd.engine.executions import passwd as passwd
from execd.engine.executions.command import MAX_SESSION_VARIABLES as MAX_SESSION_VARIABLES
from execd.engine.executions.command import argv_program as argv_program
from execd.engine.executions.command import check_environment as check_environment
from execd.engine.executions.command import code_program as code_program
from execd.engine.executions.command import line_program as line_program
from execd.engine.executions.command import shell_program as shell_program
from execd.engine.executions.execution import Execution as Execution
from execd.engine.executions.submission import CellOptions as CellOptions
from execd.engine.executions.submission import Submission as Submission
from execd.engine.figures import read_machine as read_machine
from execd.engine.files.service import FileKind as FileKind
from execd.engine.files.text_edits import Replacement as Replacement
from execd.engine.files.text_edits import read_lines as read_lines
from execd.engine.files.text_edits import replace_text as replace_text
from execd.engine.files.transfers import OpenedFile as OpenedFile
from execd.engine.files.transfers import Upload as Upload
from execd.engine.files.watching import Watching as Watching
from execd.engine.in_flight import Lease as Lease
from execd.engine.output.follow import DisplayEvent as DisplayEvent
from execd.engine.output.follow import Dropped as Dropped
from execd.engine.output.follow import ExitedEvent as ExitedEvent
from execd.engine.output.follow import Heartbeat as Heartbeat
from execd.engine.output.follow import Output as Output
from execd.engine.output.follow import ProgramStarted as ProgramStarted
from execd.engine.output.head_tail import incomplete_tail_bytes as incomplete_tail_bytes
from execd.engine.output.log import Excerpt as Excerpt
from execd.engine.restores import Restore as Restore
from execd.engine.sessions.session import Session as Session
from execd.engine.terminals import NamedTerminal as NamedTerminal
from execd.errors import Conflict as Conflict
from execd.errors import ErrorCode as ErrorCode
from execd.errors import ExecdError as ExecdError
from execd.errors import Internal as Internal
from execd.errors import InvalidArgument as InvalidArgument
from execd.errors import NoSpace as NoSpace
from execd.errors import NotFound as NotFound
from execd.errors import NotSupported as NotSupported
from execd.errors import PayloadTooLarge as PayloadTooLarge
from execd.errors import PermissionDenied as PermissionDenied
from execd.errors import RangeNotSatisfiable as RangeNotSatisfiable
from execd.errors import ReadOnly as ReadOnly
from execd.errors import RequestTimeout as RequestTimeout
from execd.errors import ResourceExhausted as ResourceExhausted
from execd.errors import Unauthenticated as Unauthenticated
from execd.errors import Unavailable as Unavailable
from execd.files.described_tree import DescribedEntry as DescribedEntry
from execd.files.read import Description as Description
from execd.files.search import Match as Match
from execd.files.search import SearchResult as SearchResult
from execd.files.watch.changes import Change as Change
from execd.files.watch.watcher import News as News
from execd.model import NOT_EXECUTABLE_EXIT_CODE as NOT_EXECUTABLE_EXIT_CODE
from execd.model import NOT_FOUND_EXIT_CODE as NOT_FOUND_EXIT_CODE
from execd.model import Command as Command
from execd.model import DialectName as DialectName
from execd.model import DisplayMessage as DisplayMessage
from execd.model import ExitReason as ExitReason
from execd.model import Origin as Origin
from execd.model import Program as Program
from execd.model import Result as Result
from execd.model import State as State
from execd.model import Stream as Stream
from execd.model import TerminalColumns as TerminalColumns
from execd.model import TerminalRows as TerminalRows
from execd.model import TerminalSize as TerminalSize
