"""The session's InteractiveShell: IPython with a front end for results, displays, tracebacks and
questions.

IPython evaluates the code; this module changes only two things. Output goes to the front end.
Nothing is written outside the session: no history file, no profile directory, no thread of IPython.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import builtins
import gc
import getpass
import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.events import available_events
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.utils import process
from IPython.utils.text import LSString, SList
from traitlets.config import Config

from execd.kernel import matplotlib_backend, mime_bundles, tracebacks
from execd.kernel.display_formatter import DisplayFormatter
from execd.kernel.event_loop import SessionLoop
from execd.kernel.front_end import (
    CellHooks,
    FrontEnd,
    ResultHook,
    SessionDisplayPublisher,
)
from execd.kernel.open_files import find_descriptors
from execd.kernel.source import CellTransformer, may_contain_await
from execd.kernel.stdio_pipes import fdopen, write_error
from execd.kernel.subprocesses import (
    install_script_magic,
    output_in_shell,
    run_in_shell,
    system,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_CONFIG = {
    "InteractiveShell": {"colors": "NoColor", "autoawait": True},
    "HistoryManager": {
        "enabled": False,
        "hist_file": ":memory:",
    },  # otherwise IPython writes a file from a thread
    "IPCompleter": {"use_jedi": False},  # jedi is slow and starts processes and threads
}


class CellOutcome(NamedTuple):
    """The end of a cell. Displays and the result have gone to the front end before."""

    execution_count: int
    error: mime_bundles.ErrorDescription | None
    exit_code: int | None
    """Exit code of a SystemExit, by Python's rule: 0 to 255. None without a SystemExit."""


class _MemoryDatabase(dict[str, Any]):
    """The store of %bookmark, %rehashx and %store, kept for the session's life.

    Deleting a missing key is no error, as in IPython's store.
    """

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


class _Exit(ExitAutocall):
    """``exit`` and ``quit``, with an optional exit code, as in a script."""

    # dill.dump_session leaves out the names that IPython has put into the namespace, and knows
    # them by the module. Behind another name it finds the whole shell, which cannot be saved.
    __module__ = ExitAutocall.__module__

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)


class Shell(InteractiveShell):
    """The process's only shell. Made in the zygote, inherited by workers and branches."""

    def __init__(self, **kwargs: Any) -> None:
        self.front_end = FrontEnd()
        self._shown_errors: list[tuple[BaseException | None, mime_bundles.ErrorDescription]] = []
        self._format_failure: BaseException | None = None
        self._omitted_frames = 0
        super().__init__(exiter=_Exit(), **kwargs)
        self.db = _MemoryDatabase()
        self.loop_runner = self.session_loop = SessionLoop()
        self.input_transformer_manager = CellTransformer()
        install_script_magic(self)
        matplotlib_backend.install_import_hook()
        os.system = system
        os.fdopen = fdopen
        # From the ``open`` of a session dill comes here, and cannot save a stream of the zygote.
        # IPython only keeps the stream.
        process.system.__self__.logfile = None

    # IPython would create these directories in the home directory.

    def init_ipython_dir(self, ipython_dir: object) -> None:
        pass

    def init_profile_dir(self, profile_dir: object) -> None:
        self.profile_dir = ProfileDir()

    def init_events(self) -> None:
        self.events: CellHooks = CellHooks(self, available_events)
        self.events.register("pre_execute", self._clear_warning_registry)  # IPython's only hook

    # Output.

    def init_displayhook(self) -> None:
        self.displayhook_class = ResultHook
        super().init_displayhook()

    def init_display_pub(self) -> None:
        self.display_pub_class = SessionDisplayPublisher
        super().init_display_pub()

    def init_display_formatter(self) -> None:
        self.display_formatter = DisplayFormatter(parent=self)
        self.configurables.append(self.display_formatter)
        mime_bundles.limit_reprs(self.display_formatter)

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing: a session has no window system."""

    def system(self, cmd: str) -> None:
        """Run ``!cmd`` with output on descriptors 1 and 2."""
        self.user_ns["_exit_code"] = run_in_shell(self.var_expand(cmd, depth=1))

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Run ``x = !cmd``."""
        output = output_in_shell(self.var_expand(cmd, depth=depth + 1))
        return SList(output.splitlines()) if split else LSString(output)

    def ask_exit(self) -> None:
        raise SystemExit

    def _read_input(self, prompt: object = "") -> str:
        return self.front_end.read_line(str(prompt), False)

    def _read_password(
        self, prompt: object = "Password: ", stream: object = None, **_: object
    ) -> str:
        return self.front_end.read_line(str(prompt), True)

    # Errors.

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            kind, value, trace = _exception_to_show(exc_tuple)
        except ValueError:
            super().showtraceback(exc_tuple, *args, **kwargs)
            return
        tracebacks.cut_ring(value)
        if isinstance(value, SystemExit):
            # No traceback: ``run`` reports the exit code. IPython's next line warns users of a
            # terminal how to exit; the filter drops this warning.
            warnings.filterwarnings("ignore", "To exit:", UserWarning)
            return
        if self.session_loop.was_interrupted and type(value).__name__ == "CancelledError":
            # ``SessionLoop.interrupt`` cancels a waiting task. The user sees a KeyboardInterrupt,
            # as for running code.
            interrupt = KeyboardInterrupt()
            interrupt.__traceback__ = trace
            kind, value = KeyboardInterrupt, interrupt
        self._omitted_frames = tracebacks.shorten(value)
        exc_tuple = kind, value, value.__traceback__
        if not tracebacks.has_exception_group(value):
            n_shown = len(self._shown_errors)
            try:
                super().showtraceback(exc_tuple, *args, **kwargs)
                return
            except Exception:
                if len(self._shown_errors) > n_shown:
                    raise  # raised after the traceback, by %pdb
                # IPython fails to format an exception whose __str__ raises, and exceptions in a
                # circle of causes. Python's formatting below shows the same exception.
        lines = "".join(
            traceback.format_exception(
                kind, value, tracebacks.skip_ipython_frames(value.__traceback__)
            )
        ).splitlines()
        self._showtraceback(kind, value, lines)

    # IPython's documented hook for front ends, despite the underscore.
    def _showtraceback(
        self, etype: type[BaseException], evalue: BaseException | None, stb: Any
    ) -> None:
        lines = stb.splitlines() if isinstance(stb, str) else list(stb)
        if self._omitted_frames:
            lines.insert(
                -1, f"[{self._omitted_frames} frames in the middle of a traceback are left out]\n"
            )
            self._omitted_frames = 0
        self._shown_errors.append((evalue, mime_bundles.describe_error(etype, evalue, lines)))

    def format_result(self, format_it: Callable[[], Any]) -> Any:
        """Format a result, and note a failing ``__repr__``.

        IPython shows the exception of a ``__repr__`` and continues. Here the cell ends with this
        exception, as in ipykernel.
        """
        n_shown = len(self._shown_errors)
        formats = format_it()
        if len(self._shown_errors) > n_shown:
            self._format_failure = self._shown_errors[n_shown][0]
        return formats

    def _format_exception_for_storage(
        self, exception: BaseException, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the traceback shown before, for %notebook.

        IPython 9 calls this method after each failed cell, and has no public hook. IPython's own
        method formats the traceback a second time, and a failure there would end the cell with a
        wrong error.
        """
        for value, shown in self._shown_errors:
            if value is exception:
                return {"ename": shown.name, "evalue": shown.value, "traceback": shown.traceback}
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    # Running.

    def should_run_async(
        self, raw_cell: str, *, transformed_cell: str | None = None, **others: Any
    ) -> bool:
        if transformed_cell is not None and not may_contain_await(transformed_cell):
            return False
        return bool(super().should_run_async(raw_cell, transformed_cell=transformed_cell, **others))

    def run(self, code: str, store_history: bool) -> CellOutcome:
        """Run a cell. Raises KeyboardInterrupt for an interrupt before or after user code only, and
        what a signal handler raises there; an interrupt of user code is the outcome's error."""
        self._shown_errors.clear()
        self._format_failure = None
        count = self.execution_count
        self.session_loop.prepare_for_cell()
        builtins.input = self._read_input
        getpass.getpass = self._read_password
        try:
            result = self.run_cell(code, store_history=store_history)
        except Exception as failure:
            # Raised by IPython itself, which in version 8 fails on a NUL or a lone surrogate in the
            # code, or by a signal handler in IPython's own lines.
            self._print_shown_errors()
            return CellOutcome(count, _describe_without_traceback(failure), None)
        raised = result.error_before_exec or result.error_in_exec or self._format_failure
        # An empty cell has no number of its own, and tells the number of the cell before, as in
        # ipykernel.
        count = self.execution_count - 1
        if result.execution_count is not None:
            count = result.execution_count
        if isinstance(raised, SystemExit):
            self._print_shown_errors()
            return CellOutcome(count, *_describe_exit(raised))
        error = None if raised is None else self._take_shown_error(raised)
        self._print_shown_errors()
        return CellOutcome(count, error, None)

    def describe_early_end(self, raised: BaseException, execution_count: int) -> CellOutcome:
        """Return the outcome of a cell that an interrupt, or a signal handler of user code, has
        ended before or after the code. ``execution_count``: before the cell."""
        with warnings.catch_warnings():
            # Dropping the traceback frees a coroutine of IPython that was never awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            raised.__traceback__ = None
        self._print_shown_errors()
        if isinstance(raised, SystemExit):
            return CellOutcome(execution_count, *_describe_exit(raised))
        return CellOutcome(execution_count, _describe_without_traceback(raised), None)

    def _take_shown_error(self, raised: BaseException) -> mime_bundles.ErrorDescription:
        for index, (value, shown) in enumerate(self._shown_errors):
            if value is raised or (
                self.session_loop.was_interrupted and type(value) is KeyboardInterrupt
            ):
                del self._shown_errors[index]
                return shown
        # IPython prints some errors without a traceback, a magic's UsageError for example.
        return _describe_without_traceback(raised)

    def _print_shown_errors(self) -> None:
        """Print tracebacks that did not end the cell: of a callback, or shown by user code."""
        for _, shown in self._shown_errors:
            write_error("\n".join(shown.traceback))
        self._shown_errors.clear()

    def atexit_operations(self) -> None:
        """Let the objects of user code die, the youngest first, as an exit function of IPython:
        an archive, for example, writes its last bytes then. IPython's own method would repair the
        namespace too, which takes a millisecond."""
        if self.tempfiles or self.tempdirs:  # of %edit
            super().atexit_operations()
            return
        self.last_execution_result = None
        for name in reversed(list(self.user_ns)):
            if name not in ("__builtin__", "__builtins__", "__name__"):
                self.user_ns.pop(name, None)
        if find_descriptors(set()).files:
            gc.collect()

    def reset_session(self) -> None:
        """Forget the exercises: execution counts start at 1, the namespace is empty."""
        of_any_module = {
            name: getattr(self.user_module, name)
            for name in ("__doc__", "__loader__", "__package__", "__spec__")
        }
        self.reset(new_session=True)  # deletes the module's names, needed by multiprocessing
        self.user_ns.update(of_any_module)
        self.user_ns_hidden.update(of_any_module)
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        assert self.execution_count == 1


def make_shell() -> Shell:
    """Make the process's shell. Raises any exception of IPython."""
    assert not Shell.initialized()
    # IPython 8 opens a database in the profile's folder during construction, and has no hook for
    # the class of the database. IPython 9 opens the database on first use.
    ipython_8_database = getattr(interactiveshell, "PickleShareDB", None)
    if ipython_8_database is not None:
        interactiveshell.PickleShareDB = lambda _: {}
    try:
        shell: Shell = Shell.instance(config=Config(_CONFIG))
    finally:
        if ipython_8_database is not None:
            interactiveshell.PickleShareDB = ipython_8_database
    return shell


def _exception_to_show(exc_tuple: Any) -> tuple[Any, Any, Any]:
    """Return the given exception, or the exception being handled, or the last shown exception.

    Sets sys.last_value and its like for debuggers. Raises ValueError if there is no exception.
    """
    kind, value, trace = sys.exc_info() if exc_tuple is None else exc_tuple
    if kind is None and hasattr(sys, "last_type"):
        kind, value, trace = sys.last_type, sys.last_value, sys.last_traceback
    if kind is None:
        raise ValueError("no exception to show")
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = value
    return kind, value, trace


def _describe_without_traceback(raised: BaseException) -> mime_bundles.ErrorDescription:
    lines = "".join(traceback.format_exception_only(type(raised), raised)).splitlines()
    return mime_bundles.describe_error(type(raised), raised, lines)


def _describe_exit(raised: SystemExit) -> tuple[mime_bundles.ErrorDescription | None, int]:
    """Return the error (None for exit code 0) and the exit code of a SystemExit.

    By Python's rule, None means 0, an integer means its low eight bits, and any other value is
    printed and means 1.
    """
    code = raised.code
    try:
        text = str(code)
    except Exception as failure:  # user code's __str__, or an integer of too many digits
        text = f"<str() of it raised {type(failure).__name__}>"
    if code is None:
        number = 0
    elif isinstance(code, int):
        # A subclass of user code may override ``&``. Python takes a number beyond a C long for -1.
        number = int.__and__(code, 0xFF) if int.bit_length(code) < 64 else 255
    else:
        write_error(text)
        number = 1
    assert 0 <= number <= 255
    if number == 0:
        return None, 0
    return mime_bundles.describe_error(SystemExit, raised, [f"SystemExit: {text}"]), number
