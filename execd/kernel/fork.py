"""A branch's differences from its original: threads and tasks are lost, sockets are shared, random
generators and the event loop start anew. Also the random generators after a restore from a
checkpoint: each restore of a checkpoint is a branch of the same original.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

from execd.kernel.descriptors import open_sockets
from execd.kernel.subprocesses import forget_magic_threads

if TYPE_CHECKING:
    from execd.kernel.shell import Shell


def describe_losses(private: set[int]) -> list[str]:
    """Describe, before the fork, the threads lost by branches and the sockets shared with branches.

    private: sockets of the worker, not counted.
    """
    found = []
    threads = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    if threads:
        found.append(f"{len(threads)} thread(s) run in the original only: {', '.join(threads)}")
    sockets = len(open_sockets() - private)
    if sockets:
        found.append(f"{sockets} open socket(s) are shared with the original")
    return found


def reseed_global_generators() -> None:
    """Reseed the global generators of random, numpy and torch from the kernel.

    Two processes with the same state then draw different numbers. At a fork, Python itself reseeds
    only the generator of random.
    """
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "seed"):
        torch.seed()


def find_user_generators(shell: Shell) -> dict[str, Any]:
    """Return the random generators in user code's namespace, by name."""
    numpy_random = sys.modules.get("numpy.random")
    kinds: tuple[Any, ...] = (random.Random,)
    if numpy_random is not None:
        kinds += (numpy_random.Generator, numpy_random.RandomState)
    found = {}
    for name, value in list(shell.user_ns.items()):
        if (
            not str(name).startswith("_")
            and isinstance(value, kinds)
            and not isinstance(value, random.SystemRandom)
        ):
            found[str(name)] = value
    return found


def reseed_user_generators(shell: Shell) -> None:
    """Reseed the generators that user code has named."""
    for value in find_user_generators(shell).values():
        if hasattr(value, "bit_generator"):
            value.bit_generator.state = type(value.bit_generator)().state
        else:
            value.seed()


def reseed_restored(shell: Shell) -> None:
    """Reseed all generators of a process that was restored from a checkpoint.

    A generator that user code has broken keeps its state: the error of the generator must not cost
    the session its state.
    """
    for reseed in (reseed_global_generators, lambda: reseed_user_generators(shell)):
        try:
            reseed()
        except Exception:
            pass


def start_branch(shell: Shell) -> None:
    """Prepare a new branch, before any user code runs."""
    reseed_global_generators()
    reseed_user_generators(shell)
    shell.session_loop.abandon_inherited_loop()
    forget_magic_threads(shell)
