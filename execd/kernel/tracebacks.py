"""Tracebacks for the user: without execd's frames, and of a bounded length.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from types import TracebackType

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
END_FRAMES = 50
"""Frames kept at each end of a traceback with more than twice as many frames."""


def shorten(value: BaseException) -> int:
    """Shorten the tracebacks of an exception and of its causes and contexts, in place.

    Removes execd's frames above user code. Where user code calls execd (input, !cmd), removes all
    frames from there on. Of a deep recursion only both ends stay, because IPython takes 1 ms per
    frame, hidden frames included. Returns the number of frames removed from the middle.
    """
    omitted = 0
    seen: set[int] = set()
    waiting: list[BaseException | None] = [value]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [current.__cause__, current.__context__]
        traces = []
        trace = current.__traceback__
        while trace is not None:
            traces.append(trace)
            trace = trace.tb_next
        kept = _select_user_frames(traces)
        if len(kept) > 2 * END_FRAMES:
            omitted += len(kept) - 2 * END_FRAMES
            kept = kept[:END_FRAMES] + kept[-END_FRAMES:]
        assert len(kept) <= min(len(traces), 2 * END_FRAMES)
        if len(kept) < len(traces):
            current.__traceback__ = _link(kept)
    return omitted


def cut_ring(value: BaseException) -> None:
    """Cut a ring of contexts at the end of the chain that begins with ``value``. While an exception
    of a ring is handled, each further exception is an endless loop in early releases of Python 3.9
    and 3.10 (bpo-25782), which no signal ends."""
    seen = set()
    current: BaseException | None = value
    while current is not None:
        seen.add(id(current))
        if id(current.__context__) in seen:
            current.__context__ = None
        current = current.__context__


def _select_user_frames(traces: list[TracebackType]) -> list[TracebackType]:
    own = [os.path.dirname(trace.tb_frame.f_code.co_filename) == OWN_FOLDER for trace in traces]
    if not any(own):
        return traces
    of_cells = [
        index
        for index, trace in enumerate(traces)
        if "ipython-input-" in trace.tb_frame.f_code.co_filename
    ]
    last = max(of_cells, default=len(traces))
    end = next((index for index in range(last, len(traces)) if own[index]), len(traces))
    return [traces[index] for index in range(end) if not own[index]]


def _link(traces: list[TracebackType]) -> TracebackType | None:
    chain = None
    for trace in reversed(traces):
        line: int | None = trace.tb_lineno  # None for instructions without a source line
        code = trace.tb_frame.f_code
        chain = TracebackType(
            chain, trace.tb_frame, trace.tb_lasti, code.co_firstlineno if line is None else line
        )
    return chain


def skip_ipython_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside IPython on."""
    start = trace
    while start is not None and "IPython" in start.tb_frame.f_code.co_filename:
        start = start.tb_next
    return start or trace


def has_exception_group(value: BaseException | None) -> bool:
    """Return whether an exception or one of its contexts is an exception group.

    IPython prints exception groups to stderr instead of calling ``_showtraceback``.
    """
    # By name: Python 3.9 and 3.10 have only the class of the backport.
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        if any(cls.__name__ == "BaseExceptionGroup" for cls in type(value).__mro__):
            return True
        seen.add(id(value))
        value = value.__context__
    return False
