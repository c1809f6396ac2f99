"""One run of the model, or the kept steps of a run that failed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Daemon

if TYPE_CHECKING:
    from .host import Host


def run(host: Host, n_examples: int, n_steps: int, seed: int | None = None) -> None:
    """Raises the exception of the failing step, with the steps of the example as a note."""
    machine = type("Daemon", (Daemon,), {"host": host})
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=n_examples,
                stateful_step_count=n_steps,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                # Shortening an example takes minutes with a real daemon, and the last steps
                # usually tell.
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )
    except BaseException:
        if host.finding is None:
            raise
        host.finding.add_note("\n".join(["Steps:", *host.steps]))
        raise host.finding from None


def as_lines(steps: list[tuple[str, dict[str, Any]]]) -> bytes:
    return "".join(f"{step!r}\n" for step in steps).encode()


def replay(host: Host, lines: bytes) -> None:
    """Take the steps of one example, without hypothesis."""
    machine = type("Daemon", (Daemon,), {"host": host})()
    machine.begin_files()
    for name, arguments in map(ast.literal_eval, lines.decode().splitlines()):
        getattr(machine, name)(**arguments)
        machine.answers()
    machine.teardown()
