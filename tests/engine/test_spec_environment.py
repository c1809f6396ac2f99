"""The environment of a restored pod, with a file of the tests' own. The real file:
tests/checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from execd.config import load
from execd.engine.spec_environment import SpecEnvironment, parse

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "a" * 64, "b" * 64
TOKEN, MEMORY = "EXECD_TOKEN_SHA256", "EXECD_POD_MEMORY_BYTES"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", {}),
        (b"A=1\0", {"A": "1"}),
        (b"A=1\0B=x=y\nz\0C=\0", {"A": "1", "B": "x=y\nz", "C": ""}),
        (b"A=1\0A=2\0", {"A": "2"}),
        (b"\xff=\xfe\0nothing\0=no name\0", {"\udcff": "\udcfe", "nothing": ""}),
    ],
)
def test_variables_are_read(text: bytes, found: dict[str, str]) -> None:
    assert parse(text) == found


class Pod:
    """A daemon with these flags and variables, and the pod's file."""

    def __init__(self, path: Path, flags: dict[str, object], **variables: str) -> None:
        self._path = path
        self.bring(**variables)
        self.environment = SpecEnvironment(load(flags, variables), str(path))

    def bring(self, **variables: str) -> None:
        self._path.write_text("".join(f"{name}={value}\0" for name, value in variables.items()))

    def restored(self, **variables: str) -> dict[str, object]:
        """Restore the daemon in a pod with these variables."""
        self.bring(**variables)
        return self.environment.changes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spec_environ"


def test_a_restored_pod_brings_another_token_and_another_size(path: Path) -> None:
    pod = Pod(path, {}, **{TOKEN: OLD, MEMORY: "1000"})
    assert pod.restored(**{TOKEN: OLD, MEMORY: "1000"}) == {}
    both = {TOKEN: NEW, MEMORY: "2000"}
    assert pod.restored(**both) == {"token_sha256": NEW, "pod_memory_bytes": 2000}
    assert pod.restored(**both) == {}
    assert pod.restored(**{TOKEN: OLD, MEMORY: "2000"}) == {"token_sha256": OLD}


def test_a_pod_without_a_token_gets_the_token_of_the_restored_pod(path: Path) -> None:
    pod = Pod(path, {})
    assert pod.restored(**{TOKEN: NEW}) == {"token_sha256": NEW}


@pytest.mark.parametrize("variables", [{}, {TOKEN: " "}, {TOKEN: "short"}, {MEMORY: "-1"}])
def test_a_variable_that_is_missing_or_unusable_changes_nothing(
    path: Path, variables: dict[str, str]
) -> None:
    pod = Pod(path, {}, **{TOKEN: OLD, MEMORY: "1000"})
    assert pod.restored(**variables) == {}


def test_a_flag_overrules_the_restored_pod(path: Path) -> None:
    pod = Pod(path, {"token_sha256": OLD, "pod_memory_bytes": 1000}, **{TOKEN: NEW})
    assert pod.restored(**{TOKEN: "c" * 64, MEMORY: "2000"}) == {}


def test_a_kernel_without_the_file_changes_nothing(path: Path) -> None:
    assert SpecEnvironment(load({}, {TOKEN: OLD}), str(path)).changes() == {}
