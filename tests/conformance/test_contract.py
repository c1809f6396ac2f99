"""``contract`` finds what the daemon's OpenAPI document does not have, and compares the replies of
all other tests with the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .contract import RECORDER, Contract, Reply

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target


def test_a_reply_that_the_document_does_not_have_is_found(target: Target) -> None:
    contract = Contract(target.request("GET", "/openapi.json").json())

    def findings(
        target: str, http_status: int, kind: str, body: str, method: str = "GET", allow: str = ""
    ) -> str:
        reply = Reply(method, target, http_status, {"content-type": kind, "allow": allow})
        reply.add(body.encode())
        reply.is_whole = True
        return " ".join(contract.findings(reply))

    plain, lines, sse = "application/json", "application/x-ndjson", "text/event-stream"
    assert findings("/healthz", 200, plain, '{"status":"ok"}') == ""
    assert "is not documented" in findings("/healthz", 418, plain, "{}")
    assert "content type 'text/plain'" in findings("/healthz", 200, "text/plain", "ok")
    assert '"status" is a required' in findings("/healthz", 200, plain, "{}")
    assert "unexpected" in findings("/healthz", 200, plain, '{"status":"ok","more":1}')
    assert "no JSON" in findings("/healthz", 200, plain, "{")
    assert "no body" in findings("/v1/files/x", 204, plain, "{}", "PUT")
    assert "no such route" in findings("/other", 200, plain, "{}")
    assert findings("/other", 404, plain, '{"detail":"Not Found"}') == ""
    assert findings("/v1/other", 404, plain, '{"wrong":"Not Found"}') != ""
    detail = '{"detail":"Method Not Allowed"}'
    error = '{"code":"METHOD_NOT_ALLOWED","message":"method: this path allows DELETE, GET, HEAD"}'
    execution = "/v1/executions/x"
    assert findings("/upload", 405, plain, detail, "OPTIONS", "POST") == ""
    assert findings(execution, 405, plain, error, "PUT", "GET,HEAD,DELETE") == ""
    assert "405 is due" in findings("/upload", 404, plain, detail, "OPTIONS", "POST")
    assert "404 is due" in findings("/other", 405, plain, detail, "OPTIONS", "POST")
    assert "404 is due" in findings("/other", 418, plain, detail)
    assert "Allow is" in findings("/upload", 405, plain, detail, "OPTIONS")
    assert "Allow is" in findings("/upload", 405, plain, detail, "OPTIONS", "GET,POST")
    assert "is not valid" in findings("/upload", 405, plain, error, "OPTIONS", "POST")
    assert "is not valid" in findings(execution, 405, plain, detail, "PUT", "GET,HEAD,DELETE")
    assert findings("/v1/other", 401, plain, '{"code":"UNAUTHENTICATED","message":"x"}') == ""
    watch, gone = "/v1/watch/x", '{"event":"gone","sequence":1'
    assert findings(watch, 200, lines, gone + "}\n\n") == ""
    assert "unexpected" in findings(watch, 200, lines, gone + ',"more":1}\n')
    assert "'left'" in findings(watch, 200, lines, '{"event":"left","sequence":1}\n')
    assert findings(watch, 200, sse, "id: 1\nevent: gone\ndata: {}\n\n: heartbeat\n") == ""
    assert "unexpected" in findings(watch, 200, sse, 'id: 1\nevent: gone\ndata: {"more":1}\n\n')


def test_a_message_that_the_document_does_not_have_is_found(target: Target) -> None:
    contract = Contract(target.request("GET", "/openapi.json").json())
    dropped = {"type": "dropped", "offset": 0, "size_bytes": 1}
    assert list(contract.message_findings("sends", dropped)) == []
    assert list(contract.message_findings("sends", {**dropped, "more": 1}))
    assert list(contract.message_findings("sends", {"type": "other"}))


def test_the_replies_of_a_test_are_recorded(run: Run, client: httpx.Client) -> None:
    assert run.out("echo hello") == "hello\n"
    with client.stream("GET", "/v1/files/") as streamed:
        assert streamed.status_code == 200
    found = {(reply.method, reply.is_whole) for reply in RECORDER.replies}
    assert found == {("POST", True), ("GET", False)}
