"""Mutants made by operators from a fixed seed: the same source gives the same mutants.

The modules take turns, so that every module has a mutant before a module has two. An operator
changes one expression of one line, and the changed text is found by the offsets of the syntax tree.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from .mutant import REPOSITORY, Mutant, named_killers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SEED = 8
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
Change = tuple[ast.expr, str]
OVER_THE_WIRE = {
    "api/v1": ("conformance/test_executions", "conformance/test_streams"),
    "api/python_runtime": ("conformance/test_execute_requests", "conformance/test_upload"),
}
"""By folder of execd: what no handler test asks, because a test over the wire asks."""
OVER_THE_WIRE_OF_WINGS = "tests/dialects/test_dialects.py"


def tests_of(module: Path) -> tuple[str, ...]:
    """The tests that mirror the module, or, without such a file, the tests of the folder; and the
    tests over the wire."""
    if module.is_relative_to(REPOSITORY / "wings"):
        return _tests_of_a_wing(module)
    inner = module.relative_to(REPOSITORY / "execd")
    mirror = REPOSITORY / "tests" / inner.parent / f"test_{inner.stem}.py"
    found = mirror if mirror.exists() else mirror.parent
    if found == REPOSITORY / "tests":
        return ("tests/test_server.py", "tests/test_config.py")
    over_the_wire = OVER_THE_WIRE.get(str(inner.parent), ())
    return (str(found.relative_to(REPOSITORY)), *(f"tests/{name}.py" for name in over_the_wire))


def _tests_of_a_wing(module: Path) -> tuple[str, ...]:
    """Not the folder ``sdk`` of the tests: it needs packages of others."""
    tests = module.parents[1] / "tests"
    mirror = tests / f"test_{module.stem}.py"
    found = [mirror] if mirror.exists() else sorted(tests.glob("test_*.py"))
    return (*(str(path.relative_to(REPOSITORY)) for path in found), OVER_THE_WIRE_OF_WINGS)


def _changes(tree: ast.Module) -> Iterator[Change]:
    skipped = {*_annotations_and_asserts(tree), *_numbers_of_constants(tree)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            symbol = COMPARISONS[type(node.ops[0])]
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node, f"({left} {symbol} {right})"
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield node, "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, f"bool({ast.unparse(node.operand)})"
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield node, str(not node.value)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, str(node.value + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            yield node, f"({ast.unparse(node.left)} {sign} {ast.unparse(node.right)})"
        elif isinstance(node, ast.IfExp):
            yield node, f"({ast.unparse(node.orelse)})"


def _annotations_and_asserts(tree: ast.AST) -> Iterator[int]:
    """The ids of nodes whose change no run can notice: annotations, the checks that no caller can
    break, ``frozen``, which only keeps mistakes off that mypy finds as well, and the number of -1,
    where any negative number says "none"."""
    for node in ast.walk(tree):
        inert: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inert = [node.returns]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            inert = [node.annotation]
        elif isinstance(node, ast.Assert) or (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            inert = [node]
        elif isinstance(node, ast.keyword) and node.arg == "frozen":
            inert = [node.value]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inert = [node.operand]
        for part in inert:
            if part is not None:
                yield from map(id, ast.walk(part))


def _numbers_of_constants(module: ast.Module) -> Iterator[int]:
    """The ids of the numbers in a module's constants. A limit that is larger by 1 is no bug; tests
    import the constant, and a test that repeats the number would prove nothing."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and all(
            isinstance(name, ast.Name) and name.id.isupper()
            for target in statement.targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
        ):
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Constant) and type(node.value) is int:
                    yield id(node)


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module, in an order by chance. A hash of the seed and the mutant's name is
    the chance, so a change of another line of the module leaves the order as it is."""
    source = path.read_text()
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()
    place = path.relative_to(REPOSITORY)
    tests = tests_of(path)
    found: dict[str, Mutant] = {}
    unused: set[str] = set()
    module = ast.parse(source)
    # ``kw_only`` keeps mistakes off that mypy finds as well.
    inert = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.keyword) and node.arg == "kw_only"
    }
    for node, new in _changes(module):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        if node.lineno != node.end_lineno:
            continue
        # The offsets of the syntax tree are bytes of UTF-8.
        first = starts[node.lineno - 1] + node.col_offset
        start = len(raw[:first].decode())
        old = raw[first : starts[node.lineno - 1] + node.end_col_offset].decode()
        line = f"{place}: {lines[node.lineno - 1].strip()} [{old} -> {new}]"
        # The same line may stand in a module twice.
        names = itertools.chain((line,), (f"{line} ({n})" for n in itertools.count(2)))
        name = next(name for name in names if name not in found)
        found[name] = Mutant(name, str(place), old, new, tests, start)
        if id(node) in inert:
            unused.add(name)
    return sorted(
        (found[name] for name in found.keys() - unused),
        key=lambda mutant: hashlib.sha256(f"{SEED} {mutant.name}".encode()).digest(),
    )


def modules() -> list[Path]:
    """All modules of execd and of the wings but those that a generator wrote: protobuf's own tests
    are about them."""
    found = [
        *sorted((REPOSITORY / "execd").rglob("*.py")),
        *sorted(REPOSITORY.glob("wings/*/execd_*/*.py")),
    ]
    return [path for path in found if not path.stem.endswith("_pb2")]


def _only_declares(statement: ast.stmt) -> bool:
    """Whether the statement only gives types: nothing that a change of it breaks happens at run
    time, and mypy and the tests of the OpenAPI document judge the types."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(value=ast.Subscript()):  # the short name of a type
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):  # tests/test_wing_api.py repeats it
            return True
        case ast.AnnAssign(value=None | ast.Name(id="UNSET")):
            return True
        case ast.ClassDef(body=body) | ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            return all(map(_only_declares, body))
    return False


def without_mutant(mutants: Iterable[Mutant]) -> list[str]:
    """The sources that have code, and no mutant."""
    with_code = [
        path for path in modules() if not all(map(_only_declares, ast.parse(path.read_text()).body))
    ]
    sources = [*with_code, *(REPOSITORY / "execd").rglob("*.c")]
    return sorted(
        {str(path.relative_to(REPOSITORY)) for path in sources}
        - {mutant.file for mutant in mutants}
    )


def made(least: int) -> list[Mutant]:
    """The tests that must fail are those of killers.toml, or else those that mirror the module. At
    least ``least`` mutants, the modules taking turns; a mutant at least of every module that
    has an expression to change."""
    turns = [mutants for path in modules() if (mutants := mutants_of(path))]
    turns.sort(key=lambda mutants: hashlib.sha256(mutants[0].file.encode()).digest())
    in_turn = [m for turn in itertools.zip_longest(*turns) for m in turn if m is not None]
    killers = named_killers()
    return [
        replace(mutant, tests=killers.get(mutant.name, mutant.tests))
        for mutant in in_turn[: max(least, len(turns))]
    ]
