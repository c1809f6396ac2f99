"""Ray remote functions in the shape of RayAI's sandbox module, on a pod that runs execd.

    pip install -r examples/requirements-ray.txt
    python3 examples/ray_functions.py [URL]

The settings of the pod (image, packages, volumes, network) are chosen where the pod is made. These
functions differ from RayAI wherever RayAI's way loses something: state is the interpreter itself,
functions and modules included; a timeout ends the running code; uploads have any size.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, TypedDict

import ray

URL = "http://127.0.0.1:8888"


class ExecutionResult(TypedDict):
    status: str
    """"success" or "error"."""
    stdout: str
    stderr: str
    exit_code: int
    execution_id: str
    session_id: str | None


class SessionStats(TypedDict):
    session_id: str
    execution_count: int
    created_at: str
    uptime: float
    container_status: str


def call(
    method: str, url: str, body: dict[str, Any] | bytes | None = None, timeout: float = 30.0
) -> dict[str, Any]:
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=timeout + 30) as reply:
        return json.loads(reply.read() or b"{}")


def ensure_session(session_id: str, environment: dict[str, str] | None, url: str) -> None:
    try:
        call("POST", f"{url}/v1/sessions", {"id": session_id, "env": environment})
    except urllib.error.HTTPError as error:
        if error.code != 409:  # the session is already there
            raise


def result_of(reply: dict[str, Any], session_id: str | None) -> ExecutionResult:
    error = reply.get("error")
    code = reply["exit_code"]
    return ExecutionResult(
        status="success" if code == 0 and reply["exit_reason"] == "exited" else "error",
        stdout=reply["stdout"],
        stderr=reply["stderr"]
        + ("\n".join(error["traceback"]) if error else reply["message"] or ""),
        exit_code=code,
        execution_id=reply["id"],
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
    body = {"code": code, "session_id": session_id, "env": environment, "timeout_seconds": timeout}
    return result_of(call("POST", f"{url}/v1/code", body, timeout), session_id)


@ray.remote
def execute_shell(
    command: str,
    session_id: str | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = 30.0,
    url: str = URL,
) -> ExecutionResult:
    """Run a command line in the directory and environment of the session's code."""
    if session_id is not None:
        ensure_session(session_id, environment, url)
    body = {
        "command": command,
        "session_id": session_id,
        "env": environment,
        "timeout_seconds": timeout,
    }
    return result_of(call("POST", f"{url}/v1/executions", body, timeout), session_id)


@ray.remote
def upload_file(path: str, content: bytes, session_id: str, url: str = URL) -> None:
    """Write a file that the session's code and commands find under ``path``."""
    argv = ["/bin/sh", "-c", 'mkdir -p "$(dirname "$1")" && exec cat > "$1"', "sh", path]
    writer = call(
        "POST",
        f"{url}/v1/executions",
        {"argv": argv, "session_id": session_id, "stdin_open": True, "detach": True},
    )
    one = f"{url}/v1/executions/{writer['id']}"
    call("POST", f"{one}/stdin?eof=true", content)
    written = call("GET", f"{one}?wait_seconds=25")
    if written["exit_code"] != 0:
        raise OSError(f"{path} cannot be written: {written['stderr']}")


@ray.remote
def get_session_stats(session_id: str, url: str = URL) -> SessionStats:
    shown = call("GET", f"{url}/v1/sessions/{urllib.parse.quote(session_id)}")
    return SessionStats(
        session_id=session_id,
        execution_count=shown["execution_count"],
        created_at=shown["created_at"],
        uptime=shown["uptime_seconds"],
        container_status=shown["state"],
    )


@ray.remote
def cleanup_session(session_id: str, url: str = URL) -> dict[str, Any]:
    """End everything that the session started."""
    call("DELETE", f"{url}/v1/sessions/{urllib.parse.quote(session_id)}")
    return {"status": "success"}


def main(url: str) -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        session, path = "ray-example", "ray-example/data.csv"

        def shown(what: str, reference: Any) -> Any:
            found = ray.get(reference)
            print(f"{what}: {json.dumps(found)}")
            return found

        shown(
            "code",
            execute_code.remote(
                "def total(rows):\n    return sum(int(row) for row in rows)", session, url=url
            ),
        )
        ray.get(upload_file.remote(path, b"n\n20\n22\n", session, url=url))
        shown("shell", execute_shell.remote(f"wc -l < {path}", session, url=url))
        shown(
            "total",
            execute_code.remote(f"print(total(open('{path}').readlines()[1:]))", session, url=url),
        )
        shown("error", execute_code.remote("total(['x'])", session, url=url))
        shown("alone", execute_code.remote("print('total' in globals())", url=url))
        shown("timeout", execute_code.remote("while True: pass", session, timeout=1, url=url))
        shown("still there", execute_code.remote("print(total([1]))", session, url=url))
        shown("stats", get_session_stats.remote(session, url=url))
        shown("cleanup", cleanup_session.remote(session, url=url))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else URL)
