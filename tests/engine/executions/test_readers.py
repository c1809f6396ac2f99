"""Readers, and the rule for ending an execution when a reader leaves."""

from __future__ import annotations

import asyncio

import pytest

from execd.engine.executions.readers import Readers
from tests.waiting import wait_until_async


@pytest.fixture
def abandoned() -> list[bool]:
    return []


@pytest.fixture
def readers(abandoned: list[bool]) -> Readers:
    return Readers(lambda: abandoned.append(True))


async def test_the_last_reader_that_leaves_without_the_reply_abandons_the_execution(
    readers: Readers, abandoned: list[bool]
) -> None:
    with readers.attach():
        with readers.attach():
            assert readers.count == 2
        assert not abandoned
    assert (readers.count, abandoned) == (0, [True])


async def test_a_reader_with_the_reply_abandons_nothing(
    readers: Readers, abandoned: list[bool]
) -> None:
    with readers.attach() as attachment:
        attachment.delivered()
    assert readers.is_delivered
    assert not abandoned


async def test_a_reader_that_is_excused_abandons_nothing_and_has_no_reply(
    readers: Readers, abandoned: list[bool]
) -> None:
    with readers.attach() as attachment:
        attachment.excuse()
    assert not readers.is_delivered
    assert not abandoned


async def test_a_client_that_is_expected_back_and_comes_back_abandons_nothing(
    readers: Readers, abandoned: list[bool]
) -> None:
    readers.reattach_seconds = 0.01
    with readers.attach():
        pass
    with readers.attach():
        # A later timer of the same loop: the timer of the client's absence would run before.
        await asyncio.sleep(2 * readers.reattach_seconds)
        assert not abandoned
    await wait_until_async(lambda: abandoned)


async def test_a_client_that_does_not_come_back_abandons_the_execution_after_the_time_allowed(
    readers: Readers, abandoned: list[bool]
) -> None:
    readers.reattach_seconds = 0.01
    with readers.attach():
        pass
    assert not abandoned
    await wait_until_async(lambda: abandoned)


async def test_the_time_of_a_client_that_is_expected_back_begins_anew(
    readers: Readers, abandoned: list[bool]
) -> None:
    readers.reattach_seconds = first_seconds = 0.01
    with readers.attach():
        pass
    readers.reattach_seconds = 3600.0
    readers.restart_grace()
    await asyncio.sleep(2 * first_seconds)  # a later timer than the first, as above
    assert not abandoned
    readers.reattach_seconds = first_seconds
    readers.restart_grace()
    await wait_until_async(lambda: abandoned)


async def test_after_the_end_no_client_is_expected_back(
    readers: Readers, abandoned: list[bool]
) -> None:
    readers.reattach_seconds = 0.01
    with readers.attach():
        pass
    readers.close()
    await asyncio.sleep(2 * readers.reattach_seconds)  # a later timer, as above
    assert not abandoned


async def test_after_the_end_nobodys_leaving_means_anything(
    readers: Readers, abandoned: list[bool]
) -> None:
    with readers.attach():
        readers.close()
    assert not abandoned
