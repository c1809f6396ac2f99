"""The model of the whole daemon: its parts, and the deaths that hit all parts at once."""

from __future__ import annotations

import sys
from collections import Counter

from hypothesis.errors import StopTest
from hypothesis.stateful import invariant, precondition

from .base import step
from .executions import Executions
from .files import Files
from .sessions import Sessions

MAX_DEATHS = 2
"""Of the daemon, of the warden and of the zygote in one example. The second daemon restores what a
restoring daemon left. hypothesis likes to repeat a rule: without a bound a tenth of all steps are
deaths, and the starts of Python take four fifths of the time."""


class Daemon(Files, Executions, Sessions):
    """Subclasses set ``host``."""

    def __init__(self) -> None:
        # hypothesis runs a failed example once more. The first failure is the finding: the second
        # run would meet a daemon in another state.
        if self.host.finding is not None:
            raise RuntimeError("a finding is not run again")
        super().__init__()
        self.n_deaths: Counter[str] = Counter()

    @invariant()
    def answers(self) -> None:
        self.check_step()
        assert self.host.client.get("/").status_code == 200

    @precondition(lambda self: self.n_deaths["daemon"] < MAX_DEATHS)
    @step()
    def kill_the_daemon(self) -> None:
        self.n_deaths["daemon"] += 1
        self.host.restart()
        self.daemon_died()

    @precondition(lambda self: self.n_deaths["warden"] < MAX_DEATHS)
    @step()
    def kill_the_warden(self) -> None:
        self.n_deaths["warden"] += 1
        self.host.kill_warden()
        self.warden_died()

    @precondition(lambda self: self.n_deaths["zygote"] < MAX_DEATHS)
    @step()
    def kill_the_zygote(self) -> None:
        self.n_deaths["zygote"] += 1
        self.host.kill_zygote()

    def teardown(self) -> None:
        error = sys.exc_info()[1]
        # StopTest: hypothesis has no more choices for the example, and nothing failed.
        if error is not None and not isinstance(error, StopTest):
            self.host.finding = error
            return  # the checks of the end would hide why
        self.host.steps.append("the end of the example")
        try:
            self.clean_up()
            self.host.nothing_is_left()
            self.host.check_log()
        except BaseException as failure:
            self.host.finding = failure
            raise
