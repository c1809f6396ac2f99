"""The examples of sessions, in their order. Pure."""

from __future__ import annotations

from tools.openapi.example import EVENT_STREAM, FIRST_EVENT, Example
from tools.openapi.example_replies import cell, session

EXAMPLES = (
    Example(
        operation="create_session",
        reply=session("analysis"),
        body={"id": "analysis", "env": {"STAGE": "test"}},
        status=201,
        reply_headers={"Location": "/v1/sessions/analysis"},
    ),
    Example(
        operation="stream_session",
        parameters={"id": "analysis"},
        reply={
            "id": "1795597200000",
            "event": "state",
            "data": '{"state":"STARTING","generation":1,"prompt":null,"password":null}',
        },
        reply_type=EVENT_STREAM,
        reply_note=FIRST_EVENT,
    ),
    Example(
        operation="run_cell",
        reply=cell(
            "sum",
            "analysis",
            "numbers = [1, 2, 3]\nsum(numbers)",
            result={"data": {"text/plain": "6"}, "metadata": {}, "display_id": None},
        ),
        parameters={"id": "analysis"},
        body={"id": "sum", "code": "numbers = [1, 2, 3]\nsum(numbers)"},
    ),
    Example(
        operation="get_session",
        reply=session("analysis", execution_count=1),
        parameters={"id": "analysis"},
    ),
    Example(
        operation="list_sessions",
        reply={"items": [session("analysis", execution_count=1)], "next_cursor": None},
        parameters={"limit": 10},
    ),
    Example(
        operation="list_variables",
        reply={
            "variables": [{"name": "numbers", "type": "list", "repr": "[1, 2, 3]", "length": 3}],
            "total": 1,
        },
        parameters={"id": "analysis", "limit": 10},
    ),
    Example(
        operation="complete_code",
        reply={"matches": [".append"], "cursor_start": 7, "cursor_end": 11},
        parameters={"id": "analysis"},
        body={"code": "numbers.app"},
    ),
    Example(
        operation="fork_session",
        reply={"sessions": [session("what-if", execution_count=1)], "warnings": []},
        parameters={"id": "analysis"},
        body={"id": "what-if"},
        status=201,
    ),
    Example(
        operation="interrupt_session",
        reply={"interrupted": False},
        parameters={"id": "what-if"},
    ),
    Example(
        operation="run_cell",
        name="with a question",
        parameters={"id": "analysis"},
        body={
            "id": "question",
            "code": "name = input('Who? ')",
            "allow_input": True,
            "detach": True,
        },
        status=202,
    ),
    Example(
        operation="give_session_input",
        reply={"written_bytes": 3},
        parameters={"id": "analysis"},
        body={"text": "Ada"},
    ),
    Example(
        operation="restart_session",
        reply=session("what-if", generation=2),
        parameters={"id": "what-if"},
    ),
    Example(operation="delete_session", parameters={"id": "what-if"}, status=204),
    Example(
        operation="run_code",
        reply=cell("answer", "scratch", "print(6 * 7)", stdout="42\n"),
        body={"id": "answer", "session_id": "scratch", "code": "print(6 * 7)"},
    ),
)
