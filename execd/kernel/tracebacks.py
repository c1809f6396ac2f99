"""Tracebacks as the user should see them: without execd's frames, and of a bounded length.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from types import TracebackType

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
END_FRAMES = 50
"""Of a traceback longer than twice that, so many at each end are shown."""


def shorten(value: BaseException) -> int:
    """Take this package out of an exception's traceback, and out of those it came from. Returns how
    many frames else were left out.

    Its frames above user code go, and where user code calls into it (input, !cmd) all that is
    below. Of a deep recursion both ends stay: IPython takes a millisecond for each frame, also of
    those it does not show.
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
        if len(kept) < len(traces):
            current.__traceback__ = _link(kept)
    return omitted


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
        line: int | None = trace.tb_lineno  # some instructions belong to none
        code = trace.tb_frame.f_code
        chain = TracebackType(
            chain, trace.tb_frame, trace.tb_lasti, code.co_firstlineno if line is None else line
        )
    return chain


def skip_ipython_frames(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame that is not IPython's on."""
    start = trace
    while start is not None and "IPython" in start.tb_frame.f_code.co_filename:
        start = start.tb_next
    return start or trace


def has_exception_group(value: BaseException | None) -> bool:
    # By name: 3.9 and 3.10 have only the backport's. IPython prints these to stderr instead of
    # handing them over.
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        if any(cls.__name__ == "BaseExceptionGroup" for cls in type(value).__mro__):
            return True
        seen.add(id(value))
        value = value.__context__
    return False
