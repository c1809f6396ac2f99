"""The other side of a plan: answers effects without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from execd_client import effects

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd_client.effects import Plan


class Clock:
    """Time that passes only when a plan sleeps, or an answer says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def reply(http_status: int = 200, body: Any = None, **headers: str) -> effects.Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return effects.Reply(http_status, named, msgspec.json.encode(body))


def play(
    plan: Plan[Any],
    clock: Clock,
    answer: Callable[[Any], Any],
    pauses: list[float] | None = None,
) -> tuple[Any, list[Any]]:
    """The plan's result, and its effects. ``answer`` gives the answer to an effect, or a Cut that
    is thrown. A Sleep moves the clock; ``pauses`` gets its seconds."""
    asked = []
    value, thrown = None, None
    while True:
        try:
            effect = plan.throw(thrown) if thrown else plan.send(value)
        except StopIteration as end:
            return end.value, asked
        value, thrown = None, None
        asked.append(effect)
        if isinstance(effect, effects.Sleep):
            clock.seconds += effect.seconds
            if pauses is not None:
                pauses.append(effect.seconds)
            continue
        value = answer(effect)
        if isinstance(value, effects.Cut):
            value, thrown = None, value
