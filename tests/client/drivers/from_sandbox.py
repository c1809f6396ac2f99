"""Runs in an environment with k8s-agent-sandbox: makes a sandbox of the SDK for each way to
connect, runs a command by the SDK and by the client, and prints what both got.

Arguments: the way (direct, gateway, port-forward, in-cluster), sync or async, the URL.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import urlsplit

from k8s_agent_sandbox import models
from k8s_agent_sandbox.async_sandbox import AsyncSandbox
from k8s_agent_sandbox.sandbox import Sandbox
from kubernetes_stand_in import AsyncKubernetes, Kubernetes

from execd_client import AsyncExecd, Execd

COMMAND = "echo by-the-client"


def config(way: str, url: str) -> Any:
    if way == "direct":
        return models.SandboxDirectConnectionConfig(api_url=url, extra_headers={"X-Team": "red"})
    if way == "gateway":
        return models.SandboxGatewayConnectionConfig(gateway_name="gateway")
    if way == "port-forward":
        return models.SandboxLocalTunnelConnectionConfig()
    return models.SandboxInClusterConnectionConfig(server_port=urlsplit(url).port)


def blocking(way: str, url: str) -> dict[str, Any]:
    sandbox = Sandbox("claim", "sandbox-1", "team", config(way, url), k8s_helper=Kubernetes())
    if way == "gateway":
        # A gateway has port 80, which a test cannot have: as if the address had been found.
        sandbox.connector.strategy.base_url = url
    try:
        by_sdk = sandbox.commands.run("echo by-the-sdk").stdout
        with Execd.from_sandbox(sandbox) as execd:
            return {"sdk": by_sdk, "client": execd.run(COMMAND).stdout}
    finally:
        sandbox.close_connection()


async def awaited(way: str, url: str) -> dict[str, Any]:
    helper = AsyncKubernetes()
    sandbox = AsyncSandbox("claim", "sandbox-1", "team", config(way, url), k8s_helper=helper)
    by_sdk = (await sandbox.commands.run("echo by-the-sdk")).stdout
    async with AsyncExecd.from_sandbox(sandbox) as execd:
        found = {"sdk": by_sdk, "client": (await execd.run(COMMAND)).stdout}
    await sandbox.close_connection()
    plain = Sandbox("claim", "sandbox-1", "team", config(way, url), k8s_helper=Kubernetes())
    async with AsyncExecd.from_sandbox(plain) as execd:
        found["in a thread"] = (await execd.run(COMMAND)).stdout
    plain.close_connection()
    return found


def main(way: str, kind: str, url: str) -> None:
    print(json.dumps(blocking(way, url) if kind == "sync" else asyncio.run(awaited(way, url))))


if __name__ == "__main__":
    main(*sys.argv[1:])
