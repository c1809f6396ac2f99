"""Figures over the wire: GET /v1/stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .target import READ_SECONDS, wait_until

if TYPE_CHECKING:
    import httpx


def read_stats(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/v1/stats")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """The counts that have grown."""
    return {name: n - before[name] for name, n in after.items() if n != before[name]}


def test_stats_count_what_a_caller_has_caused(client: httpx.Client) -> None:
    before = read_stats(client)
    client.post("/execute", json={"command": "printf 12345"})
    client.post("/v1/executions", json={"command": "kill -9 $$"})
    client.post("/v1/code", json={"code": "1 / 0"})
    assert client.get("/v1/executions/nothing").status_code == 404
    after = read_stats(client)
    assert difference(after["executions"]["ended"], before["executions"]["ended"]) == {
        "exited": 2,
        "signaled": 1,
    }
    assert (
        difference(after["executions"]["output_bytes"], before["executions"]["output_bytes"])[
            "stdout"
        ]
        >= 5
    )
    assert difference(after["sessions"]["cells"], before["sessions"]["cells"]) == {"error": 1}
    traffic = difference(after["traffic"]["error_replies"], before["traffic"]["error_replies"])
    assert traffic == {"NOT_FOUND": 1}
    for name in ("received_bytes", "sent_bytes"):
        assert after["traffic"][name] > before["traffic"][name]


def test_stats_have_the_memory_and_the_cpu_time_of_daemon_and_warden(client: httpx.Client) -> None:
    # The latest scan has found the sessions' Python a moment after its start.
    wait_until(
        lambda: all(
            (
                read_stats(client)["memory"]["zygote_bytes"],
                read_stats(client)["cpu"]["trees_seconds"],
            )
        ),
        READ_SECONDS,
        "a scan has seen the sessions' Python",
    )
    found = read_stats(client)
    assert found["ready"]
    assert found["warden"]["up"]
    for name in ("daemon_bytes", "warden_bytes", "zygote_bytes", "pod_used_bytes"):
        assert found["memory"][name] > 0, name
    for name in ("daemon_seconds", "trees_seconds"):
        assert found["cpu"][name] > 0, name
    assert found["cpu"]["warden_seconds"] >= 0
