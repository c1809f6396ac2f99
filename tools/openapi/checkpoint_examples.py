"""The examples of checkpoints, in their order. Pure."""

from __future__ import annotations

from tools.openapi.example import Example

MADE = {
    "id": "before-task",
    "created_at": "2026-11-29T12:00:00.000000Z",
    "roots": [{"path": "/workspace", "files": 2, "bytes": 20}],
    "watched": [],
    "exclude": ["**/node_modules"],
    "bytes": 20,
    "duration_seconds": 0.061532,
}

RESET = {
    "clean": True,
    "episode": "a608ef9245f1-2",
    "verified_by": "stat",
    "ended": {"executions": 1, "sessions": 1, "shells": 0, "processes": 6},
    "files": {"restored": 2, "removed": 1, "unchanged": 1},
    "differences": {"items": [], "total": 0},
    "scope": {
        "processes": "namespace",
        "checkpoint": "before-task",
        "roots": ["/workspace"],
        "watched": [],
    },
    "steps": [{"name": "end", "duration_seconds": 0.013338}],
}
NO_START = (
    "there is no checkpoint 'start' to reset to; start execd with --checkpoint-at-start ROOT, or "
    'make a checkpoint first: POST /v1/checkpoints with {"id": "start"}'
)

EXAMPLES = (
    Example(
        operation="create_checkpoint",
        body={"id": "before-task", "roots": ["."], "exclude": ["**/node_modules"]},
        status=201,
        reply=MADE,
        reply_headers={"Location": "/v1/checkpoints/before-task"},
    ),
    Example(
        operation="create_checkpoint",
        name="refused",
        body={"roots": ["/proc"]},
        status=400,
        reply={
            "code": "INVALID_ARGUMENT",
            "message": "roots[0]: '/proc' is of the kernel, of execd, or above",
            "details": {"field": "roots[0]"},
        },
    ),
    Example(operation="list_checkpoints", reply={"items": [MADE]}),
    Example(operation="get_checkpoint", parameters={"id": "before-task"}, reply=MADE),
    Example(
        operation="get_changes",
        parameters={"id": "before-task", "limit": 1000},
        reply={"items": [], "next_cursor": None},
    ),
    Example(
        operation="restore_checkpoint",
        parameters={"id": "before-task"},
        reply={
            "restored": 0,
            "removed": 0,
            "unchanged": 4,
            "failed": [],
            "duration_seconds": 0.004181,
        },
    ),
    Example(
        operation="reset_sandbox",
        parameters={"Idempotency-Key": "reset-1"},
        body={"checkpoint": "before-task"},
        reply=RESET,
    ),
    Example(
        operation="reset_sandbox",
        name="refused",
        body={},
        status=404,
        reply={"code": "NOT_FOUND", "message": NO_START},
        reply_note="Without a checkpoint of the start.",
    ),
    Example(operation="delete_checkpoint", parameters={"id": "before-task"}, status=204),
)
