"""The examples of executions, in their order. Pure."""

from __future__ import annotations

from tools.openapi.example import BYTES, EVENT_STREAM, FIRST_EVENT, LINES, Example
from tools.openapi.example_replies import command, limits, without_output

TROUBLE = {
    **command(
        "trouble", {"command": "echo trouble >&2; exit 3"}, "trouble\n", timeout_seconds=10.0
    ),
    "exit_code": 3,
    "stdout": "",
    "stderr": "trouble\n",
}

EXAMPLES = (
    Example(
        operation="run_command",
        reply=TROUBLE,
        name="with an error",
        body={"id": "trouble", "command": "echo trouble >&2; exit 3", "timeout_seconds": 10},
        reply_headers={"Location": "/v1/executions/trouble"},
    ),
    Example(
        operation="run_command",
        reply=command("hello", {"command": "echo hello"}, "hello\n", timeout_seconds=10.0),
        name="to the end",
        body={"id": "hello", "command": "echo hello", "timeout_seconds": 10},
    ),
    Example(
        operation="run_command",
        reply=command("reader", {"argv": ["cat"]}),
        name="in the background",
        body={"id": "reader", "argv": ["cat"], "stdin_open": True, "detach": True},
        status=202,
    ),
    Example(
        operation="run_command",
        reply=command("shell", {"argv": ["sh"]}),
        name="in a terminal",
        body={"id": "shell", "argv": ["sh"], "pty": True, "detach": True},
        status=202,
    ),
    Example(
        operation="list_executions",
        reply={
            "items": [
                without_output(
                    command("hello", {"command": "echo hello"}, "hello\n", timeout_seconds=10.0)
                )
            ],
            "next_cursor": "1795597200.25:hello",
        },
        parameters={"state": "EXITED", "limit": 1},
    ),
    Example(
        operation="get_execution",
        reply={
            **without_output(
                command("hello", {"command": "echo hello"}, "hello\n", timeout_seconds=10.0)
            ),
            "stdout_base64": "aGVsbG8K",
            "stderr_base64": "",
            "truncated": None,
        },
        parameters={"id": "hello", "encoding": "base64"},
    ),
    Example(
        operation="read_stdout",
        parameters={"id": "hello"},
        reply="hello\n",
        reply_type=BYTES,
    ),
    Example(
        operation="read_stderr",
        parameters={"id": "trouble", "Range": "bytes=0-3"},
        status=206,
        reply="trou",
        reply_type=BYTES,
        reply_headers={"Content-Range": "bytes 0-3/8"},
    ),
    Example(
        operation="stream_execution",
        reply={
            "id": "2",
            "event": "stdout",
            "data": '{"offset":0,"size_bytes":6,"text":"hello\\n"}',
        },
        parameters={"id": "hello", "after": 1},
        reply_type=EVENT_STREAM,
        reply_note=FIRST_EVENT,
    ),
    Example(
        operation="stream_execution",
        name="lines",
        reply={"event": "stdout", "sequence": 2, "offset": 0, "size_bytes": 6, "text": "hello\n"},
        parameters={"id": "hello", "after": 1},
        reply_type=LINES,
        reply_note=FIRST_EVENT,
    ),
    Example(
        operation="write_stdin",
        reply={"written_bytes": 6},
        parameters={"id": "reader", "eof": False},
        body="typed\n",
        body_type=BYTES,
    ),
    Example(
        operation="give_execution_input",
        reply={"written_bytes": 5},
        parameters={"id": "reader"},
        body={"text": "more\n"},
    ),
    Example(
        operation="resize_terminal",
        parameters={"id": "shell"},
        body={"cols": 120, "rows": 40},
        status=204,
    ),
    Example(
        operation="attach_terminal",
        parameters={"id": "shell"},
        status=101,
        messages={
            "sends": [
                {
                    "type": "started",
                    "id": "shell",
                    "argv": ["sh"],
                    "cwd": "/workspace",
                    "limits": limits(300.0),
                    "pid": 7,
                    "started_at": "2026-11-25T09:00:00.250Z",
                }
            ],
            "receives": [
                {"type": "resize", "cols": 100, "rows": 30},
                {"type": "signal", "signal": "SIGKILL"},
            ],
        },
    ),
    Example(
        operation="signal_execution",
        parameters={"id": "reader"},
        body={"signal": "CONT"},
        status=204,
    ),
    Example(
        operation="kill_execution",
        reply={
            **command("reader", {"argv": ["cat"]}, "typed\nmore\n"),
            "exit_code": 143,
            "signal": "SIGTERM",
            "exit_reason": "canceled",
            "message": "a caller asked for the end: kill, DELETE, or the end of the session",
        },
        parameters={"id": "reader"},
        body={"grace_seconds": 1},
    ),
    Example(operation="delete_execution", parameters={"id": "shell"}, status=204),
)
