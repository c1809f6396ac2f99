"""The examples of the python-runtime's routes, in their order. Pure."""

from __future__ import annotations

from tools.openapi.example import BYTES, FORM, Example
from tools.openapi.example_replies import file_headers

EXAMPLES = (
    Example(
        operation="execute",
        reply={
            "stdout": "hello\n",
            "stderr": "trouble\n",
            "exit_code": 3,
            "timed_out": False,
            "truncated": None,
            "duration_seconds": 0.009456,
            "exit_reason": "exited",
            "execution_id": "44c25f5f64c10a34",
        },
        body={"command": "echo hello; echo trouble >&2; exit 3", "timeout_seconds": 10},
    ),
    Example(
        operation="execute_with_slash",
        reply={
            "stdout": "hello\n",
            "stderr": "",
            "exit_code": 0,
            "timed_out": False,
            "truncated": None,
            "duration_seconds": 0.008123,
            "exit_reason": "exited",
            "execution_id": "9c1d0e5b7f3a2846",
        },
        body={"command": "echo hello"},
    ),
    Example(
        operation="list_directory",
        reply=[{"name": "todo.txt", "size": 9, "type": "file", "mod_time": 1795597200.5}],
        parameters={"path": "notes"},
    ),
    Example(
        operation="exists",
        reply={"path": "notes/todo.txt", "exists": True},
        parameters={"path": "notes/todo.txt"},
    ),
    Example(
        operation="download",
        parameters={"path": "notes/todo.txt"},
        reply="Buy milk\n",
        reply_type=BYTES,
        reply_headers=file_headers("todo.txt"),
    ),
    Example(
        operation="list_base_dir",
        reply=[
            {"name": "lists", "size": 4096, "type": "directory", "mod_time": 1795597200.5},
            {"name": "notes", "size": 4096, "type": "directory", "mod_time": 1795597200.5},
            {"name": "shopping.txt", "size": 7, "type": "file", "mod_time": 1795597200.5},
        ],
    ),
    Example(operation="base_dir_exists", reply={"path": "", "exists": True}),
    Example(
        operation="download_base_dir",
        name="refused",
        status=404,
        reply={"message": "File not found"},
    ),
    Example(
        operation="upload",
        reply={"message": "File 'greeting.txt' uploaded successfully."},
        body={"file": "Hello\n"},
        body_type=FORM,
    ),
    Example(
        operation="upload_with_slash",
        reply={"message": "File 'greeting.txt' uploaded successfully."},
        body={"file": "Hello again\n"},
        body_type=FORM,
    ),
)
