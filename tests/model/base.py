"""What the parts of the model share."""

from __future__ import annotations

import functools
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, rule

from tests import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from .host import Host

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 60


def step(
    **strategies: SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """hypothesis' ``rule``, with a line in the host's list of steps. hypothesis itself tells the
    steps of a failure only after a second run of the example, and a daemon that has died or kept a
    result may do otherwise in the second run."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def noted(part: Part, **arguments: Any) -> None:
            said = ", ".join(f"{name}={_shown.repr(value)}" for name, value in arguments.items())
            part.host.steps.append(f"{function.__name__}({said})")
            part.host.replayable.append((function.__name__, arguments))
            drawn.note((function.__name__, arguments))
            function(part, **arguments)

        return rule(**strategies)(noted)

    return decorate


class Part(RuleBasedStateMachine):
    """One part of the model: its own state, its rules, and what a death does to its state."""

    host: ClassVar[Host]

    def __init__(self) -> None:
        super().__init__()
        self.host.n_examples += 1
        self.host.steps.clear()
        self.host.replayable.clear()
        self.prefix = f"m{self.host.n_examples}"
        """Begins every name of this example: the daemon outlives the example."""

    def check_step(self) -> None:
        """Count a step."""
        self.host.n_steps += 1

    def daemon_died(self) -> None:
        """The daemon and all user code are gone, and another daemon runs."""

    def warden_died(self) -> None:
        """All user code is gone, and another warden runs."""

    def clean_up(self) -> None:
        """End and delete everything of this example, with the last checks."""
