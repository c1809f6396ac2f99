"""IPython's hooks around a cell (``get_ipython().events``), contained.

IPython reports an Exception of a hook, and goes on. A SystemExit of a hook would pass: a
``pre_run_cell`` hook that calls ``sys.exit`` would end every later cell before the cell's first
line.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import traceback
from typing import Any

from IPython.core.events import EventManager

from execd.kernel import tracebacks


class CellHooks(EventManager):
    """Runs every hook of an event. Whatever a hook raises is shown on stderr, and the cell and the
    further hooks run."""

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
