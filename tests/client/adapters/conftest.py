"""The real frameworks from PyPI, in an environment of their own, against the daemon of
``tests/client``. The programs in ``drivers/`` use an adapter as the framework does, with a model
that answers from a list, and print the results as JSON."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.target import REPOSITORY
from tests.sdk.conftest import ENVIRONMENTS, installed, output_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.target import Target

DRIVERS = Path(__file__).parent / "drivers"
CLIENT = REPOSITORY / "clients" / "python"
FRAMEWORKS = ("deepagents==0.7.32", "openai-agents==0.24.0", "smolagents==1.26.0")
OF_THE_CLIENT = ("httpx>=0.28", "httpx-sse>=0.4.3", "websockets>=15", "msgspec>=0.20")


@pytest.fixture(scope="session")
def interpreter() -> Path:
    """The interpreter that has the frameworks. Several processes of the suite may ask at once."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / "adapters.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return installed("adapters-1", *FRAMEWORKS, *OF_THE_CLIENT)


@pytest.fixture
def drive(interpreter: Path, target: Target, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Runs a driver against the daemon, with an empty folder that both see."""

    def run(driver: str) -> dict[str, Any]:
        command = [interpreter, DRIVERS / driver, target.url, tmp_path]
        shown = output_of(command, PYTHONPATH=str(CLIENT))
        found: dict[str, Any] = json.loads(shown.splitlines()[-1])
        return found

    return run
