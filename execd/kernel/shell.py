"""IPython as a session has it: its own InteractiveShell, whose results, displays, tracebacks and
questions go to a front end.

Semantics are IPython's: nothing here evaluates code. What is replaced is where things go to, and
what would write outside the session: no history file, no profile directory, no thread of IPython's.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import builtins
import getpass
import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets.config import Config

from execd.kernel import matplotlib_backend, mime_bundles, tracebacks
from execd.kernel.event_loop import SessionLoop
from execd.kernel.source import CellTransformer, may_contain_await
from execd.kernel.subprocesses import install_script_magic, run_in_shell, system

if TYPE_CHECKING:
    from collections.abc import Callable

_CONFIG = {
    "InteractiveShell": {"colors": "NoColor", "autoawait": True},
    "HistoryManager": {
        "enabled": False,
        "hist_file": ":memory:",
    },  # else a file, and a thread that saves to it
    "IPCompleter": {"use_jedi": False},  # slow, and it runs in processes and threads of its own
}


class CellOutcome(NamedTuple):
    """What a cell came to, besides what it sent on the way."""

    execution_count: int
    error: mime_bundles.CellError | None
    exit_code: int | None
    """Of SystemExit, by Python's own rule: 0 to 255."""


class FrontEnd:
    """Where a cell's things go. This one drops them, for the zygote's exercises; the worker has the
    real one."""

    def display(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool
    ) -> None:
        """A display of the running cell."""

    def result(self, data: dict[str, Any], metadata: dict[str, Any], execution_count: int) -> None:
        """The value of its last expression."""

    def clear_output(self, wait: bool) -> None:
        """The cell asks its viewers to forget what it has shown."""

    def read_line(self, prompt: str, password: bool) -> str:
        """A line from the user. Raises StdinNotImplementedError where there is nobody to ask."""
        raise StdinNotImplementedError(
            "this cell was run without allow_input: input() has nobody to ask"
        )


class _ResultHook(DisplayHook):
    _is_displaying = False

    @property
    def is_active(self) -> bool:
        return self._is_displaying

    def start_displayhook(self) -> None:
        self._is_displaying = True

    def compute_format_data(self, result: Any) -> Any:
        return self.shell.format_result(
            lambda: super(_ResultHook, self).compute_format_data(result)
        )

    def quiet(self) -> bool:
        """Whether the cell ends with a semicolon; without any, IPython need not tokenize it to find
        out."""
        history = self.shell.history_manager.input_hist_parsed
        return (not history or ";" in history[-1]) and bool(super().quiet())

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self.shell.front_end.result(format_dict, md_dict or {}, self.prompt_count)

    def update_user_ns(self, result: Any) -> None:
        # a cell that deletes every name it sees takes this one too
        self.shell.user_ns.setdefault("_oh", {})
        super().update_user_ns(result)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        # What %history -o shows. The full bundles, pictures too, are not kept a second time.
        self.shell.history_manager.output_hist_reprs[self.prompt_count] = format_dict.get(
            "text/plain", ""
        )

    def finish_displayhook(self) -> None:
        self._is_displaying = False


class _SessionDisplayPublisher(DisplayPublisher):
    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: object = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: object,
    ) -> None:
        for name, bundle in (("data", data), ("metadata", metadata or {})):
            if not isinstance(bundle, dict):
                raise TypeError(f"{name} must be a dict, got: {bundle!r}")
        display_id = (transient or {}).get("display_id")
        self.shell.front_end.display(
            data, metadata or {}, None if display_id is None else str(display_id), bool(update)
        )

    def clear_output(self, wait: bool = False) -> None:
        self.shell.front_end.clear_output(bool(wait))


class _MemoryDatabase(dict[str, Any]):
    """What %bookmark, %rehashx and %store keep, for the session's life. As IPython's own, it does
    not miss what it is rid of."""

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


class _Exit(ExitAutocall):
    """``exit`` and ``quit``, which also take a code, as in a script."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)


class Shell(InteractiveShell):
    """One per process. Made in the zygote, inherited by its forks."""

    def __init__(self, **kwargs: Any) -> None:
        self.front_end = FrontEnd()
        self._tracebacks: list[tuple[BaseException | None, mime_bundles.CellError]] = []
        self._format_failure: BaseException | None = None
        self._omitted_frames = 0
        super().__init__(exiter=_Exit(), **kwargs)
        self.db = _MemoryDatabase()
        self.loop_runner = self.session_loop = SessionLoop()
        self.input_transformer_manager = CellTransformer()
        install_script_magic(self)
        matplotlib_backend.install_import_hook()
        os.system = system

    # What IPython would put into the home directory.

    def init_ipython_dir(self, ipython_dir: object) -> None:
        pass

    def init_profile_dir(self, profile_dir: object) -> None:
        self.profile_dir = ProfileDir()

    # Where things go.

    def init_displayhook(self) -> None:
        self.displayhook_class = _ResultHook
        super().init_displayhook()

    def init_display_pub(self) -> None:
        self.display_pub_class = _SessionDisplayPublisher
        super().init_display_pub()

    def init_display_formatter(self) -> None:
        super().init_display_formatter()
        mime_bundles.limit_string_reprs(self.display_formatter)

    def enable_gui(self, gui: object = None) -> None:
        """There is no event loop of a window system to run."""

    def system(self, cmd: str) -> None:
        """``!cmd``: to descriptors 1 and 2, as it comes."""
        self.user_ns["_exit_code"] = run_in_shell(self.var_expand(cmd, depth=1))

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
        if isinstance(value, SystemExit):
            # IPython's next line would warn somebody at a terminal how to exit.
            warnings.filterwarnings("ignore", "To exit:", UserWarning)
            return  # not an error of the cell's: ``run`` tells it apart
        if self.session_loop.was_interrupted and type(value).__name__ == "CancelledError":
            # An interrupt reaches a waiting task as its cancellation: to the cell it is what Ctrl-C
            # is anywhere.
            interrupt = KeyboardInterrupt()
            interrupt.__traceback__ = trace
            kind, value = KeyboardInterrupt, interrupt
        self._omitted_frames = tracebacks.shorten(value)
        exc_tuple = kind, value, value.__traceback__
        if not tracebacks.has_exception_group(value):
            n_shown = len(self._tracebacks)
            try:
                super().showtraceback(exc_tuple, *args, **kwargs)
                return
            except Exception:
                if len(self._tracebacks) > n_shown:
                    raise  # of what comes after it: %pdb
                # IPython stumbles over a __str__ that raises, and over errors that are each other's
                # cause. The error is still this one.
        lines = "".join(
            traceback.format_exception(
                kind, value, tracebacks.skip_ipython_frames(value.__traceback__)
            )
        ).splitlines()
        self._showtraceback(kind, value, lines)

    def _showtraceback(
        self, etype: type[BaseException], evalue: BaseException | None, stb: Any
    ) -> None:
        lines = stb.splitlines() if isinstance(stb, str) else list(stb)
        if self._omitted_frames:
            lines.insert(
                -1, f"[{self._omitted_frames} frames in the middle of a traceback are left out]\n"
            )
            self._omitted_frames = 0
        self._tracebacks.append((evalue, mime_bundles.describe_error(etype, evalue, lines)))

    def format_result(self, format_it: Callable[[], Any]) -> Any:
        """IPython shows what a ``__repr__`` raises and goes on. A cell whose value cannot be shown
        is no success, as in ipykernel."""
        n_shown = len(self._tracebacks)
        formats = format_it()
        if len(self._tracebacks) > n_shown:
            self._format_failure = self._tracebacks[n_shown][0]
        return formats

    def _format_exception_for_storage(
        self, exception: BaseException, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """For %notebook, in 9.x: what was shown. IPython would format it all again, and its faults
        would be the cell's."""
        for value, shown in self._tracebacks:
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
        """Run one cell. Raises KeyboardInterrupt only if it comes before or after the cell's own
        code."""
        self._tracebacks.clear()
        self._format_failure = None
        self.session_loop.prepare_for_cell()
        builtins.input = self._read_input
        getpass.getpass = self._read_password
        try:
            result = self.run_cell(code, store_history=store_history)
        except Exception as failure:
            # Of IPython: 8.x lets through what a NUL or a lone surrogate in the code leads to.
            return CellOutcome(self.execution_count, _describe_without_traceback(failure), None)
        raised = result.error_before_exec or result.error_in_exec or self._format_failure
        count = self.execution_count if result.execution_count is None else result.execution_count
        if isinstance(raised, SystemExit):
            self._print_remaining_tracebacks()
            return CellOutcome(count, *_describe_exit(raised))
        error = None if raised is None else self._take_traceback_of(raised)
        self._print_remaining_tracebacks()
        return CellOutcome(count, error, None)

    def _take_traceback_of(self, raised: BaseException) -> mime_bundles.CellError:
        for index, (value, shown) in enumerate(self._tracebacks):
            if value is raised or (
                self.session_loop.was_interrupted and type(value) is KeyboardInterrupt
            ):
                del self._tracebacks[index]
                return shown
        # Such as a magic's UsageError, which IPython prints instead.
        return _describe_without_traceback(raised)

    def _print_remaining_tracebacks(self) -> None:
        """Tracebacks that were shown without ending the cell: a callback's, or one that user code
        asked for."""
        for _, shown in self._tracebacks:
            print("\n".join(shown.traceback), file=sys.stderr)
        self._tracebacks.clear()

    def reset_session(self) -> None:
        """Forget all that was run: numbers start at 1, the namespace is empty."""
        of_any_module = {
            name: getattr(self.user_module, name)
            for name in ("__doc__", "__loader__", "__package__", "__spec__")
        }
        self.reset(new_session=True)  # which takes those too, and multiprocessing looks for them
        self.user_ns.update(of_any_module)
        self.user_ns_hidden.update(of_any_module)
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)


def make_shell() -> Shell:
    """The process's one. Raises whatever IPython raises."""
    # 8.x opens its database in the profile's folder while it is being made; there is no such name
    # in 9.x.
    original, interactiveshell.PickleShareDB = (
        getattr(interactiveshell, "PickleShareDB", None),
        lambda _: {},
    )
    try:
        shell: Shell = Shell.instance(config=Config(_CONFIG))
    finally:
        interactiveshell.PickleShareDB = original
    return shell


def _exception_to_show(exc_tuple: Any) -> tuple[Any, Any, Any]:
    """The given exception, or the one being handled, or the last shown. Raises ValueError if there
    is none. Debuggers look for it in ``sys.last_value`` and beside."""
    kind, value, trace = sys.exc_info() if exc_tuple is None else exc_tuple
    if kind is None and hasattr(sys, "last_type"):
        kind, value, trace = sys.last_type, sys.last_value, sys.last_traceback
    if kind is None:
        raise ValueError("no exception to show")
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = value
    return kind, value, trace


def _describe_without_traceback(raised: BaseException) -> mime_bundles.CellError:
    lines = "".join(traceback.format_exception_only(type(raised), raised)).splitlines()
    return mime_bundles.describe_error(type(raised), raised, lines)


def _describe_exit(raised: SystemExit) -> tuple[mime_bundles.CellError | None, int]:
    """By the interpreter's own rule: None is 0, an integer is itself, anything else is printed and
    is 1."""
    code = raised.code
    try:
        text = str(code)
    except (
        Exception
    ) as failure:  # user code's __str__, or a number of more digits than Python converts
        text = f"<str() of it raised {type(failure).__name__}>"
    if code is None:
        number = 0
    elif isinstance(code, int):
        number = int.__and__(code, 0xFF)  # whatever a class of user code says that it is
    else:
        print(text, file=sys.stderr)
        number = 1
    if number == 0:
        return None, 0
    return mime_bundles.describe_error(SystemExit, raised, [f"SystemExit: {text}"]), number
