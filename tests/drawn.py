"""A plugin of pytest: a digest of all drawn examples, printed at the end of a run.

The digest is a sum of the hashes of the examples, each with the name of its test, so neither the
order of the tests nor the processes that run the tests matter. Two runs of one commit that print
the same digest have asked the same questions. ``docs/testing.md`` says what the digest covers.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import is_hypothesis_test
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
BITS = 128


class Examples:
    """How many examples were drawn, and the sum of their hashes."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.lost_processes = 0
        self.latest: deque[str] = deque(maxlen=100)
        """The arguments and the draws of the latest example."""

    def add(self, test: str, value: object) -> None:
        self.latest.append(_stable(value))
        text = f"{test}\n{self.latest[-1]}".encode("utf-8", "surrogatepass")
        self.merge(1, int.from_bytes(hashlib.sha256(text).digest()[: BITS // 8], "big"))

    def merge(self, count: int, total: int) -> None:
        self.count += count
        self.total = (self.total + total) % (1 << BITS)

    def __str__(self) -> str:
        lost = f", without those of {self.lost_processes} processes that died"
        return f"examples: {self.count} drawn, digest {self.total:032x}" + (
            lost if self.lost_processes else ""
        )


examples = Examples()


def note(value: object) -> None:
    """Add what the running test has drawn without ``given``."""
    # pytest: "path::test (phase)".
    examples.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], value)


def _stable(value: object) -> str:
    """The text of a value, the same in every process."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_stable, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_stable(key)}: {_stable(of)}' for key, of in value.items())}}}"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_stable, value))}]"
    return ADDRESS.sub("", repr(value))


def _watch_draws(data: st.DataObject) -> None:
    draw = data.draw

    def noted(strategy: st.SearchStrategy[Any], label: Any = None) -> Any:
        value = draw(strategy, label)
        note(value)
        return value

    data.draw = noted


def _watched(test: Callable[..., Any], drawn: set[str]) -> Callable[..., Any]:
    @functools.wraps(test)
    def noted(*args: Any, **arguments: Any) -> Any:
        examples.latest.clear()
        note({name: arguments[name] for name in sorted(drawn)})
        for name in drawn:
            if isinstance(arguments[name], st.DataObject):
                _watch_draws(arguments[name])
        return test(*args, **arguments)

    return noted


# Before pytest-asyncio replaces the inner test, and only once for all parameters of a test.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set()
    for item in items:
        test = getattr(item, "obj", None)
        handle = getattr(test, "hypothesis", None)
        if handle is not None and is_hypothesis_test(test) and id(handle) not in seen:
            seen.add(id(handle))
            # The signature that pytest sees lacks the arguments that hypothesis draws.
            given = inspect.signature(handle.inner_test).parameters
            drawn = given.keys() - inspect.signature(test).parameters.keys() - {"self"}
            handle.inner_test = _watched(handle.inner_test, drawn)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        session.config.workeroutput["examples"] = [examples.count, str(examples.total)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    try:
        count, total = node.workeroutput["examples"]
    except (AttributeError, KeyError):
        examples.lost_processes += 1
    else:
        examples.merge(count, int(total))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if examples.count or examples.lost_processes:
        terminalreporter.write_line(str(examples))
