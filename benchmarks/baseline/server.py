"""A FastAPI server of the python-runtime contract: the baseline for execd.

Written from the contract's description, in the usual way to write a server of this kind
(generation 3): the same framework, the same thread per command and the same defects. So a ratio
against the baseline tells about the servers people run today. The server is not hardened, and must
stay so: a fix here would make the baseline unlike the servers in use.

    uvicorn --app-dir benchmarks baseline.server:app --port 8888
"""
# ruff: noqa: ASYNC230, ASYNC240  # file I/O on the loop is a deliberate defect

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import subprocess
from typing import Annotated

from fastapi import FastAPI, UploadFile
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field

DEFAULT_TIMEOUT_SECONDS = 300.0

app = FastAPI(title="python-runtime baseline")
log = logging.getLogger("baseline")


class ExecuteRequest(BaseModel):
    command: str
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class ExecuteReply(BaseModel):
    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False


class Outside(Exception):
    """A path that leaves the base dir."""


def base_dir() -> str:
    """Read on every request, as the contract says."""
    return os.path.realpath(os.environ.get("SANDBOX_BASE_DIR", "").strip() or "/app")


def server_timeout_seconds() -> float:
    text = os.environ.get("SANDBOX_EXEC_TIMEOUT_SECONDS", "")
    if not text.strip():
        return DEFAULT_TIMEOUT_SECONDS
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) and seconds > 0:
            return seconds
    log.warning(
        "SANDBOX_EXEC_TIMEOUT_SECONDS=%r is unusable; using %g", text, DEFAULT_TIMEOUT_SECONDS
    )
    return DEFAULT_TIMEOUT_SECONDS


def confined(path: str) -> str:
    root = base_dir()
    try:
        target = os.path.realpath(os.path.join(root, path.lstrip("/")))
    except ValueError:  # a NUL byte
        raise Outside from None
    if os.path.commonpath([root, target]) != root:
        raise Outside
    return target


def run(command: str, timeout_seconds: float) -> ExecuteReply:
    """Runs on a thread of the loop's pool. Raises OSError and UnicodeDecodeError."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=base_dir(),
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            if stderr and not stderr.endswith("\n"):
                stderr += "\n"
            stderr += f"Command timed out after {timeout_seconds:g} seconds"
            return ExecuteReply(stdout=stdout, stderr=stderr, exit_code=124, timed_out=True)
    return ExecuteReply(stdout=stdout, stderr=stderr, exit_code=process.returncode)


@app.exception_handler(Outside)
async def denied(_request: object, _error: Outside) -> JSONResponse:
    return JSONResponse({"message": "Access denied"}, 403)


@app.get("/")
async def health() -> dict[str, str]:
    return {"status": "ok", "message": "Sandbox Runtime is active."}


@app.post("/execute")
async def execute(request: ExecuteRequest) -> ExecuteReply:
    limit = min(request.timeout_seconds or math.inf, server_timeout_seconds())
    try:
        return await asyncio.to_thread(run, request.command, limit)
    except (OSError, ValueError) as error:
        return ExecuteReply(stdout="", stderr=f"Failed to execute command: {error}", exit_code=1)


@app.post("/upload")
async def upload(file: UploadFile) -> JSONResponse:
    target = confined(file.filename or "")
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as out:
            out.write(await file.read())
    except OSError as error:
        return JSONResponse({"message": f"File upload failed: {error}"}, 500)
    return JSONResponse({"message": f"File '{file.filename}' uploaded successfully."})


@app.get("/download/{path:path}", response_model=None)
async def download(path: str) -> FileResponse | JSONResponse:
    target = confined(path)
    if not os.path.isfile(target):
        return JSONResponse({"message": "File not found"}, 404)
    return FileResponse(
        target, media_type="application/octet-stream", filename=os.path.basename(target)
    )


@app.get("/list/{path:path}")
async def list_directory(path: str) -> JSONResponse:
    target = confined(path)
    if not os.path.isdir(target):
        return JSONResponse({"message": "Path is not a directory"}, 404)
    try:
        entries = []
        with os.scandir(target) as found:
            for entry in found:
                facts = entry.stat()
                kind = "directory" if entry.is_dir() else "file"
                entries.append(
                    {
                        "name": entry.name,
                        "size": facts.st_size,
                        "type": kind,
                        "mod_time": facts.st_mtime,
                    }
                )
    except OSError as error:
        return JSONResponse({"message": f"List files failed: {error}"}, 500)
    return JSONResponse(entries)


@app.get("/exists/{path:path}")
async def exists(path: str) -> dict[str, object]:
    return {"path": path, "exists": os.path.exists(confined(path))}
