"""Resets: the end of an episode, and what the client says of the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from execd_client import AsyncExecd, EpisodeEnded, Execd, NotFound
from execd_client.calls import Patience
from execd_client.checkpointing import reset
from execd_client.effects import Cut, Send
from tests.client.conftest import AT_ONCE
from tests.client.plays import Clock, play
from tests.conformance.target import TERMINATED, Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A daemon of these tests alone: a reset ends what other tests have."""
    made = start(tmp_path_factory.mktemp("daemon"))
    with Execd(made.url) as sandbox:
        sandbox.files.write("task/notes.txt", "as before")
        sandbox.checkpoint("task", roots=["task"])
    yield made
    assert made.stop() == TERMINATED, made.log_text()


def test_reset_makes_the_sandbox_as_it_was(sandbox: Execd) -> None:
    sandbox.files.write("task/notes.txt", "changed")
    handle = sandbox.start("sleep 1000")
    sandbox.sessions.create("notebook")
    outcome = sandbox.reset("task", verify="content")
    assert outcome.clean, outcome.differences
    assert (outcome.ended.executions, outcome.ended.sessions) == (1, 1)
    assert outcome.verified_by == "content"
    assert sandbox.files.read("task/notes.txt") == b"as before"
    assert sandbox.list() == []
    with pytest.raises(NotFound):
        handle.result()


def test_client_goes_on_in_the_episode_of_its_own_reset_and_another_does_not(
    sandbox: Execd, url: str
) -> None:
    with Execd(url) as late:
        assert late.run("echo first").stdout == "first\n"
        first, second = sandbox.reset("task"), sandbox.reset("task")
        assert first.episode != second.episode
        assert sandbox.run("echo mine").stdout == "mine\n"
        for _ in range(2):
            with pytest.raises(EpisodeEnded) as raised:
                late.run("touch task/late")
            assert raised.value.code == "CONFLICT"
        with pytest.raises(EpisodeEnded):
            late.reset("task")
    assert not sandbox.files.exists("task/late")


def test_async_client_resets_too(url: str) -> None:
    async def work() -> bool:
        async with AsyncExecd(url) as sandbox:
            outcome = await sandbox.reset("task")
            await sandbox.run("true")
            return outcome.clean

    assert asyncio.run(work())


@AT_ONCE
def test_who_waits_for_a_command_learns_of_the_reset(sandbox: Execd, url: str) -> None:
    async def work() -> tuple[str | None, int | None]:
        async with AsyncExecd(url) as waiting, AsyncExecd(url) as other:
            events = waiting.stream("echo begun; sleep 1000")
            async for event in events:
                if event.kind == "stdout":
                    await other.reset("task")
                if event.kind == "exited":
                    assert event.result is not None
                    return event.result.exit_reason, event.result.exit_code
        raise AssertionError("the stream has no end")

    assert asyncio.run(work()) == ("reset", 137)


def test_reset_whose_answer_was_lost_is_asked_for_under_the_same_key(sandbox: Execd) -> None:
    outcome = sandbox.reset("task")
    keys: list[str] = []

    def answer(effect: Any) -> Any:
        assert isinstance(effect, Send)
        keys.append(effect.request.headers["Idempotency-Key"])
        if len(keys) == 1:
            return Cut("lost", was_sent=True)
        return sandbox._driver.run(_sent(effect))

    clock = Clock()
    body = {"checkpoint": "task"}
    again, _ = play(reset(body, Patience(clock=clock)), clock, answer)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert again.episode != outcome.episode
    sandbox._driver.episode.id = again.episode


def _sent(effect: Send) -> Any:
    return (yield effect)
