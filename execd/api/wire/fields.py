"""Typed parts of a request: JSON bodies and queries as structs. Every refusal names the field and
the rule. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from execd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from multidict import MultiMapping

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

# The form of msgspec's messages: "the broken rule - at `$.the.place`". The place may be absent, or
# a key.
_MESSAGE = re.compile(r"(?P<rule>.*?)(?: - at `(?:key in )?\$\.?(?P<place>.*)`)?", re.DOTALL)
_STRAY = re.compile(
    r"Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL
)


MAX_STRINGS = 700_000
"""Strings of a JSON body. The kernel takes 2 MiB of arguments and of environment, and counts at
least 9 bytes for each entry: 233,016 arguments, and 233,016 variables of two strings each, are
699,048 strings."""


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a route without parameters."""


def parse_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a body. Raises InvalidArgument."""
    # Count the quotes before decoding: a million variables hold the event loop for 0.3 s. Each
    # string has two quotes, and each escaped quote in a string follows a backslash. So a body above
    # this bound surely has more than MAX_STRINGS strings.
    if body.count(b'"') - body.count(b'\\"') > 2 * MAX_STRINGS:
        raise InvalidArgument(f"body: over {MAX_STRINGS} strings", field="body")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse(str(error), "body", decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"body: not JSON: {error}") from None


def parse_query(query: MultiMapping[str], kind: type[T]) -> T:
    """Convert a query. A number or a boolean is parsed from its text. Raises InvalidArgument."""
    for name in query:
        if len(query.getall(name)) > 1:
            raise InvalidArgument(f"{name}: given more than once", field=name)
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(str(error), "query", kind)


def without_defaults(asked: S, defaults: Mapping[str, object]) -> S:
    """Replace each field that has its default value by None."""
    spelled = {name: None for name, default in defaults.items() if getattr(asked, name) == default}
    return msgspec.structs.replace(asked, **spelled)


def _refuse(message: str, whole: str, kind: object) -> NoReturn:
    match = _MESSAGE.fullmatch(message)
    assert match is not None
    rule, place = match["rule"], match["place"] or ""
    stray = _STRAY.fullmatch(rule)
    if stray is not None:
        place = f"{place}.{stray['name']}" if place else stray["name"]
        rule = "unknown field" if stray["kind"] == "contains unknown" else "required"
    elif rule.startswith("Invalid enum value"):
        rule += f", not one of {', '.join(map(repr, _choices(kind, place)))}"
    raise InvalidArgument(f"{place or whole}: {rule[:1].lower()}{rule[1:]}", field=place or whole)


def _choices(kind: object, place: str) -> list[object]:
    """Return the values that the type at ``place`` allows, as far as the type lists them."""
    found = [msgspec.inspect.type_info(kind)]
    for name in place.split("."):
        structs = [
            one for one in _without_unions(found) if isinstance(one, msgspec.inspect.StructType)
        ]
        found = [
            field.type for struct in structs for field in struct.fields if field.encode_name == name
        ]
    choices: list[object] = []
    for one in _without_unions(found):
        if isinstance(one, msgspec.inspect.LiteralType):
            choices.extend(one.values)
        elif isinstance(one, msgspec.inspect.EnumType):
            choices.extend(member.value for member in one.cls)
    return choices


def _without_unions(types: Iterable[msgspec.inspect.Type]) -> Iterator[msgspec.inspect.Type]:
    for kind in types:
        yield from kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
