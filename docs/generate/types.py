"""Types of fields in words."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
from msgspec import inspect

from docs.generate.markdown import anchor, code, codes
from docs.generate.source_docs import struct_docs
from execd.errors import ErrorCode
from execd.model import ExitReason

OBJECTS = "objects.md"


def fields(cls: type) -> tuple[inspect.Field, ...]:
    """Return the fields of a struct."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return info.fields


def link(cls: type) -> str:
    return f"[{cls.__name__}]({OBJECTS}#{anchor(cls.__name__)})"


def in_words(kind: inspect.Type) -> str:
    """Return the JSON values of ``kind`` in words."""
    match kind:
        case inspect.Metadata():
            return in_words(kind.type)
        case inspect.StructType():
            return link(kind.cls)
        case inspect.UnionType():
            nulls = [member for member in kind.types if isinstance(member, inspect.NoneType)]
            others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
            return " or ".join(map(in_words, (*others, *nulls)))
        case inspect.LiteralType() if set(get_args(ErrorCode)) <= set(kind.values):
            return "an [error code](http.md#errors)"
        case inspect.LiteralType():
            return codes(kind.values)
        case inspect.EnumType() if kind.cls is ExitReason:
            return "an [exit reason](exit-reasons.md)"
        case inspect.EnumType():
            return codes(member.value for member in kind.cls)
        case inspect.BoolType():
            return "boolean"
        case inspect.StrType():
            return "string" + _bounds(kind.min_length, kind.max_length, " characters")
        case inspect.BytesType():
            return "string of base64"
        case inspect.IntType():
            return "integer" + _bounds(kind.ge, kind.le, above=kind.gt)
        case inspect.FloatType():
            return "number" + _bounds(kind.ge, kind.le, above=kind.gt)
        case inspect.NoneType():
            return "null"
        case inspect.DictType():
            return f"object of {_plural(in_words(kind.value_type))}"
        case inspect.CollectionType():
            words = f"list of {_plural(in_words(kind.item_type))}"
            return words + _bounds(kind.min_length, kind.max_length, " items")
        case inspect.AnyType() | inspect.RawType():
            return "any value"
    raise AssertionError(f"a type without words: {kind}")


def _bounds(
    least: float | None, largest: float | None, unit: str = "", above: float | None = None
) -> str:
    match least, largest, above:
        case None, None, None:
            return ""
        case None, None, _:
            return f" (above {_number(above)}{unit})"
        case None, _, None:
            return f" (at most {_number(largest)}{unit})"
        case _, None, None:
            return f" (at least {_number(least)}{unit})"
        case None, _, _:
            return f" (above {_number(above)}, at most {_number(largest)}{unit})"
    return f" ({_number(least)} to {_number(largest)}{unit})"


def _number(value: float | None) -> str:
    assert value is not None
    return "2^63 - 1" if value == 2**63 - 1 else f"{value:,}" if value >= 10_000 else f"{value:g}"


def _plural(words: str) -> str:
    return re.sub(r"^(string|integer|number|object)\b", r"\1s", words)


def default_in_words(field: inspect.Field) -> str:
    """Return the default of a field of a request."""
    if field.required:
        return "required"
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is msgspec.NODEFAULT:  # of a field that may be absent
        return ""
    return code(msgspec.json.encode(value).decode())


def description(cls: type, field: inspect.Field) -> str:
    """Return what a field of the struct means: by the annotation, or by the docstring below."""
    if isinstance(field.type, inspect.Metadata):
        schema = field.type.extra_json_schema or {}
        if text := schema.get("description"):
            return str(text)
    return struct_docs(cls)[field.name]
