"""The routes of checkpoints: their replies, their pages, and the start that makes a checkpoint."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from execd.api.v1.checkpoint_routes import decode_cursor, encode_cursor
from execd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Answer, Wire

    Serve = Callable[..., Awaitable[Wire]]

JSON = {"Content-Type": "application/json"}
ROUTE = "/v1/checkpoints"


@pytest_asyncio.fixture(loop_scope="session")
async def own(serve: Serve) -> Wire:
    """An engine of its own: checkpoints stay."""
    return await serve(sessions="off")


async def post(wire: Wire, path: str = ROUTE, **fields: Any) -> Answer:
    return await wire.request("POST", path, json.dumps(fields).encode(), JSON)


async def test_the_life_of_a_checkpoint(own: Wire) -> None:
    (own.base_dir / "file").write_text("old")
    made = await post(own, id="one")
    assert made.http_status == 201
    assert made.headers["Location"] == f"{ROUTE}/one"
    facts = made.json()
    assert facts["roots"] == [{"path": str(own.base_dir), "files": 1, "bytes": 3}]
    assert (facts["id"], facts["watched"], facts["bytes"]) == ("one", [], 3)
    assert facts["duration_seconds"] > 0
    assert (await own.request("GET", ROUTE)).json() == {"items": [facts]}
    assert (await own.request("GET", f"{ROUTE}/one")).json() == facts
    assert (await post(own, id="one")).http_status == 409
    (own.base_dir / "file").write_text("newer")
    (own.base_dir / "made").mkdir()
    changes = (await own.request("GET", f"{ROUTE}/one/changes")).json()
    assert changes == {
        "items": [
            {
                "path": str(own.base_dir / "file"),
                "change": "modified",
                "type": "file",
                "size_bytes": 5,
                "was_size_bytes": 3,
            },
            {
                "path": str(own.base_dir / "made"),
                "change": "created",
                "type": "directory",
                "size_bytes": None,
                "was_size_bytes": None,
            },
        ],
        "next_cursor": None,
    }
    done = (await own.request("POST", f"{ROUTE}/one/restore")).json()
    assert done.pop("duration_seconds") > 0
    assert done == {"restored": 2, "removed": 1, "unchanged": 0, "failed": []}
    assert (own.base_dir / "file").read_text() == "old"
    assert (await own.request("GET", f"{ROUTE}/one/changes")).json()["items"] == []
    assert (await own.request("DELETE", f"{ROUTE}/one")).http_status == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/changes"), ("POST", "/restore")):
        assert (await own.request(method, f"{ROUTE}/one{path}")).http_status == 404


async def test_pages_of_changes_have_each_change_once(own: Wire) -> None:
    await post(own, id="pages", roots=["."])
    names = ["a", "a-b", "a/x", "b", "b\n", "b/y", "c"]
    for name in names:
        if "/" not in name:
            (own.base_dir / name).mkdir()
    for name in names:
        if "/" in name:
            (own.base_dir / name).write_text("x")
    with open(os.fsencode(own.base_dir) + b"/\xff", "w") as file:
        file.write("x")
    found: list[str] = []
    cursor = ""
    while True:
        target = f"{ROUTE}/pages/changes?limit=2{cursor}"
        page = (await own.request("GET", target)).json()
        found += [item["path"].removeprefix(f"{own.base_dir}/") for item in page["items"]]
        assert len(page["items"]) <= 2
        if page["next_cursor"] is None:
            break
        cursor = "&cursor=" + page["next_cursor"]
    assert found == ["a", "a/x", "a-b", "b", "b/y", "b\n", "c", "\ufffd"]
    assert page["items"][-1]["path_percent_encoded"].endswith("/%FF")
    below = (await own.request("GET", f"{ROUTE}/pages/changes?path=a")).json()["items"]
    assert [item["path"] for item in below] == [str(own.base_dir / name) for name in ("a", "a/x")]


def test_only_the_cursor_of_a_page_is_accepted() -> None:
    assert decode_cursor(encode_cursor(b"\0a\0\xff")) == b"\0a\0\xff"
    for wrong in ("", "x", "!", encode_cursor(b"a")):
        with pytest.raises(InvalidArgument, match=r"^cursor: "):
            decode_cursor(wrong)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"roots": ["/proc"]}, "roots[0]"),
        ({"roots": [".", "/sys"]}, "roots[1]"),
        ({"watched": ["/dev/shm"]}, "watched[0]"),
        ({"exclude": ["a", "../b"]}, "exclude[1]"),
        ({"roots": []}, "roots"),
        ({"id": "a/b"}, "id"),
        ({"paths": []}, "paths"),
    ],
)
async def test_a_refusal_names_the_field(own: Wire, fields: dict[str, Any], field: str) -> None:
    refused = await post(own, **fields)
    assert refused.http_status == 400
    assert refused.json()["details"]["field"] == field
    assert (await own.request("GET", ROUTE)).json()["items"] == []


async def test_a_checkpoint_past_the_bound_is_507_with_the_size(serve: Serve) -> None:
    wire = await serve(sessions="off", checkpoint_bytes=10_000)
    (wire.base_dir / "file").write_bytes(bytes(range(256)) * 100)
    refused = await post(wire)
    assert (refused.http_status, refused.json()["code"]) == (507, "NO_SPACE")
    assert refused.json()["details"]["needed_bytes"] > 25_600
    assert refused.json()["details"]["available_bytes"] == 10_000


async def test_only_probes_answer_before_the_checkpoint_of_the_start(serve: Serve) -> None:
    wire = await serve(sessions="off", checkpoint_at_start=(".",))
    assert (await wire.request("GET", "/")).http_status == 200
    ready = await wire.request("GET", "/readyz")
    assert (ready.http_status, ready.json()["cause"]) == (503, "checkpoint")
    for method, target in (("POST", ROUTE), ("GET", "/v1/executions"), ("GET", "/list/")):
        refused = await wire.request(method, target)
        assert refused.http_status == 503
        assert "Retry-After" in refused.headers
    await wire.engine.make_start_checkpoint()
    assert (await wire.request("GET", "/readyz")).http_status == 200
    for refused in (await post(wire, id="start"), await wire.request("DELETE", f"{ROUTE}/start")):
        assert refused.http_status == 409
