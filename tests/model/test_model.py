"""The daemon does what the model says, also over deaths: 30 examples of 20 steps. A failure of the
model can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import found
from tests.conformance.target import can_start

from .host import host
from .run import as_lines, replay, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not can_start(),
    reason="the daemon runs elsewhere, and the model kills its own (EXECD_CONFORMANCE_LAUNCHER)",
)


def test_daemon_does_what_the_model_says(tmp_path: Path) -> None:
    with host(tmp_path) as made:
        run(made, 30, 20)
    assert made.n_steps >= 300


def test_daemon_does_what_the_model_says_in_the_steps_that_once_failed(tmp_path: Path) -> None:
    for case in found.cases("model"):
        with host(tmp_path / case.name) as made:
            replay(made, case.read_bytes())


def test_kept_steps_are_taken_again_one_by_one(tmp_path: Path) -> None:
    steps = [
        ("put", {"path": "d/a", "content": 70}),
        ("append", {"path": "d/a", "content": b"\xff\n"}),
        ("run_to_the_end", {"is_keyed": True, "out": "é\u2028", "err": "", "exit_code": 3}),
        ("kill_the_daemon", {}),
        ("read_all", {}),
    ]
    with host(tmp_path) as made:
        replay(made, as_lines(steps))
        # The checks of the end take a step too.
        assert made.replayable == [*steps, ("read_all", {})]
        assert made.n_steps == len(steps)


def test_a_failure_is_told_with_its_message_and_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look at the log fails, and only that look: a second run of the example would hide
    the failure."""
    looks = []

    def check_log() -> None:
        looks.append(1)
        assert len(looks) != 2, "planted"

    with host(tmp_path) as made:
        monkeypatch.setattr(made, "check_log", check_log)
        with pytest.raises(AssertionError, match="planted") as failure:
            run(made, 30, 2, seed=1)
    [note] = [note for note in failure.value.__notes__ if note.startswith("Steps:")]
    assert note.splitlines()[1:] == made.steps
    assert {"kill_the_daemon()", "the end of the example"} & set(made.steps)
    assert len(looks) == 3, "the two of the run, and the last of the host"
