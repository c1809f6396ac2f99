"""/v1/watch: news of changed files."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from ..patience import patience
from .attack import probing
from .target import READ_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from .conftest import Run
    from .target import Target


class Stream:
    """The events of a watch, as they come."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines

    def event(self) -> dict[str, Any]:
        began = time.monotonic()
        for line in self.lines:
            if line:
                return dict(json.loads(line))
            patience.check(began, READ_SECONDS, "an event comes, and not only heartbeats")
        return {"event": "end"}

    def seen_until(self, wanted: tuple[str, str]) -> list[tuple[str, ...]]:
        """Type and path of all changes up to the wanted change; the old path too where a change has
        an old path."""
        seen: list[tuple[str, ...]] = []
        began = time.monotonic()
        while wanted not in [change[:2] for change in seen]:
            patience.check(began, READ_SECONDS, seen)
            event = self.event()
            assert event["event"] == "changes", (event, seen)
            for change in event["changes"]:
                paths = (
                    (change["path"], change["old_path"])
                    if "old_path" in change
                    else (change["path"],)
                )
                seen.append((change["type"], *paths))
        return seen


@pytest.fixture
def watch(client: httpx.Client, folder: str) -> Callable[..., Any]:
    @contextlib.contextmanager
    def begin(
        path: str = "", query: str = "recursive=true&debounce_seconds=0.1"
    ) -> Iterator[Stream]:
        url = f"/v1/watch/{folder}/{path}?{query}"
        with client.stream("GET", url, headers={"Accept": "application/x-ndjson"}) as response:
            assert response.status_code == 200
            stream = Stream(response.iter_lines())
            first = stream.event()
            assert first["event"] == "watching", first
            assert first["complete"] is True
            yield stream

    return begin


def test_changes_are_told_once_a_name(watch: Any, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; touch old gone; mkdir sub")
    # One batch has all changes: the first of them and the last are less than 3 s apart.
    with watch(query="recursive=true&debounce_seconds=3") as stream:
        run.out(
            f"cd {folder}; echo 1 > new; echo 2 >> new; echo 3 >> old; rm gone; : > brief; "
            "rm brief; echo > sub/deep; echo > last"
        )
        assert sorted(stream.seen_until(("created", "last"))) == [
            ("created", "last"),
            ("created", "new"),
            ("created", "sub/deep"),
            ("deleted", "gone"),
            ("modified", "old"),
        ]


def test_new_directories_are_watched_with_what_is_in_them(
    watch: Any, run: Run, folder: str
) -> None:
    with watch() as stream:
        run.out(f"cd {folder}; mkdir -p a/b/c; echo > a/b/c/x")
        seen = stream.seen_until(("created", "a/b/c/x"))
        assert {"a", "a/b", "a/b/c"} <= {path for _, path in seen}
        run.out(f"cd {folder}; echo > a/b/y; echo > a/b/c/z")
        stream.seen_until(("created", "a/b/c/z"))


def test_moved_directory_is_told_by_both_names_and_watched_on(
    watch: Any, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; mkdir -p a/sub; mkdir ../{folder}-out")
    try:
        with watch() as stream:
            run.out(f"cd {folder}; mv a b")
            assert stream.seen_until(("moved", "b")) == [("moved", "b", "a")]
            run.out(f"cd {folder}; echo > b/sub/x")
            stream.seen_until(("created", "b/sub/x"))
            run.out(f"cd {folder}; mv b ../{folder}-out/")
            assert stream.seen_until(("deleted", "b")) == [("deleted", "b")]
            run.out(f"cd {folder}; echo > ../{folder}-out/b/sub/unseen; mv ../{folder}-out/b c")
            seen = stream.seen_until(("created", "c/sub/x"))
            assert ("created", "c") in seen
            assert not [change for change in seen if "out" in change[1]]
            run.out(f"cd {folder}; echo > c/sub/again")
            stream.seen_until(("created", "c/sub/again"))
    finally:
        run.out(f"rm -r {folder}-out")


def test_uploads_are_told_by_their_name_alone(watch: Any, target: Target, folder: str) -> None:
    with watch() as stream:
        target.request("PUT", f"/v1/files/{folder}/x", b"content")
        target.request("PUT", f"/v1/files/{folder}/last?append=true", b"content")
        seen = stream.seen_until(("created", "last"))
        assert {path for _, path in seen} == {"x", "last"}


def test_directory_alone_is_watched_unless_asked_for_more(
    watch: Any, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; mkdir sub")
    with watch(query="debounce_seconds=0") as stream:
        run.out(f"cd {folder}; echo > sub/unseen; echo > seen")
        assert "sub/unseen" not in {path for _, path in stream.seen_until(("created", "seen"))}


def test_single_file_is_watched_through_its_replacement(watch: Any, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; echo > file; echo > other")
    with watch("file", "debounce_seconds=0.05") as stream:
        run.out(f"cd {folder}; echo > new; mv new file; echo > other")
        assert stream.seen_until(("created", "file")) == [("created", "file")]
        run.out(f"cd {folder}; chmod 600 file")
        stream.seen_until(("chmod", "file"))


def test_nothing_behind_a_link_is_told(watch: Any, run: Run, folder: str) -> None:
    run.out(f"mkdir {folder}/in {folder}-out; ln -s ../../{folder}-out {folder}/in/link")
    try:
        with watch() as stream:
            run.out(
                f"echo > {folder}-out/secret; echo > {folder}/in/link/secret2; "
                f"echo > {folder}/in/seen"
            )
            assert stream.seen_until(("created", "in/seen")) == [("created", "in/seen")]
    finally:
        run.out(f"rm -r {folder}-out")


@pytest.mark.parametrize("end", ["rm -r {0}/top", "mv {0}/top {0}/moved"])
def test_end_of_what_is_watched_ends_the_stream(
    watch: Any, run: Run, folder: str, end: str
) -> None:
    run.out(f"mkdir {folder}/top")
    with watch("top") as stream:
        run.out(end.format(folder))
        assert stream.event()["event"] == "gone"
        assert stream.event()["event"] == "end"


def test_flood_that_cannot_be_told_is_an_overflow(watch: Any, run: Run, folder: str) -> None:
    with watch(query="recursive=true&debounce_seconds=5") as stream:
        run.python(
            f"import os\nos.chdir({folder!r})\nfor n in range(25_000): open(f'{{n}}', 'w').close()"
        )
        event = stream.event()
        while event["event"] == "changes":
            event = stream.event()
        while event["event"] == "overflow":
            assert event["reason"] in ("queue", "flood")
            # On a slow machine the flood outlasts a batch, and the rest of the flood may swallow
            # this change, too.
            run.out(f"echo > {folder}/after")
            event = stream.event()
            while event["event"] == "changes" and "after" not in [
                change["path"] for change in event["changes"]
            ]:
                event = stream.event()
        assert event["event"] == "changes"


def test_browser_that_comes_back_is_told_that_it_missed_something(
    client: httpx.Client, folder: str
) -> None:
    with client.stream("GET", f"/v1/watch/{folder}", headers={"Last-Event-ID": "7"}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = response.iter_lines()
        text = ""
        while "reconnect" not in text:
            text += next(lines) + "\n"
    assert text.startswith("id: 1\nevent: watching\ndata: {")
    assert "id: 2\nevent: overflow\n" in text


def test_watch_of_nothing_or_outside_is_refused(target: Target, run: Run, folder: str) -> None:
    run.out(f"ln -s /etc {folder}/etc")
    assert target.request("GET", f"/v1/watch/{folder}/none").http_status == 404
    assert target.request("GET", f"/v1/watch/{folder}/etc").http_status == 403
    assert target.request("GET", "/v1/watch/..").http_status == 403
    assert target.request("GET", f"/v1/watch/{folder}?debounce_seconds=-1").http_status == 400
    assert target.request("HEAD", f"/v1/watch/{folder}").http_status == 200


def test_watches_are_limited_in_number_and_free_again_at_their_end(
    target: Target, folder: str
) -> None:
    request = f"GET /v1/watch/{folder} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    connections = []
    try:
        for _ in range(64):
            connection = target.connect()
            connections.append(connection)
            connection.sendall(request)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        refused = target.request("GET", f"/v1/watch/{folder}")
        assert (refused.http_status, refused.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
    finally:
        for connection in connections:
            connection.close()
    began = time.monotonic()
    while target.request("HEAD", f"/v1/watch/{folder}").http_status != 200:
        patience.check(began, READ_SECONDS, "a watch is free again")


FLOOD_OF_CHANGES = """
import os, sys, time
os.chdir(sys.argv[1])
end, number = time.monotonic() + 6, 0
while time.monotonic() < end:
    number += 1
    name = f"{number % 300}/{os.getpid()}"
    open(name, "w").close()
    os.rename(name, name + "x")
    os.unlink(name + "x")
"""


def test_many_watches_of_a_flood_hold_up_nobody(
    target: Target, client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; mkdir $(seq 0 299)")
    query = "recursive=true&debounce_seconds=0"
    request = f"GET /v1/watch/{folder}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as connections:
        for _ in range(60):
            connection = connections.enter_context(target.connect())
            connection.sendall(request)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        with probing(target):
            floods = [
                client.post(
                    "/v1/executions",
                    json={"argv": ["python3", "-c", FLOOD_OF_CHANGES, folder], "detach": True},
                ).json()["id"]
                for _ in range(6)
            ]
            for flood in floods:
                ended = client.get(f"/v1/executions/{flood}?wait_seconds=25").json()
                assert ended["exit_reason"] == "exited", ended
