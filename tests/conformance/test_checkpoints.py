"""/v1/checkpoints: directories kept, compared and restored, by the wire alone."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from .target import can_start, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Run
    from .target import Answer, Target

ROUTE = "/v1/checkpoints"
HEADERS = {"Content-Type": "application/json"}

# Prints all that a restore promises of a tree: names, types, modes, owners, times, targets, hard
# links and contents.
JUDGE = (
    "find . -printf '%p %y %m %U %G %T@ %l %n\\n' | LC_ALL=C sort; "
    "find . -type f | LC_ALL=C sort | tr '\\n' '\\0' | xargs -0 sha256sum"
)
BUILD = (
    "mkdir -p src/deep empty; echo 1 > src/a; echo 2 > src/deep/b; ln src/a src/hard; "
    "ln -s src/a link; mkfifo fifo; chmod 751 src/a; touch -d @1700000000 src/a src; "
    "printf x > 'na\tïve'; "
)
POLLUTE = (
    "echo more >> src/a; rm -r src/deep; ln -s /etc src/deep; rm link; mkdir link; touch link/x; "
    "chmod 700 fifo; mkdir -p made/below; echo x > made/below/y; chmod 0 made; mv empty moved; "
)


class Client:
    def __init__(self, target: Target) -> None:
        self.target = target

    def post(self, path: str = "", **fields: Any) -> Answer:
        return self.target.request("POST", ROUTE + path, json.dumps(fields).encode(), HEADERS)

    def get(self, path: str = "") -> Any:
        answer = self.target.request("GET", ROUTE + path)
        assert answer.http_status == 200, answer.json()
        return answer.json()

    def changes(self, checkpoint_id: str) -> dict[str, str]:
        items = self.get(f"/{checkpoint_id}/changes")["items"]
        return {item["path"]: item["change"] for item in items}


@pytest.fixture
def checkpoint(target: Target, folder: str) -> Iterator[tuple[Client, str]]:
    """The id of no checkpoint yet. The checkpoint is deleted afterwards."""
    yield Client(target), folder
    target.request("DELETE", f"{ROUTE}/{folder}")


def test_restore_makes_directories_as_they_were(checkpoint: tuple[Client, str], run: Run) -> None:
    client, name = checkpoint
    run.out(f"cd {name}; {BUILD}")
    before = run.out(f"cd {name}; {JUDGE}")
    made = client.post(id=name, roots=[name])
    assert made.http_status == 201, made.json()
    [root] = made.json()["roots"]
    assert (root["files"], root["bytes"]) == (4, 7)
    run.out(f"cd {name}; {POLLUTE}")
    assert client.changes(name) != {}
    done = client.post(f"/{name}/restore")
    assert done.http_status == 200
    assert done.json()["failed"] == []
    assert run.out(f"cd {name}; {JUDGE}") == before
    assert client.changes(name) == {}


def test_changes_since_a_checkpoint_are_listed_by_kind(
    checkpoint: tuple[Client, str], run: Run
) -> None:
    client, name = checkpoint
    run.out(f"cd {name}; {BUILD}")
    top = client.post(id=name, roots=[name]).json()["roots"][0]["path"]
    run.out(f"cd {name}; echo x > new; echo y > src/deep/b; rm fifo; chmod 600 src/a; ")
    run.out(f"cd {name}; rm link; mkdir link; touch empty")
    assert client.changes(name) == {
        f"{top}/fifo": "deleted",
        f"{top}/link": "type",
        f"{top}/new": "created",
        f"{top}/src/a": "mode",
        f"{top}/src/deep/b": "modified",
        f"{top}/src/hard": "mode",
    }
    [change] = client.get(f"/{name}/changes?path={name}/src/deep")["items"]
    assert (change["size_bytes"], change["was_size_bytes"]) == (2, 2)


def test_write_through_a_mapping_is_a_change(checkpoint: tuple[Client, str], run: Run) -> None:
    client, name = checkpoint
    write = (
        f"python3 -c \"import mmap; f = open('{name}/f', 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        'm[5] = 65; {more}"'
    )
    run.out(f"printf %05000d 0 > {name}/f")
    run.out(write.format(more=""))
    before = run.out(f"sha256sum {name}/f")
    client.post(id=name, roots=[name])
    run.out(write.format(more="m[6] = 66"))
    assert list(client.changes(name).values()) == ["modified"]
    client.post(f"/{name}/restore")
    assert run.out(f"sha256sum {name}/f") == before


def test_directories_of_the_kernel_and_of_the_daemon_have_no_checkpoint(target: Target) -> None:
    client = Client(target)
    for path in ("/", "/proc", "/proc/self", "/sys", "/dev"):
        refused = client.post(roots=[".", path])
        assert refused.http_status == 400, path
        assert refused.json()["details"]["field"] == "roots[1]"


def test_checkpoint_past_its_bound_is_refused_with_the_size_and_leaves_nothing(
    own_daemon: Callable[..., Target],
) -> None:
    target = own_daemon("--checkpoint-bytes=1000000")
    client = Client(target)
    target.request("PUT", "/v1/files/small", b"x" * 1000)
    assert client.post(id="small").http_status == 201
    target.request("PUT", "/v1/files/large", os.urandom(1_000_000))
    refused = client.post(id="large")
    assert (refused.http_status, refused.json()["code"]) == (507, "NO_SPACE")
    assert refused.json()["details"]["needed_bytes"] > 1_000_000
    assert [each["id"] for each in client.get()["items"]] == ["small"]
    target.request("DELETE", "/v1/files/large")
    assert client.post(id="again").http_status == 201


def test_checkpoint_of_the_start_is_made_before_user_code_and_stays(
    own_daemon: Callable[..., Target],
) -> None:
    target = own_daemon("--checkpoint-at-start=.")
    client = Client(target)
    wait_until(lambda: target.request("GET", "/readyz").http_status == 200, 20, "readiness")
    [made] = client.get()["items"]
    assert made["id"] == "start"
    assert client.post(id="start").http_status == 409
    assert target.request("DELETE", f"{ROUTE}/start").http_status == 409
    target.request("PUT", "/v1/files/pollution", b"x")
    assert client.post("/start/restore").json()["removed"] == 1


@pytest.mark.skipif(not can_start(), reason="a test of restarts needs to start its own daemon")
def test_checkpoints_outlive_the_daemon(tmp_path: Path) -> None:
    target = start(tmp_path)
    client = Client(target)
    target.request("PUT", "/v1/files/file", b"old")
    made = client.post(id="kept").json()
    target.request("PUT", "/v1/files/file", b"new")
    target.kill()
    target = start(tmp_path)
    try:
        client = Client(target)
        assert client.get("/kept") == made
        assert client.post("/kept/restore").json()["restored"] >= 1
        assert target.request("GET", "/v1/files/file").content == b"old"
    finally:
        target.kill()


def test_checkpoint_of_many_files_takes_what_is_there(
    checkpoint: tuple[Client, str], run: Run
) -> None:
    client, name = checkpoint
    run.out(f"cd {name}; mkdir d; cd d; seq 3000 | split -l 1 -a 4 - f")
    assert client.post(id=name, roots=[name]).json()["roots"][0]["files"] == 3000
    run.out(f"rm -r {name}/d/*")
    assert client.post(f"/{name}/restore").json()["failed"] == []
    assert client.changes(name) == {}
