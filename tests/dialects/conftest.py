"""A daemon with a token and all dialects, and a client of each dialect.

The daemon is found as in the conformance suite: EXECD_URL, or a daemon started here. A daemon
elsewhere has the token ``TOKEN``, and EXECD_CONFORMANCE_PORTS names the ports of its dialects.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from ..conformance.target import TERMINATED, Target, dialect_ports, elsewhere, start
from . import speakers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .speakers import Speaker

TOKEN = "token-of-the-dialects"
DIALECTS = {
    "python_runtime": speakers.PythonRuntime,
    "v1": speakers.V1,
    "sandboxd_grpc": speakers.SandboxdGrpc,
    "opensandbox": speakers.OpenSandbox,
    "e2b": speakers.E2B,
}
OWN_PORTS = {
    "sandboxd_grpc": "sandboxd_grpc",
    "opensandbox": "opensandbox",
    "e2b": "e2b_envd",
}
"""The setting of the port, without ``_port``, for dialects with a port of their own."""


@pytest.fixture(scope="session")
def ports() -> dict[str, int]:
    found = dialect_ports(*OWN_PORTS.values())
    return {name: found[setting] for name, setting in OWN_PORTS.items()}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[Target]:
    if there := elsewhere():
        yield there
        return
    flags = [f"--{OWN_PORTS[name].replace('_', '-')}-port={port}" for name, port in ports.items()]
    token_sha256 = hashlib.sha256(TOKEN.encode()).hexdigest()
    folder = tmp_path_factory.mktemp("dialects")
    own = start(folder, "--sessions=lazy", f"--token-sha256={token_sha256}", *flags)
    yield own
    assert own.stop() == TERMINATED, own.log_text()
    assert own.log_errors() == []


@pytest.fixture(params=DIALECTS)
def speaker(
    request: pytest.FixtureRequest, target: Target, ports: dict[str, int]
) -> Iterator[Speaker]:
    kind: Any = DIALECTS[request.param]
    host, port = target.address
    if request.param == "sandboxd_grpc":
        made = kind(f"http://{host}:{port}", TOKEN, ports[request.param])
    else:
        made = kind(f"http://{host}:{ports.get(request.param, port)}", TOKEN)
    yield made
    made.close()


@pytest.fixture
def observer(target: Target) -> Iterator[speakers.V1]:
    """A client of /v1, which sees the executions of all dialects."""
    made = speakers.V1(target.url, TOKEN)
    yield made
    made.close()
