"""``Execd.from_sandbox`` with the real SDK: the client's requests go where the SDK's go, with the
same headers, for each way to connect. Kubernetes alone is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.proxies import Router, router
from tests.conformance.target import REPOSITORY, Target
from tests.patience import patience

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVERS = Path(__file__).parent / "drivers"
STAND_IN = REPOSITORY / "tests" / "sdk" / "drivers"
CLIENT = REPOSITORY / "clients" / "python"
PACKAGES = ["k8s-agent-sandbox[async]==1.0.8", "httpx-sse", "websockets", "msgspec"]
CACHE = Path(os.environ.get("EXECD_SDK_CACHE", REPOSITORY / ".cache" / "sdk"))


@pytest.fixture(scope="session")
def interpreter() -> Path:
    """An interpreter with the SDK and the packages of the client, made on first use."""
    folder = CACHE / f"client-py{sys.version_info.major}.{sys.version_info.minor}"
    found = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder)
        pip = [sys.executable, "-m", "pip", "--python", found, "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (folder / "complete").touch()
    return found


@pytest.fixture
def seen_by(target: Target) -> Iterator[Router]:
    with router(target.url, 30.0) as made:
        yield made


def driven(interpreter: Path, way: str, kind: str, url: str) -> dict[str, Any]:
    address = url.partition("//")[2].partition("/")[0]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{CLIENT}:{STAND_IN}",
        "PATH": f"{DRIVERS}:{os.environ['PATH']}",
        "EXECD_FORWARD_TO": address,
    }
    ended = subprocess.run(
        [interpreter, DRIVERS / "from_sandbox.py", way, kind, url],
        capture_output=True,
        text=True,
        timeout=patience.seconds(60),
        check=False,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def sandbox_headers(headers: dict[str, str]) -> dict[str, str]:
    named = {name.lower(): value for name, value in headers.items()}
    wanted = ("x-sandbox-", "x-team")
    # The SDK tells the router the timeout of each of its own calls.
    return {n: v for n, v in named.items() if n.startswith(wanted) and n != "x-sandbox-timeout"}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_router_gets_the_headers_of_the_sdk(
    interpreter: Path, seen_by: Router, kind: str
) -> None:
    url = f"http://127.0.0.1:{seen_by.port}{Router.PREFIX}"
    found = driven(interpreter, "direct", kind, url)
    assert set(found.values()) == {"by-the-sdk\n", "by-the-client\n"}
    by_sdk, *by_client = [sandbox_headers(headers) for headers in seen_by.seen]
    assert by_sdk["x-team"] == "red"
    assert {"x-sandbox-id", "x-sandbox-namespace", "x-sandbox-port"} < by_sdk.keys()
    assert by_client == [by_sdk] * len(by_client)
    assert len(by_client) == (1 if kind == "sync" else 2)


def test_a_gateway_gets_the_headers_of_the_sdk(interpreter: Path, seen_by: Router) -> None:
    url = f"http://127.0.0.1:{seen_by.port}{Router.PREFIX}"
    driven(interpreter, "gateway", "sync", url)
    by_sdk, by_client = [sandbox_headers(headers) for headers in seen_by.seen]
    assert by_sdk == by_client
    assert "x-sandbox-id" in by_sdk


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_pods_own_address_gets_no_headers(interpreter: Path, target: Target, kind: str) -> None:
    found = driven(interpreter, "in-cluster", kind, target.url)
    assert found["client"] == "by-the-client\n"


def test_a_port_forward_of_the_sdk_is_used(interpreter: Path, target: Target) -> None:
    found = driven(interpreter, "port-forward", "sync", target.url)
    assert found == {"sdk": "by-the-sdk\n", "client": "by-the-client\n"}
