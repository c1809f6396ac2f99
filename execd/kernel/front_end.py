"""Destination of a cell's output, and IPython's hooks in front of the destination and around a
cell.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import traceback
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.events import EventManager

from execd.kernel import tracebacks


class FrontEnd:
    """Receives a cell's output. This class drops everything, for the zygote's exercises; a worker
    has a ``CellFrontEnd``."""

    def display(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool
    ) -> None:
        """Take a display of the running cell."""

    def result(self, data: dict[str, Any], metadata: dict[str, Any], execution_count: int) -> None:
        """Take the value of the cell's last expression."""

    def clear_output(self, wait: bool) -> None:
        """Tell the cell's viewers to clear earlier displays."""

    def read_line(self, prompt: str, password: bool) -> str:
        """Return a line typed by the user.

        Raises StdinNotImplementedError if the cell runs without allow_input.
        """
        raise StdinNotImplementedError(
            "this cell was run without allow_input: input() has nobody to ask"
        )


class ResultHook(DisplayHook):
    """IPython's display hook, sending results to the front end and nothing to sys.stdout."""

    _is_displaying = False

    @property
    def is_active(self) -> bool:
        return self._is_displaying

    def start_displayhook(self) -> None:
        self._is_displaying = True

    def compute_format_data(self, result: Any) -> Any:
        return self.shell.format_result(lambda: super(ResultHook, self).compute_format_data(result))

    def quiet(self) -> bool:
        """Return whether the cell ends with a semicolon. A cell without any semicolon needs no
        tokenizing by IPython."""
        history = self.shell.history_manager.input_hist_parsed
        return (not history or ";" in history[-1]) and bool(super().quiet())

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        # The metadata of _repr_mimebundle_ are of any type.
        metadata = md_dict if isinstance(md_dict, dict) else {}
        self.shell.front_end.result(format_dict, metadata, self.prompt_count)

    def update_user_ns(self, result: Any) -> None:
        # A cell that deletes all names of the namespace deletes _oh too.
        self.shell.user_ns.setdefault("_oh", {})
        super().update_user_ns(result)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        # The text shown by %history -o. IPython 9 would also keep whole bundles, with pictures.
        self.shell.history_manager.output_hist_reprs[self.prompt_count] = format_dict.get(
            "text/plain", ""
        )

    def finish_displayhook(self) -> None:
        self._is_displaying = False


class SessionDisplayPublisher(DisplayPublisher):
    """IPython's display publisher, sending displays to the front end."""

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


class CellHooks(EventManager):
    """IPython's hooks around a cell (``get_ipython().events``), contained: every hook of an event
    runs, whatever a hook raises is shown on stderr, and the cell runs.

    IPython reports an Exception of a hook, and goes on. A SystemExit of a hook would pass: a
    ``pre_run_cell`` hook that calls ``sys.exit`` would end every later cell before the cell's first
    line.
    """

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        for hook in self.callbacks[event][:]:
            try:
                hook(*args, **kwargs)
            except BaseException as raised:
                self._show(event, raised)

    def _show(self, event: str, raised: BaseException) -> None:
        tracebacks.shorten(raised)
        try:
            lines = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__))
        except Exception as failure:  # user code's exception class
            lines = f"formatting the exception raised {type(failure).__name__}"
        self.shell._showtraceback(
            type(raised), raised, [f"Error in a {event} hook:", *lines.splitlines()]
        )
