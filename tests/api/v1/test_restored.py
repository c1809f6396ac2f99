"""POST /v1/restored, and the connections of a restored daemon."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import pytest_asyncio

from execd.engine.restores import Readings
from tests.api.conftest import JSON, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

    Serve = Callable[..., Awaitable[Wire]]

TOKEN = "secret"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
WITH_TOKEN = {"X-Access-Token": TOKEN}


def restore(wire: Wire) -> None:
    """Have the time of day jump, as after the restore of a virtual machine."""
    wire.engine.restores._clocks = lambda: Readings(time.time() + 1000, time.monotonic())


@pytest_asyncio.fixture(loop_scope="session")
async def own(serve: Serve) -> Wire:
    """An engine of its own: a restore leaves traces."""
    return await serve(sessions="off")


async def test_without_a_token_only_a_restore_with_a_sign_counts(own: Wire) -> None:
    refused = await own.request("POST", "/v1/restored")
    assert refused.http_status == 409
    assert refused.json()["code"] == "CONFLICT"
    assert own.engine.restores.count == 0


async def test_a_restore_that_the_daemon_has_noticed_is_confirmed(own: Wire) -> None:
    before = own.engine.restores.instance_id
    restore(own)
    reply = await own.request("POST", "/v1/restored")
    answer = reply.json()
    assert answer["instance_id"] == reply.headers["X-Execd-Instance"]
    assert answer["cause"] == "clock"
    assert answer["restores"] == 1
    assert answer["instance_id"] != before
    assert answer["restored_at"].endswith("Z")
    assert (await own.request("POST", "/v1/restored", b"{}", JSON)).json() == answer
    facts = (await own.request("GET", "/v1/capabilities")).json()["instance"]
    assert facts == {"id": answer["instance_id"], "restores": 1}


async def test_a_report_with_the_token_counts_without_a_sign(serve: Serve) -> None:
    wire = await serve(sessions="off", token_sha256=HASH)
    assert (await wire.request("POST", "/v1/restored")).http_status == 401
    wrong = await wire.request("POST", "/v1/restored", headers={"X-Access-Token": "x"})
    assert wrong.http_status == 401
    assert wire.engine.restores.count == 0
    first = await wire.request("POST", "/v1/restored", headers=WITH_TOKEN)
    assert first.json()["cause"] == "report"
    # The platform may repeat itself; callers that have come since keep their connections.
    kept = await wire.connect()
    await kept.send(request_bytes("GET", "/"))
    assert (await kept.receive()).http_status == 200
    second = await wire.request("POST", "/v1/restored", headers=WITH_TOKEN)
    assert second.json() == first.json()
    await kept.send(request_bytes("GET", "/"))
    assert (await kept.receive()).http_status == 200


async def test_unknown_fields_are_refused(own: Wire) -> None:
    assert (await own.request("POST", "/v1/restored", b'{"x":1}', JSON)).http_status == 400
    assert (await own.request("POST", "/v1/restored?x=1")).http_status == 400


async def test_connections_from_before_the_restore_are_dropped(own: Wire) -> None:
    kept = await own.connect()
    await kept.send(request_bytes("GET", "/"))
    assert (await kept.receive()).http_status == 200
    running = await own.connect()
    body = b'{"command":"exec sleep 1000"}'
    await running.send(request_bytes("POST", "/v1/executions", body, JSON))
    await wait_until(lambda: [one for one in own.live() if one.started_at], "the command runs")
    [execution] = own.live()
    restore(own)
    # The caller of the request that shows the jump is there.
    asking = await own.connect()
    await asking.send(request_bytes("GET", "/"))
    assert (await asking.receive()).http_status == 200
    assert await kept.is_closed_by_peer()
    assert await running.is_closed_by_peer()
    assert own.live() == [execution]
    shown = await own.request("GET", f"/v1/executions/{execution.id}")
    assert shown.json()["state"] == "RUNNING"
    assert (await own.request("DELETE", f"/v1/executions/{execution.id}")).http_status == 204


async def test_a_server_that_has_ended_hears_of_no_restore(own: Wire) -> None:
    before = len(own.engine.restores._subscribers)
    await own.client.close()
    assert len(own.engine.restores._subscribers) == before - 1
