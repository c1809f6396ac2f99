"""The init of a sandbox, once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from execd.api.wire.auth import TokenGate
from execd_opensandbox.settings import Settings
from tests.api.conftest import JSON

if TYPE_CHECKING:
    from wings.opensandbox.tests.conftest import OpenSandbox, Serve

SHA256 = hashlib.sha256(b"tok").hexdigest()
INIT = {"sandboxId": "sb-1", "generation": 2, "accessTokenHash": f"sha256:{SHA256}"}
TOKEN = {"X-EXECD-ACCESS-TOKEN": "tok"}


async def waiting(serve: Serve, token_sha256: str | None = None) -> OpenSandbox:
    gate = TokenGate(token_sha256)
    gate.await_init()
    return await serve(gate=gate, wing_settings=Settings(runtime_init=True), has_own_engine=True)


async def test_nothing_but_probes_is_served_before_the_init(serve_opensandbox: Serve) -> None:
    opensandbox = await waiting(serve_opensandbox, SHA256)
    assert (await opensandbox.request("GET", "/ping")).http_status == 200
    ready = await opensandbox.request("GET", "/ready")
    assert (ready.http_status, ready.json()) == (503, {"initialized": False})
    for headers in ({}, TOKEN):
        refusal = await opensandbox.refused("POST", "/command", {"command": "true"}, headers)
        assert refusal[0] == 503
    assert opensandbox.engine.list()[0] == []


async def test_init_sets_the_token_and_the_variables(serve_opensandbox: Serve) -> None:
    opensandbox = await waiting(serve_opensandbox)
    answer = await opensandbox.post("/internal/init", {**INIT, "envs": {"A": "x y"}})
    assert answer == {"status": "initialized"}
    assert await opensandbox.get("/ready") == {
        "initialized": True, "sandboxId": "sb-1", "generation": 2,
    }  # fmt: skip
    assert (await opensandbox.refused("GET", "/metrics"))[0] == 401
    body = json.dumps({"command": "echo $A; python -c 'print(1)'"}).encode()
    ran = await opensandbox.request("POST", "/command", body, JSON | TOKEN)
    assert rb'"x y\n"' in ran.body
    assert rb'"1\n"' in ran.body
    facts = await opensandbox.request("GET", "/v1/isolated/capabilities", b"", TOKEN)
    assert facts.json()["runtimeInit"] == {"version": 1}


async def test_a_restore_from_a_checkpoint_does_not_open_the_init_again(
    serve_opensandbox: Serve,
) -> None:
    opensandbox = await waiting(serve_opensandbox)
    # No connection from before the restore: the daemon drops them.
    await opensandbox.post("/internal/init", INIT, {"Connection": "close"})
    assert opensandbox.engine.restores.report(None)
    assert (await opensandbox.refused("POST", "/internal/init", INIT))[0] == 409
    assert (await opensandbox.refused("GET", "/metrics"))[0] == 401
    assert (await opensandbox.request("GET", "/metrics", b"", TOKEN)).http_status == 200


async def test_second_init_is_a_conflict_also_with_the_same_body(
    serve_opensandbox: Serve,
) -> None:
    opensandbox = await waiting(serve_opensandbox)
    await opensandbox.post("/internal/init", INIT)
    for headers in ({}, TOKEN):
        refusal = await opensandbox.refused("POST", "/internal/init", INIT, headers)
        assert refusal[:2] == (409, "ALREADY_INITIALIZED")


async def test_of_inits_at_once_one_is_accepted(serve_opensandbox: Serve) -> None:
    opensandbox = await waiting(serve_opensandbox)
    bodies = [{**INIT, "sandboxId": f"sb-{n}"} for n in range(8)]
    answers = await asyncio.gather(
        *(
            opensandbox.request("POST", "/internal/init", json.dumps(body).encode(), JSON)
            for body in bodies
        )
    )
    assert sorted(answer.http_status for answer in answers) == [200] + [409] * 7


async def test_hash_of_the_settings_holds_if_the_init_brings_none(
    serve_opensandbox: Serve,
) -> None:
    opensandbox = await waiting(serve_opensandbox, SHA256)
    await opensandbox.post("/internal/init", {"sandboxId": "sb-1"})
    assert (await opensandbox.refused("GET", "/metrics"))[0] == 401
    assert (await opensandbox.request("GET", "/metrics", b"", TOKEN)).http_status == 200


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"sandboxId": ""}, "sandboxId"),
        ({"generation": 0}, "generation"),
        ({"accessTokenHash": "md5:" + "0" * 64}, "accessTokenHash"),
        ({"accessTokenHash": f"sha256:{SHA256}\n"}, "accessTokenHash"),
        ({"accessTokenHash": None}, "accessTokenHash: required"),
        ({"envs": {"EXECD_ACCESS_TOKEN": "x"}}, "EXECD_ACCESS_TOKEN is reserved"),
        ({"envs": {"a=b": "x"}}, "env"),
        ({"lifecycle": {"preStart": {"command": ["x"]}}}, "lifecycle"),
        ({"entrypointPolicy": "other"}, "entrypointPolicy"),
    ],
)
async def test_malformed_init_is_400_and_can_be_sent_again(
    serve_opensandbox: Serve, change: dict[str, Any], rule: str
) -> None:
    opensandbox = await waiting(serve_opensandbox)
    refusal = await opensandbox.refused("POST", "/internal/init", {**INIT, **change})
    assert refusal[:2] == (400, "INVALID_REQUEST_BODY")
    assert rule in refusal[2]
    assert await opensandbox.post("/internal/init", INIT) == {"status": "initialized"}


async def test_routes_of_the_init_do_not_exist_without_the_setting(
    opensandbox: OpenSandbox,
) -> None:
    assert (await opensandbox.refused("GET", "/ready"))[0] == 404
    assert (await opensandbox.refused("POST", "/internal/init", INIT))[0] == 404
