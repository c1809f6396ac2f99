"""The examples of files, in their order. Pure."""

from __future__ import annotations

from tools.openapi.example import BYTES, EVENT_STREAM, FIRST_EVENT, Example
from tools.openapi.example_replies import ETAG, described, entry, file_headers, found

ZIP = (
    "PK\x03\x04\x14\0\0\0\0\0\0Hy]t\x180_\a\0\0\0\a\0\0\0\x0c\0\0\0"
    "shopping.txt8 eggs\n"
    "PK\x01\x02\x14\0\x14\0\0\0\0\0\0Hy]t\x180_\a\0\0\0\a\0\0\0\x0c"
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0shopping.txt"
    "PK\x05\x06\0\0\0\0\x01\0\x01\0:\0\0\0"
    "1\0\0\0\0\0"
)
"""An archive with the file shopping.txt. JSON can show all its bytes, because each is below 128."""

EXAMPLES = (
    Example(
        operation="write_file",
        parameters={"path": "notes/todo.txt", "mode": "0644"},
        body="Buy milk\n",
        body_type=BYTES,
        status=204,
        reply_headers={"ETag": ETAG},
    ),
    Example(
        operation="write_fs_file",
        parameters={"path": "notes/plan.txt", "append": True},
        body="1. Wake up\n",
        body_type=BYTES,
        status=204,
    ),
    Example(
        operation="write_base_dir",
        name="refused",
        body="Buy milk\n",
        body_type=BYTES,
        status=400,
        reply={"code": "INVALID_ARGUMENT", "message": "'' is a directory"},
    ),
    Example(
        operation="read_file",
        parameters={"path": "notes/todo.txt"},
        reply="Buy milk\n",
        reply_type=BYTES,
        reply_headers=file_headers("todo.txt"),
    ),
    Example(
        operation="read_file",
        name="in part",
        parameters={"path": "notes/todo.txt", "Range": "bytes=0-2"},
        status=206,
        reply="Buy",
        reply_type=BYTES,
        reply_headers={**file_headers("todo.txt"), "Content-Range": "bytes 0-2/9"},
    ),
    Example(
        operation="read_file",
        reply={"path": "/notes", "entries": [entry("plan.txt", 11), entry("todo.txt", 9)]},
        name="directory",
        parameters={"path": "notes"},
    ),
    Example(
        operation="read_base_dir",
        reply={"path": "/", "entries": [entry("notes", 4096, type="directory", mode="0755")]},
    ),
    Example(
        operation="read_fs_file",
        parameters={"path": "notes/plan.txt", "content_type": "auto"},
        reply="1. Wake up\n",
        reply_type="*/*",
    ),
    Example(
        operation="stat_path",
        reply=described("notes/todo.txt", 9),
        parameters={"path": "notes/todo.txt"},
    ),
    Example(
        operation="make_directory",
        reply=described("archive/2026", 4096, type="directory", mode="0755", links=2),
        body={"path": "archive/2026", "mode": "0755"},
    ),
    Example(
        operation="copy_path",
        reply={
            **described("archive/2026/notes", 4096, type="directory", mode="0755", links=2),
            "copied": {"files": 2, "directories": 1, "links": 0, "bytes": 20, "skipped": 0},
        },
        body={"src": "notes", "dest": "archive/2026/notes"},
    ),
    Example(
        operation="move_path",
        reply=described("plan.txt", 11),
        body={"src": "notes/plan.txt", "dest": "plan.txt"},
    ),
    Example(
        operation="change_mode",
        reply=described("plan.txt", 11, mode="0600"),
        body={"path": "plan.txt", "mode": "0600"},
    ),
    Example(
        operation="search_paths",
        reply={
            "path": "/workspace",
            "items": [
                found("archive/2026/notes/plan.txt", 11),
                found("archive/2026/notes/todo.txt", 9),
                found("notes/todo.txt", 9),
                found("plan.txt", 11, mode="0600"),
            ],
            "truncated": None,
            "scanned": 8,
            "unreadable": 0,
        },
        body={"path": ".", "glob": "**/*.txt", "limit": 10},
    ),
    Example(
        operation="delete_file", parameters={"path": "archive", "recursive": "true"}, status=204
    ),
    Example(operation="delete_fs_file", parameters={"path": "plan.txt"}, status=204),
    Example(
        operation="unpack_directory",
        parameters={"path": "lists"},
        body=ZIP,
        body_type="application/zip",
        reply={"files": 1, "directories": 0, "links": 0, "bytes": 7},
    ),
    Example(
        operation="unpack_base_dir",
        parameters={"format": "zip"},
        body=ZIP,
        body_type="application/zip",
        reply={"files": 1, "directories": 0, "links": 0, "bytes": 7},
    ),
    Example(
        operation="pack_directory",
        parameters={"path": "lists", "format": "zip"},
        reply_headers={"Content-Disposition": 'attachment; filename="lists.zip"'},
    ),
    Example(
        operation="pack_base_dir",
        parameters={"format": "tar.gz", "skip_unreadable": True},
        reply_headers={"Content-Disposition": 'attachment; filename="root.tar.gz"'},
    ),
    Example(
        operation="watch_path",
        parameters={"path": "notes", "debounce_seconds": 0.1},
        reply={
            "id": "1",
            "event": "watching",
            "data": '{"path":"/notes","recursive":false,"directories":1,"complete":true}',
        },
        reply_type=EVENT_STREAM,
        reply_note=FIRST_EVENT,
    ),
    Example(
        operation="watch_base_dir",
        parameters={"recursive": True},
        reply={
            "id": "1",
            "event": "watching",
            "data": '{"path":"/","recursive":true,"directories":3,"complete":true}',
        },
        reply_type=EVENT_STREAM,
        reply_note=FIRST_EVENT,
    ),
)
