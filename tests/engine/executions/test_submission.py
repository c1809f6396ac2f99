from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.executions.registry import Registry
from execd.engine.executions.submission import Idempotency, Submission
from execd.errors import IdempotencyMismatch, InvalidArgument, ResourceExhausted
from execd.model import Command, Program, State

if TYPE_CHECKING:
    from execd.engine.executions.execution_record import Registration
    from execd.engine.executions.submission import Submitted


class Desk:
    """An Idempotency over a real registry. Tests ask as the engine asks. ``made`` lists the
    runs."""

    def __init__(self) -> None:
        self.registry = Registry(
            max_plain=10,
            max_kept=10,
            max_memory_bytes=1 << 20,
            plain_seconds=60.0,
            kept_seconds=60.0,
        )
        self.vacated: list[str] = []
        retention: Any = SimpleNamespace(vacate=self.vacated.append, add=self.registry.add)
        self.once = Idempotency(self.registry, retention)
        self.made: list[Any] = []
        self.is_full = False

    def make(self, registration: Registration) -> Any:
        if self.is_full:
            raise ResourceExhausted("full")
        command = SimpleNamespace(detached=False)
        run = SimpleNamespace(**registration._asdict(), command=command, memory_bytes=0)
        run.state, run.has_failed, run.ended_monotonic = State.RUNNING, False, 0.0
        run.is_repeatable = bool(registration.payload)
        self.made.append(run)
        return run

    def submit(
        self, payload: bytes = b"true", *, name: str | None = None, key: str | None = None
    ) -> Submitted:
        command = Command(program=Program(argv=("true",), display="true"))
        submission = Submission(command, execution_id=name, key=key, payload=payload)
        earlier = self.once.repeated(submission) if submission.is_named else None
        if earlier is not None:
            return earlier
        registration = self.once.register(submission, is_kept=False)
        return self.once.add(self.make(registration))

    def fail(self, run: Any) -> None:
        run.state, run.has_failed = State.EXITED, True
        self.registry.finished(run, now=0.0)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("named", [{"name": "x"}, {"key": "k"}, {"name": "x", "key": "k"}])
def test_the_same_again_is_what_there_is(desk: Desk, named: dict[str, str]) -> None:
    first, again = desk.submit(**named), desk.submit(**named)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.execution is first.execution
    assert len(desk.made) == 1
    assert first.execution.is_kept


@pytest.mark.parametrize("named", [{"name": "x"}, {"key": "k"}])
def test_another_request_under_the_same_name_or_key_is_refused(
    desk: Desk, named: dict[str, str]
) -> None:
    desk.submit(**named)
    with pytest.raises(IdempotencyMismatch):
        desk.submit(b"false", **named)
    assert len(desk.made) == 1


def test_requests_without_a_name_and_a_key_have_nothing_to_do_with_each_other(desk: Desk) -> None:
    runs = [desk.submit(b"") for _ in range(2)]
    assert all(submitted.is_new and not submitted.execution.is_kept for submitted in runs)
    assert runs[0].execution.id != runs[1].execution.id


def test_the_name_that_such_a_one_got_is_nobody_elses(desk: Desk) -> None:
    given = desk.submit(b"").execution.id
    with pytest.raises(IdempotencyMismatch):
        desk.submit(b"true", name=given)


def test_a_key_is_looked_for_before_a_name(desk: Desk) -> None:
    by_key = desk.submit(key="k").execution
    desk.submit(name="x")
    assert desk.submit(name="x", key="k").execution is by_key


def test_the_key_itself_is_not_kept(desk: Desk) -> None:
    assert "secret" not in str(desk.submit(key="secret").execution)


@pytest.mark.parametrize("named", [{"name": "x"}, {"key": "k"}])
def test_what_never_ran_gives_its_name_back(desk: Desk, named: dict[str, str]) -> None:
    failed = desk.submit(**named).execution
    desk.fail(failed)
    retry = desk.submit(b"another", **named)
    assert retry.is_new
    assert retry.execution is not failed
    assert desk.vacated == [failed.id, retry.execution.id], "its files are not in the way"
    assert desk.submit(b"another", **named).execution is retry.execution


def test_what_cannot_be_made_takes_no_name(desk: Desk) -> None:
    desk.is_full = True
    with pytest.raises(ResourceExhausted):
        desk.submit(name="x", key="k")
    desk.is_full = False
    assert desk.submit(name="x", key="k").is_new


def test_a_name_that_no_path_could_hold_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidArgument, match="id: must match"):
        desk.submit(name="../x")
    assert desk.made == []
