"""The examples of probes, figures and documentation. Pure."""

from __future__ import annotations

from execd import __version__
from execd.api.wire.errors import V1_HTTP_STATUS
from execd.model import ExitReason
from tools.openapi.example import Example

CAPABILITIES = {
    "instance": {"id": "5f0c8b1e9a7d4c32", "restores": 0},
    "namespaces": True,
    "namespace_shape": "pid+mount",
    "namespaces_refused": None,
    "uid": 1000,
    "run_as_uid": None,
    "root_capabilities": [],
    "warden_restarts": 0,
    "warden_missed_pings": 0,
    "environment": {"image_env": True, "passed": ["JAVA_HOME", "PATH"]},
    "sessions": {
        "mode": "eager",
        "ready": True,
        "trouble": None,
        "refused": None,
        "restarts": 0,
        "interpreter": {
            "path": "/usr/bin/python3",
            "origin": "image",
            "reason": "the first python3 on PATH",
        },
        "python": "3.13.9",
        "ipython": "9.18.1",
        "import_seconds": 0.912505,
        "warnings": [],
    },
    "pod_memory": {
        "guarded": True,
        "source": "cgroup",
        "size_bytes": 2147483648,
        "reserve_bytes": 214748364,
    },
    "disk": {
        "base_dir": {
            "guarded": True,
            "limit_bytes": 8589934592,
            "reserve_bytes": 1073741824,
            "used_bytes": 10485760,
        },
        "tmp_dir": {
            "guarded": False,
            "limit_bytes": None,
            "reserve_bytes": None,
            "used_bytes": None,
        },
    },
    "commands": {
        "shell": True,
        "cpus": 2.0,
        "max_running": 256,
        "max_starting": 4,
        "starting_seconds": 0.5,
        "running": 1,
        "queued": 0,
    },
    "protections": {
        "daemon_invisible": True,
        "daemon_unkillable": True,
        "daemon_environment_unreadable": True,
        "state_dir_unreadable": True,
        "nothing_survives_the_warden": True,
    },
}

NO_RESTORE = (
    "no token is set, and nothing shows a restore in the last 10 s; set a token, and report with "
    "the token"
)

STATS = {
    "version": __version__,
    "uptime_seconds": 3605.481,
    "ready": True,
    "executions": {
        "queued": 0,
        "running": 1,
        "ended": {**dict.fromkeys(map(str, ExitReason), 0), "exited": 411, "timeout": 2},
        "refused": 0,
        "output_bytes": {"stdout": 90210, "stderr": 1204},
        "held_pipes": 2,
    },
    "sessions": {
        "states": {"STARTING": 0, "IDLE": 2, "BUSY": 0, "WAITING_INPUT": 0, "DEAD": 0},
        "cells": {"success": 37, "error": 3},
        "branches": 1,
        "pooled": 1,
        "ready": True,
        "trouble": False,
        "restarts": 0,
    },
    "warden": {
        "up": True,
        "restarts": 0,
        "missed_pings": 0,
        "killed_processes": 4,
        "processes": 5,
    },
    "cpu": {
        "daemon_seconds": 12.369308,
        "warden_seconds": 3.06,
        "trees_seconds": 205.390158,
        "load_1m": 0.31787109375,
    },
    "memory": {
        "daemon_bytes": 49627136,
        "warden_bytes": 14876672,
        "zygote_bytes": 117338112,
        "sessions_bytes": 112721920,
        "commands_bytes": 1454080,
        "pod_used_bytes": 401620992,
        "pod_size_bytes": 2147483648,
        "pod_reserve_bytes": 214748364,
        "pod_runtime_bytes": 53084160,
    },
    "disk": {
        "log_bytes": 20480,
        "log_limit_bytes": 1073741824,
        "journal_bytes": 4096,
        "journal_failing": False,
        "base_dir": {"used_bytes": 10485760, "limit_bytes": 8589934592},
        "tmp_dir": {"used_bytes": None, "limit_bytes": None},
    },
    "traffic": {
        "received_bytes": 141200,
        "sent_bytes": 372604,
        "error_replies": {
            **dict.fromkeys(map(str, V1_HTTP_STATUS), 0),
            "NOT_FOUND": 3,
            "METHOD_NOT_ALLOWED": 0,
        },
    },
}

METRICS = f"""\
# HELP execd_build_info Always 1. The version of the daemon.
# TYPE execd_build_info gauge
execd_build_info{{version="{__version__}"}} 1
# HELP execd_uptime_seconds Age of the daemon.
# TYPE execd_uptime_seconds gauge
execd_uptime_seconds 3605.481
# HELP execd_ready Whether a command sent now would run.
# TYPE execd_ready gauge
execd_ready 1
"""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
"""
ANY_TAG = '"0f4e3c4c54a2ffdd2c1d30cf1b1c6a37e1f2a5ed34c0f7c2b8ee0c3e2d4f4a10"'
BEGINNING = "The beginning of the reply."


def _file_of_the_page(operation: str, begins: str, media_type: str) -> Example:
    return Example(
        operation=operation,
        reply=begins,
        reply_type=media_type,
        reply_headers={"ETag": ANY_TAG},
        reply_note=BEGINNING,
    )


EXAMPLES = (
    Example(
        operation="check_root",
        reply={"status": "ok", "message": "Sandbox Runtime is active.", "version": __version__},
    ),
    Example(operation="check_liveness", reply={"status": "ok"}),
    Example(operation="check_readiness", reply={"status": "ok"}),
    Example(operation="check_health", reply={"status": "ok", "uptime_seconds": 3605}),
    Example(operation="get_metadata", reply={"env": {"SANDBOX_NAME": "sandbox-1"}}),
    Example(operation="get_capabilities", reply=CAPABILITIES),
    Example(operation="get_stats", reply=STATS),
    Example(
        operation="report_restore",
        body={},
        status=409,
        reply={"code": "CONFLICT", "message": NO_RESTORE},
        reply_note="Without a token, and without a restore.",
    ),
    Example(operation="get_metrics", reply=METRICS, reply_type="text/plain", reply_note=BEGINNING),
    Example(
        operation="get_openapi",
        reply={
            "openapi": "3.1.0",
            "info": {"title": "execd", "version": __version__},
            "servers": [{"url": "."}],
            "tags": [{"name": "executions"}],
            "paths": {"/healthz": {"get": {"operationId": "check_liveness"}}},
            "components": {"schemas": {}},
        },
        reply_headers={"ETag": ANY_TAG},
        reply_note="The largest objects are cut.",
    ),
    _file_of_the_page("get_docs", PAGE, "text/html"),
    _file_of_the_page("get_docs_with_slash", PAGE, "text/html"),
    _file_of_the_page("get_docs_settings", '"use strict";\n', "text/javascript"),
    _file_of_the_page("get_docs_styles", ".swagger-ui{color:#3b4151;", "text/css"),
    _file_of_the_page(
        "get_docs_viewer",
        "/*! For license information please see swagger-ui-bundle.js.LICENSE.txt */\n",
        "text/javascript",
    ),
)
