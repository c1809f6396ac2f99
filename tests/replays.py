"""A plugin of pytest for properties alone: runs properties with new examples and keeps the examples
that fail, or runs a kept example again.

    EXECD_EXPLORE_SECONDS    no test begins later
    EXECD_REPLAY             the path of a kept case: the case's example alone

A case is hypothesis' blob, the shrunk choices behind an example, and the example as text. With
another version of hypothesis, or after a change of the strategy, the blob stands for nothing or for
another example: then the replay fails, and the text says what `@example` to write. An example of a
state machine, or of a property within a test, is not kept: its report has the steps.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import is_hypothesis_test, reproduce_failure
from hypothesis.errors import DidNotReproduce

from tests import drawn, found, profiles

if TYPE_CHECKING:
    from collections.abc import Generator

BLOB = re.compile(r"@reproduce_failure\((?P<version>'.*?'), (?P<blob>b'.*?')\)")
END = time.monotonic() + float(os.environ.get("EXECD_EXPLORE_SECONDS", "inf"))
REPLAYED = os.environ.get("EXECD_REPLAY")
CASE = json.loads(Path(REPLAYED).read_text()) if REPLAYED else None

profiles.load()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if CASE:
        [item] = items
        assert isinstance(item, pytest.Function)
        reproduce_failure(CASE["hypothesis"], ast.literal_eval(CASE["blob"]))(item.obj)
        return
    items[:] = [item for item in items if _draws(item)]
    # Another order in each run, because the time may end before the last test.
    random.Random(config.getoption("--hypothesis-seed")).shuffle(items)


def _draws(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return is_hypothesis_test(item.obj) or "@given" in inspect.getsource(item.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """True: nothing of the test is left to do."""
    return True if time.monotonic() > END else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo and not CASE:
        notes = "\n".join(getattr(call.excinfo.value, "__notes__", ()))
        if (blob := BLOB.search(notes)) and hasattr(getattr(item, "obj", None), "hypothesis"):
            case = {
                "test": item.nodeid,
                "hypothesis": ast.literal_eval(blob["version"]),
                "blob": blob["blob"],
                "example": [*drawn.examples.latest],
            }
            name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:12]
            found.keep("properties", f"{name}.json", json.dumps(case, indent=1).encode() + b"\n")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """hypothesis takes for an error that a blob's example passes."""
    try:
        return (yield)
    except DidNotReproduce:
        assert CASE
        if [*drawn.examples.latest] != CASE["example"]:
            pytest.fail(f"the choices draw another example now; write @example: {CASE['example']}")
        return True
