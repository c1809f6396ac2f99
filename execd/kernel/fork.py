"""A branch's differences from its original: threads and tasks are lost, sockets and open files are
shared, random generators and the event loop start anew. Also the random generators after a restore
from a checkpoint: each restore of a checkpoint is a branch of the same original.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from execd.kernel.open_files import find_descriptors, flush_files
from execd.kernel.subprocesses import forget_magic_threads

if TYPE_CHECKING:
    from execd.kernel.shell import Shell


# By the beginning of a file's name.
GNU_OPENMP = re.compile(r"libgomp\b")
THREADED = re.compile(r"(lib|_)?(g?omp|iomp|tbb|openblas|mkl|arrow|torch|polars|(cy)?grpc|jvm)")
OMP_PAUSE_HARD = 2  # omp_pause_resource_t, OpenMP 5.0
LAST_MOMENTS = 20
"""Milliseconds in which a thread that Python has joined leaves the kernel's table."""


def describe_losses(shell: Shell, own_sockets: set[int]) -> list[str]:
    """Describe, before the fork, what branches lose and what they share with the original.

    Writes what open files have in their buffers: otherwise each process would write the text.
    own_sockets: of the worker, not counted.
    """
    found = []
    threads = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    if threads:
        found.append(f"{len(threads)} thread(s) run in the original only: {', '.join(threads)}")
    shared = find_descriptors(own_sockets)
    if shared.sockets:
        found.append(f"{shared.sockets} open socket(s) are shared with the original")
    if shared.pipes:
        found.append(f"{shared.pipes} open end(s) of pipes are shared with the original")
    objects = list(shell.user_ns.values())
    if shared.files:
        objects += gc.get_objects()
        flush_files(objects)
        found.append(
            f"{len(shared.files)} open file(s) are shared with the original, with the place of the "
            f"next write: {', '.join(shared.files)}"
        )
    transactions = {id(one) for one in _of_class(objects, "sqlite3", "Connection") if _is_open(one)}
    if transactions:
        found.append(
            f"{len(transactions)} open transaction(s) of sqlite3 are shared with the original: end "
            "them in one process, and connect anew in the others"
        )
    folders = {str(one.name) for one in _of_class(objects, "tempfile", "TemporaryDirectory")}
    if folders:
        found.append(
            "temporary directories are shared with the original, and go with the first process "
            f"that drops them: {', '.join(sorted(folders))}"
        )
    return found


def _of_class(objects: list[Any], module: str, name: str) -> list[Any]:
    """Return the objects of a class. By type: isinstance would run user code."""
    wanted = getattr(sys.modules.get(module), name, None)
    return [] if wanted is None else [one for one in objects if issubclass(type(one), wanted)]


def _is_open(connection: Any) -> bool:
    try:
        return bool(connection.in_transaction)
    except Exception:  # never connected
        return False


def stop_openmp() -> None:
    """End the threads of GNU's OpenMP, which come back when needed: a branch of a process with such
    threads would wait for them. LLVM's and Intel's OpenMP have handlers of forks, and a pause would
    lose their settings."""
    if _native_threads():
        for path in _libraries(GNU_OPENMP):
            try:
                library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)
                library.omp_pause_resource_all(OMP_PAUSE_HARD)
            except (OSError, AttributeError):
                pass  # deleted, or older than OpenMP 5.0: ``describe_native_threads`` tells


def describe_native_threads() -> list[str]:
    """Describe, after the fork, the threads that libraries have in the original.

    After the fork, because the fork ends the threads of libraries that know of forks (OpenBLAS).
    """
    for _ in range(LAST_MOMENTS):
        if not _native_threads():
            return []
        time.sleep(0.001)
    names = set()
    own = _thread_name(os.getpid())
    threads = _native_threads()
    for number in threads:
        name = _thread_name(number)
        if name != own:
            names.add(name.rstrip("0123456789").rstrip("-_ "))
    names.update(os.path.basename(path).split(".")[0] for path in _libraries(THREADED))
    return [
        f"{len(threads)} native thread(s) run in the original only, and a branch that needs them "
        f"may wait for ever; of {', '.join(sorted(filter(None, names))) or 'an unknown library'}"
    ]


def _native_threads() -> set[int]:
    """Return the threads that Python has not started."""
    known = {thread.native_id for thread in threading.enumerate()}
    return set(map(int, os.listdir("/proc/self/task"))) - known - {os.getpid()}


def _thread_name(number: int) -> str:
    try:
        with open(f"/proc/self/task/{number}/comm") as file:
            return file.read().strip()
    except OSError:  # ended
        return ""


def _libraries(names: re.Pattern[str]) -> list[str]:
    """Return the paths of the shared libraries of this process with such names."""
    with open("/proc/self/maps") as maps:
        paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
    return sorted(path for path in paths if ".so" in path and names.match(os.path.basename(path)))


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
            # By type: isinstance would ask the ``__class__`` of user code's objects.
            not str(name).startswith("_")
            and issubclass(type(value), kinds)
            and not issubclass(type(value), random.SystemRandom)
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
