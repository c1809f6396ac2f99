"""The JSON Schemas of the types of a route table. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from docs.generate.source_docs import struct_docs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REFERENCE = "#/components/schemas/{name}"
PYTHON_END = re.compile(r"\\Z$")

Schema = dict[str, Any]


def schemas_of(types: Sequence[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """Return the schema of each type, and the components that the schemas refer to."""
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    found: dict[str, Schema] = _ecma(components)
    for info in inspect.multi_type_info(types):
        for struct in structs(info):
            _complete(found[struct.cls.__name__]["properties"], struct)
    return [_ecma(schema) for schema in schemas], found


def structs(info: inspect.Type) -> Iterator[inspect.StructType]:
    """Yield the structs that a value of the type may contain, the outer struct first."""
    match info:
        case inspect.StructType():
            yield info
            for field in info.fields:
                yield from structs(field.type)
        case inspect.Metadata():
            yield from structs(info.type)
        case inspect.UnionType():
            for kind in info.types:
                yield from structs(kind)
        case inspect.DictType():
            yield from structs(info.value_type)
        case inspect.CollectionType():
            yield from structs(info.item_type)


def _complete(properties: Schema, struct: inspect.StructType) -> None:
    """Add what msgspec leaves out: the docstrings of fields, the description of a tag, and a closed
    set of keys."""
    if struct.tag_field is not None:
        properties[struct.tag_field]["description"] = "The kind of the message."
    docs = struct_docs(struct.cls)
    for field in struct.fields:
        if text := docs[field.name]:
            properties[field.encode_name].setdefault("description", text)
        kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        match kind:
            case inspect.DictType(key_type=inspect.EnumType(cls=cls)):
                names = [member.value for member in cls if isinstance(member, Enum)]
            case inspect.DictType(key_type=inspect.LiteralType(values=values)):
                names = list(values)
            case _:
                continue
        properties[field.encode_name]["propertyNames"] = {"enum": names}


def _ecma(schema: Any) -> Any:
    """Return the schema with patterns of ECMA-262, as JSON Schema wants them, and with Markdown
    instead of the marks of docstrings."""
    if isinstance(schema, dict):
        return {
            key: PYTHON_END.sub("$", value)
            if key == "pattern" and isinstance(value, str)
            else _without_other_cases(value)
            if key == "enum"
            else _markdown(value)
            if key == "description" and isinstance(value, str)
            else _ecma(value)
            for key, value in schema.items()
        }
    return [_ecma(value) for value in schema] if isinstance(schema, list | tuple) else schema


def _markdown(docstring: str) -> str:
    """Return a docstring without line breaks and indents in its paragraphs."""
    paragraphs = docstring.replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _without_other_cases(values: list[Any]) -> list[Any]:
    """Drop "TRUE" and "True" beside "true": generated clients give them one name."""
    return [
        value
        for value in values
        if not isinstance(value, str) or value == value.lower() or value.lower() not in values
    ]
