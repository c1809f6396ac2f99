from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from execd import logging_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Lines(io.StringIO):
    """A stderr with a way to wait for lines on the way."""

    flush_log: Callable[[], None]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The output of a configured logger. The handlers of the test run itself are put back."""
    root, http = logging.getLogger(), logging.getLogger("aiohttp.server")
    before = root.handlers[:], root.level, http.filters[:]
    stderr = Lines()
    monkeypatch.setattr(sys, "stderr", stderr)
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        # as before, for later tests
        monkeypatch.setattr(logging, name, getattr(logging, name))
    # force=True closes the replaced handlers; pytest's handlers must live on.
    for handler in before[0]:
        root.removeHandler(handler)
    stderr.flush_log = logging_setup.setup("info")
    yield stderr
    root.handlers[:], http.filters[:] = before[0], before[2]
    root.setLevel(before[1])


def written(lines: Lines) -> dict[str, Any]:
    """The only line, which must be JSON."""
    lines.flush_log()
    (line,) = lines.getvalue().splitlines()
    return json.loads(line)


def test_line_is_json_with_time_level_and_extra_fields(lines: Lines) -> None:
    logging.getLogger("execd.x").info("done: %s", "all", extra={"count": 3, "path": "/a"})
    line = written(lines)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "execd.x",
        "message": "done: all",
        "count": 3,
        "path": "/a",
    }


def test_level_is_the_least_that_is_written(lines: Lines) -> None:
    logging.getLogger("execd.x").debug("nothing")
    lines.flush_log()
    assert lines.getvalue() == ""


def test_line_that_cannot_be_written_says_so_and_takes_no_other_along(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = logging_setup.JsonFormatter.format

    def format_most(self: logging_setup.JsonFormatter, record: logging.LogRecord) -> str:
        if record.getMessage() == "bad":
            raise ValueError
        return original(self, record)

    monkeypatch.setattr(logging_setup.JsonFormatter, "format", format_most)
    for message in ("before", "bad", "after"):
        logging.getLogger("execd.x").info(message)
    lines.flush_log()
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [line["message"] for line in found] == ["before", "not logged: ValueError", "after"]


def test_a_stderr_that_is_gone_costs_its_lines_and_not_those_to_come(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> int:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(lines, "write", refuse)
        logging.getLogger("execd.x").info("lost")
        lines.flush_log()
    logging.getLogger("execd.x").info("there")
    assert written(lines)["message"] == "there"


def test_exception_is_logged_whole_in_one_line(lines: Lines) -> None:
    try:
        raise ValueError("it was\nthis")
    except ValueError:
        logging.getLogger("execd.x").exception("fault")
    assert written(lines)["exception"].splitlines()[-2:] == ["ValueError: it was", "this"]


@pytest.mark.parametrize("value", ["\udcff", b"\xff", {1: 2}, object, 10**30, float("nan")])
def test_any_value_can_be_logged(lines: Lines, value: object) -> None:
    logging.getLogger("execd.x").info("odd", extra={"value": value})
    assert "value" in written(lines)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hidden-token",
        "headers {'authorization': 'bearer hidden-token'}",
        "Sec-WebSocket-Protocol: execd.bearer.hidden-token",
        "X-Access-Token: hidden-token",
        "('X-EXECD-ACCESS-TOKEN', 'hidden-token')",
        "AUTHORIZATION: BEARER hidden-token",
        "x-acce\N{LATIN SMALL LETTER LONG S}s-token: hidden-token",  # matches as an s
    ],
)
def test_no_token_gets_through(lines: Lines, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("execd.x").exception("%s", text, extra={"field": text})
    assert "hidden" not in lines.getvalue()
    assert written(lines)["message"].count("[redacted]") == 1


def test_malformed_request_is_logged_without_what_the_peer_sent(lines: Lines) -> None:
    try:
        raise BadHttpMessage("b'Cookie: hidden'")
    except BadHttpMessage as error:
        logging.getLogger("aiohttp.server").error(
            "Error handling request from %s", "10.0.0.1", exc_info=error
        )
    line = written(lines)
    assert (line["level"], line["message"]) == ("info", "malformed request: BadHttpMessage")
    assert "hidden" not in lines.getvalue()


def test_other_faults_of_the_server_are_logged_whole(lines: Lines) -> None:
    try:
        raise OSError("disk")
    except OSError as error:
        logging.getLogger("aiohttp.server").error("Unhandled exception", exc_info=error)
    line = written(lines)
    assert line["level"] == "error"
    assert "OSError: disk" in line["exception"]


def test_stalled_reader_of_the_log_loses_lines_and_stops_nobody() -> None:
    program = """
import logging, os
from execd import logging_setup as log
flush = log.setup("info")
for number in range(30_000):
    logging.getLogger("execd").info("x" * 100)
print("done", flush=True)
flush()
os._exit(0)
"""
    read_end, write_end = os.pipe()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=write_end, timeout=30
        )
    finally:
        os.close(read_end)
        os.close(write_end)
    assert ended.stdout == b"done\n"
