"""Run the mutants: ``python -m tests.mutants [--only TEXT] [--operators COUNT] [--slots N]
[--write-killers] [--accepted]``."""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from .mutant import (
    REPOSITORY,
    Mutant,
    accepted_survivors,
    named_killers,
    picked,
    write_killers,
)
from .operators import made, without_mutant
from .slot import Slot, Verdict, slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
OPERATORS = 100
LEAST_PERCENT = 95.0


def run(mutants: list[Mutant], n_slots: int) -> tuple[dict[str, Verdict], list[BaseException]]:
    """The verdicts by name of a mutant, and why other mutants have none."""
    by_file: dict[str, set[str]] = {}
    for test in {test for mutant in mutants for test in mutant.tests}:
        by_file.setdefault(test.partition("::")[0], set()).add(test)
    verdicts: dict[str, Verdict] = {}

    def judge(mine: Slot, mutant: Mutant) -> None:
        began = time.monotonic()
        verdict = verdicts[mutant.name] = mine.judge(mutant)
        seconds = time.monotonic() - began
        print(f"{verdict.word:8} {seconds:5.1f} s  {mutant.name}", flush=True)

    with contextlib.ExitStack() as ends:
        folders = [REPOSITORY / f".cache/mutants/{number}" for number in range(n_slots)]
        slots = [ends.enter_context(slot(folder)) for folder in folders]
        began = time.monotonic()
        failures = in_slots(slots, [sorted(tests) for tests in by_file.values()], Slot.prove)
        seconds = time.monotonic() - began
        print(f"the tests without a mutant: {seconds:.0f} s", flush=True)
        failures += in_slots(slots, mutants, judge)
    return verdicts, failures


def in_slots(
    slots: list[Slot], tasks: Iterable[T], work: Callable[[Slot, T], object]
) -> list[BaseException]:
    """Do the work of each task in a free slot, and return the failures."""
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    failures: list[BaseException] = []

    def serve(mine: Slot) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                task = todo.get_nowait()
                try:
                    work(mine, task)
                except BaseException as error:
                    failures.append(error)
                    print(error, file=sys.stderr, flush=True)

    threads = [threading.Thread(target=serve, args=(mine,)) for mine in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", default="", help="mutants whose name has this text")
    parser.add_argument("--operators", type=int, default=OPERATORS, help="how many; default: 100")
    parser.add_argument("--slots", type=int, default=2, help="mutants at a time; default: 2")
    parser.add_argument(
        "--write-killers", action="store_true", help="name the tests that failed in killers.toml"
    )
    parser.add_argument(
        "--accepted", action="store_true", help="try the accepted survivors, and only those"
    )
    options = parser.parse_args()
    began = time.monotonic()
    everything = (*picked(), *made(options.operators))
    accepted = accepted_survivors().keys()
    mutants = [mutant for mutant in everything if options.only in mutant.name]
    # The tests of a module take minutes where no test is named, and an accepted survivor has none.
    tried = [mutant for mutant in mutants if (mutant.name in accepted) == options.accepted]
    verdicts, failures = run(tried, options.slots)
    if options.write_killers:
        _write_killers(everything, verdicts)
    survivors = {name for name, verdict in verdicts.items() if verdict.word == "SURVIVED"}
    new = sorted(survivors - accepted)
    killed = sorted((accepted & verdicts.keys()) - survivors)
    gone = sorted(accepted - {mutant.name for mutant in everything})
    untouched = without_mutant(everything)
    for path in untouched:
        print(f"has no mutant, so picked.toml needs one: {path}", file=sys.stderr)
    for name in new:
        print(f"no test kills: {name}", file=sys.stderr)
    for name in killed:
        print(f"is killed, and survivors.toml lists: {name}", file=sys.stderr)
    for name in gone:
        print(f"is no mutant, and survivors.toml lists: {name}", file=sys.stderr)
    known = sorted((accepted & {mutant.name for mutant in mutants}) - verdicts.keys())
    n_killed = len(verdicts) - len(survivors)
    n_judged = len(verdicts) + len(known)
    percent = 100 * n_killed / max(1, n_judged)
    print(
        f"{n_judged} mutants, {n_killed} killed ({percent:.1f} %), {len(survivors) + len(known)} "
        f"survived, {len(new)} of them new; {len(failures)} failures of the run; "
        f"{time.monotonic() - began:.0f} s"
    )
    is_whole = not options.only and not options.accepted
    is_low = is_whole and percent < LEAST_PERCENT
    return 1 if failures or new or killed or gone or untouched or is_low else 0


def _write_killers(mutants: Iterable[Mutant], verdicts: Mapping[str, Verdict]) -> None:
    """A test with parameters is named without the parameters. Of mutants that no longer exist, or
    that no test kills, nothing stays."""
    killers = {}
    for mutant in mutants:
        if mutant.start is None:
            continue  # picked by hand, with its tests
        verdict = verdicts.get(mutant.name)
        if verdict is None:
            if mutant.name in (before := named_killers()):
                killers[mutant.name] = before[mutant.name]
        elif verdict.word != "SURVIVED":
            failed = (name.partition("[")[0] for name in verdict.killers)
            killers[mutant.name] = tuple(dict.fromkeys(failed)) or mutant.tests
    write_killers(killers)


if __name__ == "__main__":
    sys.exit(main())
