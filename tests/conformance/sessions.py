"""A session, as its callers know the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .target import wait_until

if TYPE_CHECKING:
    import httpx

ENOUGH_SECONDS = 50.0
"""Less than the 60 s for which cells sleep that something else must end."""


class Session:
    """A session and the answers of its cells."""

    def __init__(self, client: httpx.Client, session_id: str) -> None:
        self.client = client
        self.id = session_id
        self.path = f"/v1/sessions/{session_id}"

    def post(self, action: str, **fields: Any) -> httpx.Response:
        return self.client.post(f"{self.path}/{action}", json=fields)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        answer = self.post("execute", code=code, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def value(self, code: str) -> str:
        done = self.run(code)
        assert done["status"] == "success", done
        return done["result"]["data"]["text/plain"]

    def show(self) -> dict[str, Any]:
        answer = self.client.get(self.path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def start(self, code: str, **fields: Any) -> str:
        """Run a cell in the background; return the execution's id once the cell runs."""
        answer = self.post("execute", code=code, detach=True, **fields)
        assert answer.status_code == 202, answer.text
        path = f"/v1/executions/{answer.json()['id']}"
        wait_until(
            lambda: self.client.get(path).json()["state"] != "QUEUED",
            ENOUGH_SECONDS,
            "the cell runs",
        )
        return answer.json()["id"]

    def ended(self, execution_id: str) -> dict[str, Any]:
        done = self.client.get(f"/v1/executions/{execution_id}?wait_seconds=25").json()
        assert done["state"] == "EXITED", done
        return done
