"""The rules of execd's layers as a table, and a checker that reads only source text.

``violations`` takes modules as a mapping from name to source, so a test can plant a violation of
each rule and see that the checker finds the violation.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Layer:
    """The imports allowed to the modules of a folder. Type imports, imports in functions, and names
    in strings count too."""

    below: str
    """Folders below execd, without the package's name. A module beside the folders is a separate
    layer."""
    outside: str = ""
    """Top-level packages beyond the standard library."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# From the bottom to the top: each layer names only layers from the lines above.
LAYERS = {
    "": Layer(""),
    "errors": Layer(""),
    "model": Layer("errors", "msgspec"),
    "config": Layer("", "msgspec"),
    "own_tree": Layer(""),
    "logging_setup": Layer("", "msgspec"),
    "detach": Layer(""),
    "lean_imports": Layer("", "uvloop"),
    "allocator": Layer(""),
    "proc": Layer("model own_tree"),
    "kernel": Layer("", "IPython traitlets"),
    "warden": Layer("proc kernel"),
    "files": Layer("errors model own_tree", "msgspec"),
    "files.archive": Layer("errors model files", "msgspec"),
    "files.watch": Layer("errors files", "msgspec"),
    "files.checkpoints": Layer("errors model files files.archive", "msgspec"),
    "engine.store": Layer("errors model proc files", "msgspec"),
    "engine.output": Layer("errors model engine.store", "msgspec"),
    "engine.files": Layer("errors model proc files files.archive files.watch", "msgspec"),
    "engine.metrics": Layer("errors model", "msgspec"),
    "engine.executions": Layer(
        "errors model config proc engine.store engine.output engine.metrics", "msgspec"
    ),
    "engine.disk": Layer("errors model proc files engine.executions"),
    "engine.sessions": Layer(
        "errors model config proc kernel engine.store engine.output engine.executions", "msgspec"
    ),
    "engine": Layer(
        "errors model config own_tree allocator proc warden files files.archive files.watch"
        " files.checkpoints"
        " engine.store engine.output engine.files engine.metrics engine.executions engine.disk"
        " engine.sessions",
        "msgspec",
    ),
    "api.wire": Layer(
        " errors model config engine engine.output engine.files engine.metrics engine.executions",
        "aiohttp msgspec multidict yarl",
    ),
    "api.probes": Layer(" errors model engine.metrics api.wire", "aiohttp msgspec"),
    "api.docs": Layer("api.wire", "aiohttp multidict"),
    "api.v1": Layer(
        "errors model config engine engine.output engine.files engine.executions "
        "engine.sessions api.wire",
        "aiohttp msgspec multidict",
    ),
    "api.python_runtime": Layer(
        "errors model engine.files engine.executions api.wire", "aiohttp msgspec"
    ),
    "api": Layer(
        "errors config engine engine.metrics api.wire api.probes api.docs api.v1"
        " api.python_runtime",
        "aiohttp",
    ),
    "dialects": Layer("config engine api.wire", "msgspec"),
    "places": Layer("config engine.executions engine.files", "msgspec"),
    "server": Layer(
        "errors config own_tree places lean_imports logging_setup allocator engine engine.store"
        " engine.files engine.executions api api.wire dialects",
        "aiohttp uvloop",
    ),
    "command_line": Layer("config dialects", "click msgspec"),
    "cli": Layer("config detach dialects lean_imports own_tree command_line server"),
    "__main__": Layer("cli"),
}
NO_DIALECT = {"", "api.wire", "api.probes", "api.docs", "api"}
"""Folders of the api that are no dialect. No dialect imports another dialect."""

WARDEN_MAY_IMPORT = _words(
    """
    channel credential_socket kernel_traits memory memory_meter message_codec messages
    packed_messages process_caps process_tree program_block root_capabilities self_process spawn
    task_meter totals_file tree_mark
    """
)
"""The modules of ``proc`` that the warden's process loads. Only the standard library stands below
these modules."""

KERNEL_FOR_THE_DAEMON = {"frames"}
KERNEL_FOR_THE_WARDEN = {"process_name"}
"""The only modules of ``kernel`` that the daemon and the warden import; the rest run in the user's
interpreter."""

PURE = _words(
    """
    model proc.message_codec proc.messages proc.packed_messages proc.program_block
    warden.scan_schedule warden.returning_memory warden.sentry_memory
    warden.tree_kill kernel.frames files.paths
    files.checkpoints.compare files.checkpoints.entries files.glob files.watch.changes
    engine.in_flight engine.output.event_index
    engine.disk.disk_policy engine.metrics.counters engine.metrics.stats
    engine.output.head_tail engine.executions.admission engine.executions.end_words
    engine.executions.exit_status engine.executions.page_cursor engine.executions.plain_words
    engine.executions.registry engine.executions.state
    engine.sessions.cell_result engine.sessions.session_state engine.sessions.worker_messages
    api.probes.exposition api.probes.families api.probes.probe_reply
    api.wire.auth api.wire.connections api.wire.encoders
    api.wire.fields api.wire.malformed api.wire.multipart api.wire.output_text api.wire.signal_names
    api.wire.targets api.wire.validators api.v1.cell_reply api.v1.execution_request
    api.v1.execution_types api.v1.file_reply api.v1.session_request api.python_runtime.request
    engine.usage_meter engine.reset_outcome
    """
)
"""Modules without a clock, a loop, a process, a thread or a file; only they call themselves
pure."""

PURE_OF_WINGS = {
    "e2b": ("connect", "entries", "cell_lines", "envd_messages"),
    "opensandbox": (
        *("pty_messages", "event_frames", "path_expansion", "opensandbox_errors"),
        "name_patterns",
    ),
    "sandboxd": ("grpc_status", "process_ids", "process_messages"),
}
"""The same, by wing."""

IMPURE_MODULES = _words(
    """
    asyncio concurrent ctypes fcntl inspect io logging mmap multiprocessing pathlib pty random
    resource secrets select selectors shutil socket subprocess tempfile termios threading time tty
    uuid
    """
)
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
PURE_IN_OS = {"fsencode", "fsdecode", "strerror", "waitstatus_to_exitcode", "path", "W"}
SHARED_FILE_NAMES = {"errors": "execd's errors, and their replies"}
SHARED_CLASS_NAMES = {
    "Settings": "the name that a dialect of any wing has to use",
    "Entry": "of a listing, and of a checkpoint",
    "Change": "of a watched tree, and since a checkpoint",
}


def layer_of(module: str) -> str:
    """The row of LAYERS for a module such as ``execd.engine.output.log``."""
    inner = module.partition(".")[2]
    return inner if inner in LAYERS else inner.rpartition(".")[0]


@dataclass(frozen=True)
class Facts:
    """All that the rules ask of a source text."""

    imports: frozenset[str]
    """The modules of ``import`` statements."""
    imports_from: frozenset[tuple[str, frozenset[str]]]
    """For each ``from`` statement the module, and the absolute names. A name may be a module."""
    in_strings: frozenset[str]
    """Names in strings that may be execd's modules."""
    says_pure: bool
    calls: frozenset[str]
    """The functions of IMPURE_CALLS."""
    classes: frozenset[str]
    of_os: frozenset[str]
    """The attributes of ``os``."""

    def imported(self, existing: frozenset[str]) -> set[str]:
        """Absolute names of the modules that a source imports or names in a string. ``existing``:
        all modules."""
        found = self.imports | (self.in_strings & existing)
        for module, names in self.imports_from:
            found |= names & existing or {module}
            if not names <= existing:
                found |= {module}
        return set(found)


@functools.cache
def facts(source: str) -> Facts:
    """Every planted violation changes one source of 200, so the other sources are read once."""
    imports, calls, of_os, in_strings = set(), set(), set(), set()
    imports_from = set()
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docstrings = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = frozenset(f"{module}.{alias.name}" for alias in node.names)
            imports_from.add((module, names))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            in_strings.update(re.findall(r"execd(?:\.\w+)+", node.value))
            for module, name in re.findall(r"from (execd(?:\.\w+)+) import (\w+)", node.value):
                in_strings.add(f"{module}.{name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.add(node.func.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        ):
            of_os.add(node.attr)
    return Facts(
        imports=frozenset(imports),
        imports_from=frozenset(imports_from),
        in_strings=frozenset(in_strings),
        says_pure=re.search(r"\b[Pp]ure\b", source) is not None,
        calls=frozenset(calls & IMPURE_CALLS),
        classes=frozenset(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        of_os=frozenset(of_os),
    )


def violations(sources: Mapping[str, str]) -> list[str]:
    """Each breach of a rule as a sentence that begins with the module. ``sources``: by name, for
    example ``execd.model``."""
    existing = frozenset(sources)
    imports = {module: facts(source).imported(existing) for module, source in sources.items()}
    return [
        *_of_the_ladder(imports),
        *_of_the_warden_and_the_kernel(imports),
        *_of_purity(sources, imports, {f"execd.{name}" for name in PURE}),
        *_circles("module", imports),
        *_circles("folder", _by_folder(imports, sources)),
        *_file_names(sources),
        *_class_names(sources),
    ]


def violations_of_wings(wings: Mapping[str, str], sources: Mapping[str, str]) -> list[str]:
    """The same for the modules of wings. ``wings``: by name, for example ``execd_e2b.table``.
    ``sources``: execd's modules, for the names of classes. tests/test_wing_api.py says what a wing
    may import."""
    existing = frozenset(wings)
    imports = {module: facts(source).imported(existing) for module, source in wings.items()}
    pure = {f"execd_{wing}.{name}" for wing, names in PURE_OF_WINGS.items() for name in names}
    return [
        *_of_purity(wings, imports, pure),
        *_circles("module", imports),
        *_class_names({**sources, **wings}),
    ]


def _of_the_ladder(imports: Mapping[str, set[str]]) -> Iterator[str]:
    for module, names in imports.items():
        own = layer_of(module)
        if own not in LAYERS:
            yield f"{module}: the folder is no layer"
            continue
        for name in sorted(names):
            top = name.split(".")[0]
            if name.startswith("."):
                yield f"{module}: a relative import"
            elif top != "execd":
                if top not in sys.stdlib_module_names and top not in LAYERS[own].outside.split():
                    yield f"{module}: imports {top}, which is not for this layer"
            elif layer_of(name) not in {own, "", *LAYERS[own].below.split()}:
                if {own, layer_of(name)} <= _dialects():
                    yield f"{module}: a dialect imports another, {name}"
                else:
                    yield f"{module}: imports {name}, which is not below"


def _dialects() -> set[str]:
    return {name for name in LAYERS if name.startswith("api.") and name not in NO_DIALECT}


def _of_the_warden_and_the_kernel(imports: Mapping[str, set[str]]) -> Iterator[str]:
    for module, names in imports.items():
        for name in sorted(names):
            layer, _, last = name.removeprefix("execd.").rpartition(".")
            if (
                module.startswith("execd.warden")
                and layer == "proc"
                and last not in WARDEN_MAY_IMPORT
            ):
                yield f"{module}: imports {name}, which the warden does not load"
            # zygote_process names the zygote's program in a string.
            is_outside = (
                not module.startswith("execd.kernel")
                and module != "execd.engine.sessions.zygote_process"
            )
            allowed = (
                KERNEL_FOR_THE_WARDEN
                if module.startswith("execd.warden")
                else KERNEL_FOR_THE_DAEMON
            )
            if is_outside and layer == "kernel" and last not in allowed:
                yield f"{module}: imports {name}, which runs in the user's interpreter only"
    for last in WARDEN_MAY_IMPORT:
        for name in sorted(imports.get(f"execd.proc.{last}", ())):
            top, _, rest = name.partition(".")
            is_shared = rest.startswith("proc.") and rest.removeprefix("proc.") in WARDEN_MAY_IMPORT
            if (
                top not in sys.stdlib_module_names
                and not is_shared
                and name not in ("execd", "execd.proc")
            ):
                yield (
                    f"execd.proc.{last}: imports {name}, "
                    "and the warden loads the standard library only"
                )


def _of_purity(
    sources: Mapping[str, str], imports: Mapping[str, set[str]], pure: set[str]
) -> Iterator[str]:
    for module in sorted(pure - sources.keys()):
        yield f"{module}: in the list of pure modules, and does not exist"
    for module, source in sources.items():
        found = facts(source)
        if found.says_pure and module not in pure:
            yield f"{module}: calls something pure, and is not in the list"
        if module not in pure:
            continue
        for name in sorted(imports[module]):
            if name.split(".")[0] in IMPURE_MODULES:
                yield f"{module}: pure, and imports {name}"
        for function in sorted(found.calls):
            yield f"{module}: pure, and calls {function}"
        for name in sorted(found.of_os - PURE_IN_OS):
            if not name.startswith("W"):
                yield f"{module}: pure, and uses os.{name}"


def _by_folder(imports: Mapping[str, set[str]], sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Imports between folders. A folder's ``__init__`` belongs to the folder."""
    folders = _folders(sources)
    found: dict[str, set[str]] = {}
    for module, names in imports.items():
        own = _folder(module, folders)
        found.setdefault(own, set()).update(
            {_folder(name, folders) for name in names if name in sources} - {own, "execd"}
        )
    return found


def _folders(sources: Mapping[str, str]) -> set[str]:
    return {module.rpartition(".")[0] for module in sources} & sources.keys()


def _folder(module: str, folders: set[str]) -> str:
    # Each module beside execd's folders is a separate layer.
    return module if module in folders or module.count(".") == 1 else module.rpartition(".")[0]


def _circles(kind: str, edges: Mapping[str, set[str]]) -> Iterator[str]:
    """A sentence for each node that can reach itself."""
    for start in sorted(edges):
        seen: set[str] = set()
        queue = [name for name in edges[start] if name in edges and name != start]
        while queue:
            name = queue.pop()
            if name not in seen:
                seen.add(name)
                queue += [further for further in edges[name] if further in edges]
        if start in seen:
            yield f"{start}: the {kind} is part of a circle of imports"


def _file_names(sources: Mapping[str, str]) -> Iterator[str]:
    lasts: dict[str, list[str]] = {}
    folders = _folders(sources)
    for module in sources:
        if module not in folders:
            lasts.setdefault(module.rpartition(".")[2], []).append(module)
    for last, modules in sorted(lasts.items()):
        if len(modules) > 1 and last not in SHARED_FILE_NAMES:
            yield f"{modules[1]}: the file name is also {modules[0]}'s"


def _class_names(sources: Mapping[str, str]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for module, source in sources.items():
        for name in sorted(facts(source).classes - SHARED_CLASS_NAMES.keys()):
            if name in owners:
                yield f"{module}: the class {name} is also {owners[name]}'s"
            owners[name] = module
