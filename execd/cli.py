"""The command line: ``execd serve``. The options come from the table in ``config``.

``flag_words`` reads the words of a usual start, ``--name=value`` and ``--name value``. All other
words go to click, with its help and its errors. A start that needs no click saves 1.5 MiB of memory
and 10 ms.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from execd import config, dialects, lean_imports, own_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

# Python's default is 700. Without collections the imports leave 0.5 MiB of garbage.
IMPORT_COLLECTION_THRESHOLD = 50_000


def main() -> None:
    flags = flag_words(sys.argv[1:])
    if flags is not None:
        serve(flags)
    else:
        from execd.command_line import make_group

        make_group(serve)(prog_name="execd")


def flag_words(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the flags of ``serve`` as click would; None: click must read the words."""
    all_names = (*config.Config.__struct_fields__, *dialects.PORT_FLAGS, *dialects.VARIABLE_FLAGS)
    names = {config.flag(name): name for name in all_names}
    flags: dict[str, object] = {}
    words = iter(arguments)
    if next(words, None) != "serve":
        return None
    for word in words:
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


def serve(flags: dict[str, object]) -> None:
    """Serve until SIGTERM."""
    try:
        settings = config.load(flags, os.environ, in_tree=own_tree.root() is not None)
        chosen = dialects.choose(flags, os.environ)
    except config.ConfigError as error:
        print(
            f"Usage: execd serve [OPTIONS]\nTry 'execd serve --help' for help.\n\nError: {error}",
            file=sys.stderr,
        )
        sys.exit(config.EXIT_USAGE)
    # Modules are many objects and little garbage. The server sets thresholds of its own.
    gc.set_threshold(IMPORT_COLLECTION_THRESHOLD)
    lean_imports.hide_tls()
    lean_imports.halve_aiohttp()
    with lean_imports.own_hashes():
        from execd.server import serve as run

    run(settings, chosen)
