"""The command line: ``execd serve``. The options come from the table in ``config``, and only
``--detach`` and ``-- CMD ARG…`` are no settings: no variable stands for them.

``flag_words`` reads the words of a usual start, ``--name=value`` and ``--name value``. All other
words go to click, with its help and its errors. A start that needs no click saves 1.5 MiB of memory
and 10 ms.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from typing import TYPE_CHECKING

from execd import config, detach, dialects, lean_imports, own_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

# Python's default is 700. Without collections the imports leave 0.5 MiB of garbage.
IMPORT_COLLECTION_THRESHOLD = 50_000


USAGE = "Usage: execd serve [OPTIONS] [-- CMD ARG...]\nTry 'execd serve --help' for help."


def main() -> None:
    words, separator, command = split_words(sys.argv[1:])
    run = functools.partial(serve, command=command if separator else None)
    flags = flag_words(words)
    if flags is not None:
        run(flags)
    else:
        from execd.command_line import make_group

        make_group(run)(words, prog_name="execd")


def split_words(words: Sequence[str]) -> tuple[Sequence[str], bool, Sequence[str]]:
    """Return the daemon's words, whether there is a ``--``, and the words after the first."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], at < len(words), words[at + 1 :]


def flag_words(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the flags of ``serve`` as click would; None: click must read the words."""
    all_names = (*config.Config.__struct_fields__, *dialects.PORT_FLAGS, *dialects.VARIABLE_FLAGS)
    names = {config.flag(name): name for name in all_names}
    flags: dict[str, object] = {}
    words = iter(arguments)
    if next(words, None) != "serve":
        return None
    for word in words:
        if word == "--detach":
            flags["detach"] = True
            continue
        flag, has_value, value = word.partition("=")
        if flag not in names:
            return None
        if not has_value:
            value = next(words, "-")
            if value.startswith("-"):  # missing, or a value that looks like a flag
                return None
        name = names[flag]
        if name in config.REPEATABLE:
            given = flags.get(name, ())
            assert isinstance(given, tuple)
            flags[name] = (*given, value)
        else:
            flags[name] = value
    return flags


def serve(flags: dict[str, object], command: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM, or until the end of ``command``."""
    try:
        if command is not None and not command:
            raise config.ConfigError("--: the name of a program must follow")
        if command and flags.get("detach"):
            raise config.ConfigError(
                "--detach: not together with `-- CMD`: the daemon and CMD end together, so the "
                "caller has to wait for both"
            )
        settings = config.load(flags, os.environ, in_tree=own_tree.root() is not None)
        chosen = dialects.choose(flags, os.environ)
    except config.ConfigError as error:
        print(f"{USAGE}\n\nError: {error}", file=sys.stderr)
        sys.exit(config.EXIT_USAGE)
    on_listening = detach.detach(settings.log_fd) if flags.get("detach") else None
    # Modules are many objects and little garbage. The server sets thresholds of its own.
    gc.set_threshold(IMPORT_COLLECTION_THRESHOLD)
    lean_imports.hide_tls()
    lean_imports.halve_aiohttp()
    with lean_imports.own_hashes():
        from execd.server import serve as run

    run(settings, chosen, command=command or (), on_listening=on_listening)
