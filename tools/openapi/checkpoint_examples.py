"""The examples of checkpoints, in their order. Pure."""

from __future__ import annotations

from typing import Any

from tools.openapi.example import BYTES, Example
from tools.openapi.example_replies import ETAG

CHECKPOINT: dict[str, Any] = {
    "id": "before",
    "created_at": "2026-11-30T08:00:00.000Z",
    "roots": [{"path": "/workspace/plans", "files": 1, "bytes": 8}],
    "watched": [],
    "exclude": ["**/.cache"],
    "bytes": 8,
    "duration_seconds": 0.020114,
}
NO_START = (
    "there is no checkpoint 'start' to reset to; start execd with --checkpoint-at-start ROOT, or "
    'make a checkpoint first: POST /v1/checkpoints with {"id": "start"}'
)
PATCH = """\
diff --git a/today.txt b/today.txt
index 32b7a55a48fb9ea7ee836ac439b9e20b2a84be73..28cf375e8becd5652371100e11f6f6b4b51017b9 100644
--- a/today.txt
+++ b/today.txt
@@ -1,1 +1,1 @@
-Wake up
+Sleep
"""

EXAMPLES = (
    Example(
        operation="write_file",
        name="before a checkpoint",
        parameters={"path": "plans/today.txt", "mode": "0644"},
        body="Wake up\n",
        body_type=BYTES,
        status=204,
        reply_headers={"ETag": ETAG},
    ),
    Example(
        operation="create_checkpoint",
        body={"id": "before", "roots": ["plans"], "exclude": ["**/.cache"]},
        status=201,
        reply=CHECKPOINT,
        reply_headers={"Location": "/v1/checkpoints/before"},
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
    Example(operation="list_checkpoints", reply={"items": [CHECKPOINT]}),
    Example(operation="get_checkpoint", parameters={"id": "before"}, reply=CHECKPOINT),
    Example(
        operation="write_file",
        name="after a checkpoint",
        parameters={"path": "plans/today.txt"},
        body="Sleep\n",
        body_type=BYTES,
        status=204,
        reply_headers={"ETag": ETAG},
    ),
    Example(
        operation="get_changes",
        parameters={"id": "before", "limit": 100},
        reply={
            "items": [
                {
                    "path": "/workspace/plans/today.txt",
                    "change": "modified",
                    "type": "file",
                    "size_bytes": 6,
                    "was_size_bytes": 8,
                }
            ],
            "next_cursor": None,
        },
    ),
    Example(
        operation="get_changes",
        name="as a patch",
        parameters={"id": "before", "format": "patch", "path": "plans"},
        reply=PATCH,
        reply_type="text/x-patch",
        reply_headers={"Content-Disposition": 'attachment; filename="before.patch"'},
    ),
    Example(
        operation="restore_checkpoint",
        parameters={"id": "before"},
        reply={
            "restored": 2,
            "removed": 0,
            "unchanged": 0,
            "failed": [],
            "duration_seconds": 0.008114,
        },
    ),
    Example(
        operation="reset_sandbox",
        parameters={"Idempotency-Key": "after-episode-7"},
        body={"checkpoint": "before"},
        reply={
            "clean": True,
            "episode": "a608ef9245f1-2",
            "verified_by": "stat",
            "ended": {"executions": 1, "sessions": 2, "shells": 0, "processes": 9},
            "files": {"restored": 3, "removed": 1, "unchanged": 12},
            "differences": {"items": [], "total": 0},
            "scope": {
                "processes": "namespace",
                "checkpoint": "before",
                "checkpoint_created_at": "2026-11-30T08:00:00.000Z",
                "roots": ["/workspace/plans"],
                "watched": [],
            },
            "steps": [
                {"name": name, "duration_seconds": seconds}
                for name, seconds in (
                    *(("end", 0.021304), ("halt", 0.012086), ("restore", 0.009301)),
                    *(("forget", 0.000212), ("start", 0.040118), ("verify", 0.011522)),
                )
            ],
        },
    ),
    Example(
        operation="reset_sandbox",
        name="refused",
        body={},
        status=404,
        reply={"code": "NOT_FOUND", "message": NO_START},
        reply_note="Without a checkpoint of the start.",
    ),
    Example(operation="delete_checkpoint", parameters={"id": "before"}, status=204),
)
