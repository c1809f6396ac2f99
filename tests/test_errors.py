"""Messages of errors have a remedy where the target's state or the daemon's load, and not the
request, is the reason: the text behind the last semicolon tells the caller's next step."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import execd
from execd import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_A_STATE = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(
        kind,
        (
            errors.Conflict,
            errors.PreconditionFailed,
            errors.Gone,
            errors.ResourceExhausted,
            errors.Unavailable,
            errors.IdempotencyMismatch,
        ),
    )
}
STEPS = {
    *("ask", "branch", "delete", "end", "give", "interrupt", "leave", "read", "repeat", "send"),
    *("set", "start", "use", "wait", "write", "pass", "close", "make", "remove", "restart"),
    *("answer", "name"),
}


def message_of(call: ast.Call) -> str | None:
    """Return the text of the message, with ``{}`` for each value. None: the text is made
    elsewhere."""
    if not call.args or not isinstance(call.args[0], ast.Constant | ast.JoinedStr | ast.IfExp):
        return None
    return text_of(call.args[0])


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
        case ast.IfExp(body=first, orelse=second):
            return min(text_of(first), text_of(second), key=has_remedy)
    raise AssertionError(f"no text: {ast.unparse(node)}")


def has_remedy(message: str) -> bool:
    # A message that ends with a value has the remedy before: "…; ask for at most {}".
    step = message.rpartition("; ")[2].split()
    return "; " in message and step[0].rstrip(":,") in STEPS


def messages() -> Iterator[tuple[str, str]]:
    """The place and the text of each message."""
    repository = Path(execd.__file__).parents[1]
    for path in sorted(
        [*repository.glob("execd/**/*.py"), *repository.glob("wings/*/execd_*/*.py")]
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                message = message_of(node) if name in OF_A_STATE else None
                if message is not None:
                    yield f"{path}:{node.lineno}", message


def test_refusal_for_a_state_ends_with_the_next_step() -> None:
    found = list(messages())
    assert len(found) > 50
    assert [each for each in found if not has_remedy(each[1])] == []
