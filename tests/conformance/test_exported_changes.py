"""/v1/checkpoints/{id}/changes?format=: what has changed, as a patch and as an archive."""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import tarfile
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Run
    from .target import Answer, Target

MAKE_START = (
    "mkdir src; seq 300 > src/numbers; printf 'one\\r\\ntwo' > src/dos; : > src/empty; "
    "printf 'a\\0b' > src/binary; chmod 644 src/*; mkdir src/sub; "
    "printf '#!/bin/sh\\n' > src/tool; chmod 755 src/tool; ln -s numbers src/link; "
    "printf x > src/sub/gone; printf y > src/became; printf 'x\\n' > 'src/blank \"quoted\"'"
)
EDIT = (
    "cd src; sed -i 's/^2/two /' numbers; printf '\\n' >> dos; printf full > empty; "
    "printf 'c\\0d\\0' >> binary; chmod 644 tool; ln -sfn sub link; rm -r sub; rm became; "
    "mkdir -p became/deep; printf z > became/deep/file; chmod 755 became/deep/file; "
    "printf 'new\\nline' > 'new\nname'; mv 'blank \"quoted\"' naïve"
)


def make_checkpoint(target: Target, name: str, *roots: str) -> None:
    body = json.dumps({"id": name, "roots": roots}).encode()
    headers = {"Content-Type": "application/json"}
    made = target.request("POST", "/v1/checkpoints", body, headers)
    assert made.http_status == 201, made.content


@pytest.fixture
def start(target: Target, run: Run, folder: str) -> Iterator[str]:
    """A checkpoint of ``folder``/src."""
    run.out(f"cd {folder}; {MAKE_START}")
    name = f"exported-{secrets.token_hex(4)}"
    make_checkpoint(target, name, f"{folder}/src")
    yield name
    target.request("DELETE", f"/v1/checkpoints/{name}")


def exported(target: Target, checkpoint: str, kind: str, path: str = "") -> Answer:
    query = f"format={kind}" + (f"&path={quote(path)}" if path else "")
    return target.request("GET", f"/v1/checkpoints/{checkpoint}/changes?{query}")


def downloaded(target: Target, path: str, place: Path) -> Path:
    content = target.request("GET", f"/v1/archive/{path}?format=tar").content
    place.mkdir()
    subprocess.run(["tar", "-xp", "-f", "-"], cwd=place, input=content, check=True)
    return place


def shown(place: Path) -> str:
    """Types, executable bits, targets and contents."""
    script = (
        "find . ! -type d \\( -perm -100 -type f -printf 'x' -o -printf '-' \\) "
        "-printf '%y %P %l\\n' | LC_ALL=C sort; find . -type f | LC_ALL=C sort | tr '\\n' '\\0' "
        "| xargs -0 cat"
    )
    done = subprocess.run(["sh", "-c", script], cwd=place, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace")


def apply(patch: bytes, place: Path) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(place.parent)}
    subprocess.run(["git", "apply", "-"], cwd=place, input=patch, check=True, env=environment)


def test_patch_of_what_has_changed_is_applied_by_git(
    target: Target, run: Run, folder: str, start: str, tmp_path: Path
) -> None:
    copy = downloaded(target, f"{folder}/src", tmp_path / "copy")
    run.out(f"cd {folder}; {EDIT}")
    answer = exported(target, start, "patch")
    assert answer.http_status == 200
    assert answer.headers["Content-Type"] == "text/x-patch"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{start}.patch"'
    before = shown(copy)
    apply(answer.content, copy)
    after = shown(downloaded(target, f"{folder}/src", tmp_path / "end"))
    assert shown(copy) == after != before


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_archive_of_what_has_changed_begins_with_the_names_of_what_is_gone(
    target: Target, run: Run, folder: str, start: str, kind: str, tmp_path: Path
) -> None:
    copy = downloaded(target, f"{folder}/src", tmp_path / "copy")
    run.out(f"cd {folder}; {EDIT}")
    answer = exported(target, start, kind)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{start}.{kind}"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        first = archive.next()
        assert first is not None
        assert first.name == ".execd-deleted"
        names = archive.extractfile(first)
        assert names is not None
        gone = names.read().split(b"\0")
    assert sorted(gone) == [b"", b"became", b'blank "quoted"', b"sub", b"sub/gone"]
    (tmp_path / "changes").write_bytes(answer.content)
    subprocess.run(
        "tar -xf ../changes .execd-deleted && xargs -0 rm -rf -- < .execd-deleted "
        "&& tar -xpf ../changes && rm .execd-deleted",
        shell=True,
        cwd=copy,
        check=True,
    )
    assert shown(copy) == shown(downloaded(target, f"{folder}/src", tmp_path / "end"))


def test_patch_without_changes_is_empty(target: Target, start: str) -> None:
    answer = exported(target, start, "patch")
    assert (answer.http_status, answer.content) == (200, b"")


def test_patch_names_in_comments_what_git_does_not_know(
    target: Target, run: Run, folder: str, start: str
) -> None:
    run.out(
        f"cd {folder}/src; mkfifo pipe; mkdir -p void .git; chmod 600 numbers; "
        "head -c 1048577 /dev/zero > large"
    )
    assert exported(target, start, "patch").content.decode() == (
        "# created .git: git refuses the name\n"
        "# created large: 1048577 bytes are too many for a patch\n"
        "# mode numbers: git does not keep the mode 0600\n"
        "# created pipe: git knows no fifo\n"
        "# created void: git knows no empty folder\n"
    )


def test_export_is_restricted_to_a_path(target: Target, run: Run, folder: str, start: str) -> None:
    run.out(f"cd {folder}; {EDIT}")
    content = exported(target, start, "patch", f"{folder}/src/became").content
    names = [line for line in content.splitlines() if line.startswith(b"diff ")]
    assert names == [
        b"diff --git a/became b/became",
        b"diff --git a/became/deep/file b/became/deep/file",
    ]


def test_export_of_no_known_format_or_with_a_cursor_is_400(target: Target, start: str) -> None:
    for query in ("format=zip", "format=patch&cursor=AA"):
        answer = target.request("GET", f"/v1/checkpoints/{start}/changes?{query}")
        assert (answer.http_status, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_export_of_an_unknown_checkpoint_is_404(target: Target) -> None:
    answer = exported(target, "never-made", "patch")
    assert (answer.http_status, answer.json()["code"]) == (404, "NOT_FOUND")


def test_patch_of_several_roots_begins_at_the_root_of_the_tree(
    target: Target, run: Run, folder: str
) -> None:
    whole = run.out(f"cd {folder}; mkdir a b; pwd -P").strip().lstrip("/")
    name = f"exported-{secrets.token_hex(4)}"
    roots = [f"{folder}/a", f"{folder}/b"]
    make_checkpoint(target, name, *roots)
    run.out(f"cd {folder}; printf x > a/x; printf y > b/y")
    lines = exported(target, name, "patch").content.decode().splitlines()
    found = [line for line in lines if line.startswith("+++ ")]
    assert found == [f"+++ b/{whole}/a/x", f"+++ b/{whole}/b/y"]
    target.request("DELETE", f"/v1/checkpoints/{name}")
