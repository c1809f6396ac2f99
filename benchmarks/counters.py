"""What the engine's counters cost a command.

    python -m benchmarks.counters [--rounds N]

The updates of one command: the wait in the queue, the end of the execution, the bytes of the
request and of the reply. The execution is one of a real engine. The second figure is the daemon's
own CPU time of a command in the same engine, without HTTP, so the share is an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from execd.config import Config
from execd.engine.engine import Engine
from execd.engine.executions.command import shell_program
from execd.model import Command, Origin

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution

UPDATES, COMMANDS = 10_000, 300


async def run(engine: Engine) -> Execution:
    program = shell_program("true", nul_is_a_result=True)
    execution = engine.run(Command(program=program, origin=Origin("v1"), keeps_order=False))
    with execution.attach() as attachment:
        await execution.wait()
        attachment.delivered()
    return execution


def update(execution: Execution, engine: Engine) -> None:
    counters = engine.counters
    counters.received_bytes += 200
    counters.queue_seconds.observe(0.0001)
    execution.count_end()
    counters.sent_bytes += 300


async def measure(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            base_dir=str(Path(folder, "base")), state_dir=str(Path(folder, "state")), sessions="off"
        )
        async with Engine.open(config, {"PATH": os.defpath}) as engine:
            execution = await run(engine)
            costs, shares = [], []
            for _ in range(rounds):
                before = time.process_time()
                for _ in range(UPDATES):
                    update(execution, engine)
                costs.append((time.process_time() - before) / UPDATES * 1e6)
                before = time.process_time()
                for _ in range(COMMANDS):
                    await run(engine)
                command = (time.process_time() - before) / COMMANDS * 1e6
                shares.append(costs[-1] / command)
                print(f"updates {costs[-1]:5.2f} µs, command {command:5.0f} µs: {shares[-1]:.2%}")
            print(
                f"median: {statistics.median(costs):.2f} µs, {statistics.median(shares):.2%} of "
                "the daemon's CPU time of a command"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(measure(parser.parse_args().rounds))
