"""Parts of the replies in the examples of the OpenAPI document. Pure."""

from __future__ import annotations

from typing import Any

MODIFIED_AT = "2026-11-25T09:00:00Z"
MODIFIED_ON = "Wed, 25 Nov 2026 09:00:00 GMT"
ETAG = '"fe00-99bd93-9-18eb3977d75219fc-18eb3977d75219fc"'


def entry(name: str, size_bytes: int, *, type: str = "file", mode: str = "0644") -> dict[str, Any]:
    return {
        "name": name,
        "size": size_bytes,
        "type": type,
        "modified_at": MODIFIED_AT,
        "mode": mode,
    }


def file_headers(name: str) -> dict[str, str]:
    return {
        "ETag": ETAG,
        "Last-Modified": MODIFIED_ON,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{name}"',
    }


def found(path: str, size_bytes: int, mode: str = "0644") -> dict[str, Any]:
    return {
        "path": path,
        "type": "file",
        "size": size_bytes,
        "modified_at": MODIFIED_AT,
        "mode": mode,
    }


def described(
    path: str, size_bytes: int, *, type: str = "file", mode: str = "0644", links: int = 1
) -> dict[str, Any]:
    facts = {**found(f"/workspace/{path}", size_bytes, mode), "type": type}
    facts |= {"uid": 1000, "gid": 1000, "links": links}
    return {**facts, "etag": ETAG} if type == "file" else facts


def limits(timeout_seconds: float) -> dict[str, Any]:
    return {
        "cpu_seconds": None,
        "address_space_bytes": None,
        "file_size_bytes": None,
        "open_files": 65536,
        "processes": 512,
        "memory_bytes": None,
        "reply_bytes": 1048576,
        "log_bytes": 67108864,
        "timeout_seconds": timeout_seconds,
    }


def command(
    name: str,
    program: dict[str, Any],
    stdout: str | None = None,
    *,
    timeout_seconds: float = 300.0,
) -> dict[str, Any]:
    """A command that has ended; without ``stdout`` a command that waits."""
    has_ended = stdout is not None
    started_by = "argv" if "argv" in program else "shell"
    ended = {
        "pid": 7,
        "started_at": "2026-11-25T09:00:00.250Z",
        "ended_at": "2026-11-25T09:00:00.260Z",
        "duration_seconds": 0.010337,
        "exit_code": 0,
        "exit_reason": "exited",
        "usage": {
            "user_seconds": 0.000803,
            "system_seconds": 0.0,
            "max_rss_bytes": 1687552,
            "peak_tree_bytes": 1687552,
            "processes": 1,
            "output_bytes": len(stdout or ""),
        },
        "killed": 0,
    }
    return {
        "id": name,
        "state": "EXITED" if has_ended else "QUEUED",
        **program,
        **({} if "code" in program else {"started_by": started_by if has_ended else None}),
        "cwd": "/workspace",
        "limits": limits(timeout_seconds),
        "created_at": "2026-11-25T09:00:00.240Z",
        **(ended if has_ended else dict.fromkeys(ended)),
        "signal": None,
        "message": None,
        "timed_out": False,
        "survivors": [],
        "stdout": stdout or "",
        "stderr": "",
        "truncated": None,
    }


def without_output(reply: dict[str, Any]) -> dict[str, Any]:
    output = ("stdout", "stderr", "truncated")
    return {name: value for name, value in reply.items() if name not in output}


def cell(
    name: str, session: str, code: str, *, stdout: str = "", result: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        **command(name, {"code": code}, stdout),
        "execution_id": name,
        "session_id": session,
        "generation": 1,
        "state_lost": False,
        "status": "success",
        "execution_count": 1,
        "result": result,
        "displays": [],
        "error": None,
        "background": None,
    }


def session(name: str, *, generation: int = 1, execution_count: int = 0) -> dict[str, Any]:
    return {
        "id": name,
        "session_id": name,
        "state": "IDLE",
        "prompt": None,
        "password": None,
        "generation": generation,
        "execution_count": execution_count,
        "created_at": "2026-11-25T09:00:00.000Z",
        "uptime_seconds": 0.034,
        "last_used_at": "2026-11-25T09:00:00.020Z",
        "cwd": "/workspace",
        "limits": limits(300.0),
        "interpreter": {
            "path": "/usr/bin/python3",
            "origin": "image",
            "reason": "the first python3 on PATH",
        },
        "pid": 11,
        "memory_bytes": 56356864,
        "waiting": 0,
        "unclaimed_output_bytes": 0,
    }
