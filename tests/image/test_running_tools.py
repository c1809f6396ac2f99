"""The programs of `image/build --coding` work for the image's user, on a read-only root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from .conftest import Look


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (
            "git init --quiet . && git config user.email a@b && git config user.name a"
            " && echo x > file && git add file && git commit --quiet --message first"
            " && git log --format=%s",
            "first",
        ),
        ("echo 'a needle' > hay && rg --no-filename needle", "a needle"),
        ("echo text > file && less file", "text"),
        ("ps -o comm= -p $$", "sh"),
        (
            "python3 -m zipfile --create made.zip /etc/hostname"
            " && unzip -q made.zip && cmp hostname /etc/hostname && echo same",
            "same",
        ),
        ("printf 'made:\\n\\t@echo made > made\\n' > Makefile && make && cat made", "made"),
    ],
    ids=["git", "ripgrep", "less", "procps", "unzip", "make"],
)
def test_the_program_works(look: Look, command: str, output: str) -> None:
    assert look(f'cd $(mktemp -d) && {command} && rm -r "$PWD"') == output


def test_curl_works(look: Look, client: httpx.Client) -> None:
    """The network of the container is this machine's."""
    assert look(f"curl --silent --fail {client.base_url}/healthz") == client.get("/healthz").text
