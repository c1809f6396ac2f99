"""What a worker sends, as a table of ``kernel.frames``: the tests of the worker decode all fields.
The daemon has ``engine.sessions.worker_messages``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execd.kernel.frames import _are_strs, _is_bool, _is_natural, _is_str, _list_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _is_object(value: object) -> bool:
    return type(value) is dict


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _is_exit(value: object) -> bool:
    return (
        type(value) is dict
        and list(value) == ["code"]
        and type(value["code"]) is int
        and 0 <= value["code"] <= 255
    )


FROM_WORKER: dict[str, dict[str, Callable[[object], bool]]] = {
    # The first frame of a branch. A worker forked from the zygote sends nothing before "configure".
    "ready": {"python": _is_str, "ipython": _is_str, "warnings": _are_strs},
    "configured": {},
    # In reply to "configure": the configuration is impossible, and the daemon may send another. At
    # any other time: the worker ends with worker.FAULT_EXIT_CODE.
    "failed": {"message": _is_str},
    "display": {
        "id": _is_natural,
        "data": _is_object,
        "metadata": _is_object,
        "display_id": _or_none(_is_str),
        "update": _is_bool,
    },
    "result": {
        "id": _is_natural,
        "execution_count": _is_natural,
        "data": _is_object,
        "metadata": _is_object,
    },
    "error": {"id": _is_natural, "name": _is_str, "value": _is_str, "traceback": _are_strs},
    "input_request": {"id": _is_natural, "prompt": _is_str, "password": _is_bool},
    "clear_output": {"id": _is_natural, "wait": _is_bool},
    "done": {
        "id": _is_natural,
        "status": lambda value: value in ("success", "error"),
        "execution_count": _is_natural,
        "exit": _or_none(_is_exit),
    },
    "reply": {
        "id": _is_natural,
        "warnings?": _are_strs,
        "native_threads?": _are_strs,  # warnings, too
        "matches?": _are_strs,
        "cursor_start?": _is_natural,
        "cursor_end?": _is_natural,
        "variables?": _list_of(_is_object),
        "total?": _is_natural,
        "error?": _is_str,
    },
}
