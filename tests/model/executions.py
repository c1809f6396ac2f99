"""The model of executions: a name or a key leads to one run with one result."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from tests.conformance.target import READ_SECONDS
from tests.event_stream import EventStreamParser
from tests.patience import patience
from tests.waiting import wait_until

from .base import Part, step
from .host import READY_SECONDS

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator

    import httpx

WORDS = st.text(st.sampled_from("ab é☃\u2028😀\t"), max_size=12)
KEYED = st.booleans()
INDEXES = st.integers(0, 1_000)
CUTS = st.one_of(st.integers(0, 900), st.integers(0, 300_000))
"""After so many bytes of a stream the connection ends: in the middle of an event, as a rule."""
FORMS = st.sampled_from(["ndjson", "sse"])
WAYS = st.sampled_from(["after", "Last-Event-ID", "POST"])
"""How a client asks for the events after a number."""
WHOLE = 1 << 40


@dataclass
class Reader:
    """All that a client has received of a run's stream, over all connections."""

    last: int = 0
    """The number of the last whole event."""
    is_stale: bool = False
    """The order of events died with a daemon, so ``last`` means nothing any more."""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def take(self, kind: str, event: dict[str, Any]) -> None:
        """Output. A piece may come again; no piece is left out, and none comes with other bytes."""
        received = {"stdout": self.stdout, "stderr": self.stderr}[kind]
        data, offset = b64decode(event["base64"]), event["offset"]
        assert len(data) == event["size_bytes"]
        assert offset <= len(received), "a gap"
        known = bytes(received[offset : offset + len(data)])
        assert data.startswith(known), "other bytes than before"
        received += data[len(known) :]


@dataclass
class Run:
    """An execution of the model."""

    name: str
    request: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    id: str = ""
    """Known after the first reply."""
    stdout: bytes = b""
    """Of the whole program; of a sleeper before the end too."""
    stderr: bytes = b""
    exit_code: int | None = None
    """None: only the model's kill, or a death, ends the program."""
    is_open: bool = False
    """The program copies its input, and the input goes on."""
    reason: str | None = None
    """The exit reason that the daemon has told; None: not over, as far as the model knows."""
    reader: Reader = field(default_factory=Reader)


class LineParser:
    """Yields the number, the kind and the fields of each event of an NDJSON stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, str, dict[str, Any]]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, lines):
            fields = json.loads(line)
            yield fields["sequence"], fields["event"], fields


class SseParser:
    """The same for server-sent events."""

    def __init__(self) -> None:
        self._parser = EventStreamParser()

    def feed(self, data: bytes) -> Iterator[tuple[int, str, dict[str, Any]]]:
        for event in self._parser.feed(data):
            yield int(event.id), event.kind, event.fields


class Executions(Part):
    """``runs`` are the executions that the daemon has to know. Each program writes a line to the
    file ``ran`` first, so a second run of a name would show."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.n_runs = 0

    def new_run(self, is_keyed: bool, program: str, **request: Any) -> Run:
        self.n_runs += 1
        name = f"{self.prefix}-{self.n_runs}"
        command = f"echo {name} >> {self.prefix}-ran; {program}"
        run = Run(name, {"command": command, **request})
        if is_keyed:
            run.headers["Idempotency-Key"] = name
        else:
            run.request["id"] = name
        return run

    def post(self, run: Run, http_status: int = 200) -> dict[str, Any]:
        body = self.host.json(
            "POST", "/v1/executions", http_status, json=run.request, headers=run.headers
        )
        if run.id:
            assert body["id"] == run.id
        else:
            run.id = body["id"]
            self.runs.append(run)
        return dict(body)

    def judge(self, run: Run, body: dict[str, Any]) -> None:
        """A reply of a run that must be over."""
        self.judge_reason(run, body)
        if run.reason == "exited":
            assert body["exit_code"] == run.exit_code, body
            assert body["stdout"] == run.stdout.decode("utf-8", "replace"), body
            assert body["stderr"] == run.stderr.decode("utf-8", "replace"), body
        else:
            assert run.stdout.decode().startswith(body["stdout"]), body

    def judge_reason(self, run: Run, body: dict[str, Any]) -> None:
        assert body["state"] == "EXITED", body
        if run.reason is not None:
            possible = {run.reason}
        elif run.exit_code is None:
            possible = {"canceled"}
        else:
            possible = {"exited"}
        assert body["exit_reason"] in possible, body
        assert type(body["exit_code"]) is int, body
        assert body["exit_code"] != 0 or body["exit_reason"] == "exited", body
        run.reason = body["exit_reason"]

    def pick(self, index: int) -> Run:
        return self.runs[index % len(self.runs)]

    @step(is_keyed=KEYED, out=WORDS, err=WORDS, exit_code=st.integers(0, 3))
    def run_to_the_end(self, is_keyed: bool, out: str, err: str, exit_code: int) -> None:
        run = self.new_run(is_keyed, f"printf %s '{out}'; printf %s '{err}' >&2; exit {exit_code}")
        run.stdout, run.stderr, run.exit_code = out.encode(), err.encode(), exit_code
        self.judge(run, self.post(run))

    @step(is_keyed=KEYED, n_lines=st.integers(1, 30_000))
    def run_with_much_output(self, is_keyed: bool, n_lines: int) -> None:
        run = self.new_run(is_keyed, f"seq {n_lines}; seq 7 >&2")
        run.stdout = "".join(f"{number}\n" for number in range(1, n_lines + 1)).encode()
        run.stderr, run.exit_code = b"1\n2\n3\n4\n5\n6\n7\n", 0
        self.judge(run, self.post(run))

    @step(is_keyed=KEYED)
    def begin_a_sleeper(self, is_keyed: bool) -> None:
        run = self.new_run(is_keyed, "echo began; exec sleep 4000.25", detach=True)
        run.stdout = b"began\n"
        assert self.post(run, 202)["state"] in ("QUEUED", "RUNNING")

    @step(is_keyed=KEYED)
    def begin_a_copier(self, is_keyed: bool) -> None:
        run = self.new_run(is_keyed, "exec cat", detach=True, stdin_open=True)
        run.is_open = True
        self.post(run, 202)

    def open_runs(self) -> list[Run]:
        return [run for run in self.runs if run.is_open and run.reason is None]

    @precondition(lambda self: self.open_runs())
    @step(index=INDEXES, words=st.lists(WORDS, min_size=1, max_size=4))
    def feed(self, index: int, words: list[str]) -> None:
        runs = self.open_runs()
        run = runs[index % len(runs)]
        for word in words:
            self.host.client.post(
                f"/v1/executions/{run.id}/stdin", content=word.encode()
            ).raise_for_status()
            run.stdout += word.encode()

    @precondition(lambda self: self.open_runs())
    @step(index=INDEXES)
    def end_the_input(self, index: int) -> None:
        runs = self.open_runs()
        run = runs[index % len(runs)]
        self.host.client.post(
            f"/v1/executions/{run.id}/stdin", params={"eof": "true"}
        ).raise_for_status()
        run.exit_code = 0
        self.wait(run)

    def wait(self, run: Run) -> None:
        self.judge(
            run,
            self.host.json("GET", f"/v1/executions/{run.id}", 200, params={"wait_seconds": "25"}),
        )

    @precondition(lambda self: self.runs)
    @step(index=INDEXES)
    def repeat(self, index: int) -> None:
        """The same request finds the first run, whatever has become of the run."""
        run = self.pick(index)
        self.post(run, 200 if run.reason is not None else 202)

    @precondition(lambda self: self.runs)
    @step(index=INDEXES)
    def repeat_with_another_request(self, index: int) -> None:
        run = self.pick(index)
        reply = self.host.client.post(
            "/v1/executions", json={**run.request, "timeout_seconds": 77}, headers=run.headers
        )
        assert reply.status_code == 422, reply.text

    @precondition(lambda self: self.runs)
    @step(index=INDEXES)
    def ask(self, index: int) -> None:
        run = self.pick(index)
        body = self.host.json("GET", f"/v1/executions/{run.id}", 200)
        if run.reason is None:
            assert body["state"] in ("QUEUED", "RUNNING"), body
        else:
            self.judge(run, body)

    @precondition(lambda self: self.runs)
    @step(index=INDEXES, n_bytes=CUTS, form=FORMS, way=WAYS)
    def read_on(self, index: int, n_bytes: int, form: str, way: str) -> None:
        """Follow a run from where the last connection broke off, and break off again."""
        self.follow(self.pick(index), n_bytes, form, way)

    def follow(self, run: Run, n_bytes: int, form: str, way: str) -> None:
        """Read at most ``n_bytes`` of the stream's body, up to the end of the run, or to the last
        byte that the model expects before the end."""
        reader = run.reader
        if reader.is_stale:
            with self.connect(run, form, way) as reply:
                assert reply.status_code == 410, reply.read()
            reader = run.reader = Reader()
        with self.connect(run, form, way) as reply:
            assert reply.status_code == 200, reply.read()
            if not run.id:
                run.id = reply.headers["Location"].rpartition("/")[2]
                self.runs.append(run)
            parser = SseParser() if form == "sse" else LineParser()
            chunks = reply.iter_raw()
            # Heartbeats come for ever.
            began = time.monotonic()
            while n_bytes > 0 and not self.has_all(run):
                chunk = next(chunks, None)
                assert chunk is not None, "a stream ended without `exited`"
                patience.check(began, READ_SECONDS, "a stream has news")
                for number, kind, fields in parser.feed(chunk[:n_bytes]):
                    if kind == "exited":
                        self.judge_reader(run, number, fields)
                        return
                    if kind != "started":
                        reader.take(kind, fields)
                    reader.last = number
                n_bytes -= len(chunk)
        assert run.stdout.startswith(bytes(reader.stdout)), reader
        assert run.stderr.startswith(bytes(reader.stderr)), reader

    def connect(
        self, run: Run, form: str, way: str
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        """Ask for the events after the last."""
        headers = {"Accept": {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}[form]}
        params = {"encoding": "base64"}
        if way == "after":
            params["after"] = str(run.reader.last)
        elif run.reader.last:
            headers["Last-Event-ID"] = str(run.reader.last)
        if way == "POST":
            return self.host.client.stream(
                "POST",
                "/v1/executions",
                params=params,
                json=run.request,
                headers={**headers, **run.headers},
            )
        return self.host.client.stream(
            "GET", f"/v1/executions/{run.id}/events", params=params, headers=headers
        )

    def has_all(self, run: Run) -> bool:
        """Whether the reader of a run that does not end has all bytes that the run can have
        written."""
        is_endless = run.exit_code is None and run.reason is None
        return is_endless and len(run.reader.stdout) >= len(run.stdout)

    def judge_reader(self, run: Run, number: int, exited: dict[str, Any]) -> None:
        """The reader got the last event. The next reader begins anew."""
        reader, run.reader = run.reader, Reader()
        if run.reason is None:
            assert run.exit_code is not None, exited
        self.judge_reason(run, exited)
        if run.reason == "exited":
            assert exited["exit_code"] == run.exit_code
            expected = run.stdout, run.stderr
        else:
            expected = self.bytes_of(run, "stdout"), self.bytes_of(run, "stderr")
            assert run.stdout.startswith(expected[0])
            assert run.stderr.startswith(expected[1])
        received = bytes(reader.stdout), bytes(reader.stderr)
        assert received == expected, (received, expected)
        after = self.host.client.get(
            f"/v1/executions/{run.id}/events", headers={"Last-Event-ID": str(number)}
        )
        assert after.status_code == 204, after.text

    def bytes_of(self, run: Run, stream: str) -> bytes:
        reply = self.host.client.get(f"/v1/executions/{run.id}/{stream}").raise_for_status()
        return reply.content

    @step(is_keyed=KEYED, out=WORDS, rest=WORDS, n_bytes=CUTS, form=FORMS, way=WAYS)
    def leave_and_come_back(
        self, is_keyed: bool, out: str, rest: str, n_bytes: int, form: str, way: str
    ) -> None:
        """The caller's connection breaks. A caller that comes back within the grace finds the run,
        and reads on."""
        run = self.new_run(is_keyed, f"printf %s '{out}'; sleep 0.2; printf %s '{rest}'")
        run.stdout, run.exit_code = (out + rest).encode(), 0
        self.follow(run, n_bytes, form, "POST")
        self.follow(run, WHOLE, form, way)
        self.judge(run, self.post(run))

    @step()
    def leave_for_good(self) -> None:
        """Nobody can come back to a run without a key and without a name of the caller's."""
        run = self.new_run(True, "exec sleep 4000.25")
        run.headers.clear()
        self.follow(run, 0, "ndjson", "POST")
        self.runs.remove(run)
        url = f"/v1/executions/{run.id}"
        wait_until(lambda: self.host.json("GET", url, 200)["state"] == "EXITED", READY_SECONDS)
        assert self.host.json("GET", url, 200)["exit_reason"] == "client_disconnected"
        self.host.json("DELETE", url, 204)

    @precondition(lambda self: self.runs)
    @step(index=INDEXES)
    def kill(self, index: int) -> None:
        run = self.pick(index)
        body = self.host.json(
            "POST", f"/v1/executions/{run.id}/kill", 200, json={"grace_seconds": 0.1}
        )
        self.judge(run, body)

    @precondition(lambda self: self.runs)
    @step(index=INDEXES)
    def forget(self, index: int) -> None:
        run = self.runs.pop(index % len(self.runs))
        self.host.json("DELETE", f"/v1/executions/{run.id}", 204)
        self.host.json("GET", f"/v1/executions/{run.id}", 404)

    def daemon_died(self) -> None:
        super().daemon_died()
        for run in self.runs:
            if run.reason is None:
                run.reason = "daemon_restarted"
                run.reader.is_stale = run.reader.last > 0

    def warden_died(self) -> None:
        super().warden_died()
        for run in self.runs:
            run.reason = run.reason or "init_killed"
            self.wait(run)

    def clean_up(self) -> None:
        for run in self.runs:
            if run.reason is not None:
                self.judge(run, self.host.json("GET", f"/v1/executions/{run.id}", 200))
            self.follow(run, WHOLE, "ndjson", "after")
            self.host.json("DELETE", f"/v1/executions/{run.id}", 204)
        ran = self.host.client.get(f"/v1/files/{self.prefix}-ran").text.split()
        assert len(ran) == len(set(ran)), f"ran twice: {sorted(ran)}"
        names = {run.name for run in self.runs if run.reason == "exited"}
        assert names <= set(ran)
        self.host.client.delete(f"/v1/files/{self.prefix}-ran")
        super().clean_up()
