"""Ray remote functions in the shape of RayAI's sandbox module. The extra is ``rayai``.

Where RayAI's way loses something, these functions differ: state is the interpreter itself, with
functions and modules; a timeout ends the running code; uploads have any size.

Example:
    ray.get(execute_code.remote("print(6 * 7)", "rollout-1", url="http://127.0.0.1:8888"))
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import ray

from execd_client import CellResult, Execd, Result

URL = "http://127.0.0.1:8888"


class ExecutionResult(TypedDict):
    status: Literal["success", "error"]
    stdout: str
    stderr: str
    exit_code: int | None
    execution_id: str
    session_id: str | None


def _result_of(found: Result, session_id: str | None) -> ExecutionResult:
    error = found.error if isinstance(found, CellResult) else None
    return ExecutionResult(
        status="success" if found.exit_code == 0 else "error",
        stdout=found.stdout,
        stderr=found.stderr + ("\n".join(error.traceback) if error else found.message or ""),
        exit_code=found.exit_code,
        execution_id=found.id,
        session_id=session_id,
    )


@ray.remote
def execute_code(
    code: str,
    session_id: str | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = 30.0,
    url: str = URL,
) -> ExecutionResult:
    """Run Python. With a session the code sees the session's variables; without a session the code
    runs in a fresh interpreter."""
    with Execd(url) as sandbox:
        if session_id is not None:
            session = sandbox.sessions.get_or_create(session_id)
            found = session.run(code, env=environment or {}, timeout_seconds=timeout)
        else:
            with sandbox.sessions.create() as session:
                found = session.run(code, env=environment or {}, timeout_seconds=timeout)
    return _result_of(found, session_id)


@ray.remote
def execute_shell(
    command: str,
    session_id: str,
    environment: dict[str, str] | None = None,
    timeout: float = 30.0,
    url: str = URL,
) -> ExecutionResult:
    """Run a command line in the directory and environment of the session's code."""
    with Execd(url) as sandbox:
        sandbox.sessions.get_or_create(session_id)
        env = environment or {}
        found = sandbox.run(command, session_id=session_id, env=env, timeout_seconds=timeout)
    return _result_of(found, session_id)


@ray.remote
def upload_file(path: str, content: bytes, url: str = URL) -> None:
    """Write a file that sessions find under ``path``."""
    with Execd(url) as sandbox:
        sandbox.files.write(path, content)


@ray.remote
def get_session_stats(session_id: str, url: str = URL) -> dict[str, Any]:
    with Execd(url) as sandbox:
        shown = sandbox.sessions.get(session_id).info()
    counts = {"execution_count": shown.execution_count, "uptime": shown.uptime_seconds}
    about = {"created_at": shown.created_at, "container_status": shown.state}
    return {"session_id": session_id, **counts, **about}


@ray.remote
def cleanup_session(session_id: str, url: str = URL) -> dict[str, str]:
    """End everything that the session started."""
    with Execd(url) as sandbox:
        sandbox.sessions.get(session_id).delete()
    return {"status": "success"}
