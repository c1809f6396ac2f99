from __future__ import annotations

from execd.proc.messages import ReadWritten
from execd.proc.reports import Reports


async def test_each_request_gets_its_own_answer() -> None:
    reports: Reports[str] = Reports()
    sent: list[ReadWritten] = []
    first, second = (reports.request(ReadWritten, sent.append) for _ in range(2))
    assert [message.sequence for message in sent] == [1, 2]
    reports.answer(2, "two")
    reports.answer(7, "unknown")
    assert second.result() == "two"
    assert not first.done()
    reports.answer(1, "one")
    assert first.result() == "one"


async def test_the_loss_of_the_warden_answers_none() -> None:
    reports: Reports[str] = Reports()
    waiting = reports.request(ReadWritten, lambda _message: None)
    reports.lose()
    assert waiting.result() is None
    assert reports.request(ReadWritten, None).result() is None


async def test_answer_to_a_caller_that_has_left_is_dropped() -> None:
    reports: Reports[str] = Reports()
    left = reports.request(ReadWritten, lambda _message: None)
    left.cancel()
    reports.answer(1, "late")
    assert left.cancelled()
