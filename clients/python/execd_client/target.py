"""Where a client sends its requests: a fixed address, or the address of a sandbox of the SDK
``k8s_agent_sandbox``."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from execd_client.address import Address, token_headers

PORT_HEADER = "X-Sandbox-Port"


class Target(Protocol):
    """Gives the address before each request."""

    def resolve(self) -> Address: ...

    def forget(self) -> None:
        """A request has failed: the next address is looked up anew."""


class AsyncTarget(Protocol):
    async def resolve(self) -> Address: ...

    async def forget(self) -> None: ...


class FixedTarget:
    def __init__(self, address: Address) -> None:
        self._address = address

    def resolve(self) -> Address:
        return self._address

    def forget(self) -> None:
        return


class SandboxTarget:
    """The address and the headers that the connector of a blocking ``Sandbox`` uses.

    The connector keeps its port-forward and its cached addresses: ``connect()`` gives the base URL,
    and starts a lost port-forward anew (k8s_agent_sandbox 1.0.8, ``connector.py``).
    """

    def __init__(self, sandbox: Any, token: str | None) -> None:
        self._sandbox = sandbox
        self._headers = token_headers(token)
        self._pod_ip: str | None = None

    def resolve(self) -> Address:
        connector = self._sandbox.connector
        url = connector.connect()
        is_routed = connector.strategy.should_inject_router_headers()
        if is_routed and self._pod_ip is None:
            self._pod_ip = _pod_ip_or_none(self._sandbox)
        return Address(url, {**self._headers, **sdk_headers(connector, is_routed, self._pod_ip)})

    def forget(self) -> None:
        self._pod_ip = None
        self._sandbox.connector.strategy.invalidate_pod_ip()


class AsyncSandboxTarget:
    """The same for an ``AsyncSandbox``, and for a ``Sandbox`` whose calls run in a thread."""

    def __init__(self, sandbox: Any, token: str | None) -> None:
        self._sandbox = sandbox
        self._headers = token_headers(token)
        self._pod_ip: str | None = None
        self._blocking = None if is_async(sandbox) else SandboxTarget(sandbox, token)

    async def resolve(self) -> Address:
        if self._blocking is not None:
            import asyncio  # runs already: the blocking client does not load asyncio

            return await asyncio.to_thread(self._blocking.resolve)
        connector = self._sandbox.connector
        url = await connector.connect()
        is_routed = connector.should_inject_router_headers()
        if is_routed and self._pod_ip is None:
            try:
                self._pod_ip = await self._sandbox.get_pod_ip()
            except Exception:  # as the SDK does: without the pod's address the router resolves
                self._pod_ip = None
        return Address(url, {**self._headers, **sdk_headers(connector, is_routed, self._pod_ip)})

    async def forget(self) -> None:
        self._pod_ip = None
        if self._blocking is not None:
            self._blocking.forget()


class AsyncFixedTarget:
    def __init__(self, address: Address) -> None:
        self._address = address

    async def resolve(self) -> Address:
        return self._address

    async def forget(self) -> None:
        return


def is_async(sandbox: Any) -> bool:
    return inspect.iscoroutinefunction(sandbox.connector.connect)


def sdk_headers(connector: Any, is_routed: bool, pod_ip: str | None) -> dict[str, str]:
    """The headers that the SDK's connector sends: the caller's own, then the router's."""
    config = connector.connection_config
    headers = {"Accept-Encoding": "identity", **getattr(config, "extra_headers", {})}
    if not is_routed:
        return headers
    headers["X-Sandbox-ID"] = connector.id
    headers["X-Sandbox-Namespace"] = connector.namespace
    if (port := getattr(config, "server_port", None)) is not None:
        headers[PORT_HEADER] = str(port)
    if pod_ip:
        headers["X-Sandbox-Pod-IP"] = pod_ip
    return headers


def tls_of(sandbox: Any) -> Any:
    """What httpx takes as ``verify``: True, or the context of the SDK's ``ca_cert`` and
    ``client_cert``."""
    config = sandbox.connector.connection_config
    authority, certificate = getattr(config, "ca_cert", None), getattr(config, "client_cert", None)
    if not authority and not certificate:
        return True
    import ssl  # httpx has loaded the module already

    context = ssl.create_default_context(cafile=authority)
    if certificate:
        context.load_cert_chain(*([certificate] if isinstance(certificate, str) else certificate))
    return context


def _pod_ip_or_none(sandbox: Any) -> str | None:
    try:
        found = sandbox.get_pod_ip()
    except Exception:  # as the SDK does: without the pod's address the router resolves
        return None
    return found if isinstance(found, str) else None
