"""The commands of docs/package-mirrors.md work inside the image, with a mirror on loopback (the
container has this machine's network)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from .manifests import REPOSITORY
from .mirror import NAME, VERSION, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from .conftest import Look

PAGE = (REPOSITORY / "docs" / "package-mirrors.md").read_text()


def commands(heading: str, first_words: str) -> str:
    """The block of the page that begins with these words, below the heading."""
    _, found, section = PAGE.partition(f"\n## {heading}\n\n")
    assert found
    (block,) = (
        textwrap.dedent(block)
        for block in section.partition("\n## ")[0].split("\n\n")
        if block.startswith(f"    {first_words}")
    )
    return block


@pytest.fixture
def mirror(look: Look, tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, look("dpkg --print-architecture")) as address:
        yield address
    look("rm -rf ~/.local ~/.cache ~/apt")


def test_pip_installs_from_the_mirror_for_commands_and_sessions(
    look: Look, client: httpx.Client, mirror: str
) -> None:
    environment = f"PIP_INDEX_URL={mirror}/pypi/simple/ PIP_TRUSTED_HOST=127.0.0.1"
    look(f"export {environment}; {commands('pip', 'python3 -m pip')}")
    program = f"import {NAME}; print({NAME}.VERSION)"
    assert look(f"python3 -c '{program}'") == VERSION
    cell = client.post("/v1/code", json={"session_id": "mirror", "code": program}).json()
    assert cell["stdout"] == f"{VERSION}\n"
    client.delete("/v1/sessions/mirror").raise_for_status()


def test_apt_unpacks_a_package_of_the_mirror_into_the_base_dir(look: Look, mirror: str) -> None:
    text = commands("Debian packages", "mkdir")
    for old, new in (
        ("deb http:", "deb [trusted=yes] http:"),  # this mirror has no key
        ("http://mirror.package-mirror:8081", mirror),
    ):
        assert old in text
        text = text.replace(old, new)
    assert look(f"set -e\n{text}").splitlines()[-1] == VERSION
