"""Stands in for the Kubernetes API of the SDK: a single sandbox, always ready, at a fixed address.
Nothing more is pretended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SANDBOX = "sandbox-1"


class Kubernetes:
    """The calls that the SDK's clients make to their helper, in all tested versions."""

    address = "127.0.0.1"
    injected_api_client = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def get_sandbox(self, name: str, _namespace: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "message": ""}
        status = {"podIPs": [self.address], "serviceFQDN": "localhost", "conditions": [ready]}
        return {"metadata": {"name": name}, "status": status}

    def create_sandbox_claim(self, *_: object, **__: object) -> dict[str, Any]:
        return {"metadata": {"uid": "claim-uid", "resourceVersion": "1"}}

    def get_sandbox_claim(self, name: str, _namespace: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": "claim-uid"}}

    def wait_for_claim_ready(self, *_: object, **__: object) -> str:
        return SANDBOX

    def resolve_sandbox_name(self, *_: object, **__: object) -> str:
        return SANDBOX

    def wait_for_sandbox_ready(self, *_: object, **__: object) -> str:
        return self.address

    def list_sandbox_claims(self, *_: object, **__: object) -> list[str]:
        return []

    def delete_sandbox_claim(self, *_: object, **__: object) -> None:
        return None

    def close(self) -> None:
        return None


class AsyncKubernetes:
    """The same, awaited."""

    injected_api_client = None

    def __init__(self, *_: object, **__: object) -> None:
        self._plain = Kubernetes()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._plain, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call
