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
# a key. The rule may quote the caller, who may write anything, so the last place counts.
_MESSAGE = re.compile(r"(?P<rule>.*) - at `(?:key in )?\$\.?(?P<place>.*)`", re.DOTALL)
# All maps of this daemon's bodies are from strings to strings, in fields of the body itself.
_IN_A_MAP = re.compile(r" - at `\$\.(?P<map>\w+)\[\.\.\.\]`$")
_STRAY = re.compile(
    r"Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL
)


# Shares of two names that are equal, in order: "tiemout" is 0.86 of "timeout", "columns" 0.73 of
# "cols".
SLIP, SIMILAR = 0.75, 0.6
MAX_NAME = 32
"""Characters of an unknown name. The search for the nearest name takes quadratic time."""
# Where a lone surrogate ends a string, the library says that the body is truncated.
LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")

MAX_STRINGS = 700_000
"""Strings in a JSON body of ``/v1``. More are 400; a string that ends in a backslash counts half.

The kernel takes 2 MiB of arguments and of environment, and counts at
least 9 bytes for each entry: 233,016 arguments, and 233,016 variables of two strings each, are
699,048 strings."""


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a route without parameters."""


def parse_json(body: bytes, decoder: msgspec.json.Decoder[T], whole: str = "body") -> T:
    """Decode a body, or another text that messages call ``whole``. Raises InvalidArgument."""
    # Count the quotes before decoding: a million variables hold the event loop for 0.3 s. Each
    # string has two quotes, and each escaped quote in a string follows a backslash. So a body above
    # this bound surely has more than MAX_STRINGS strings.
    if not body or body.isspace():
        raise InvalidArgument(
            f"{whole}: empty; send a JSON object{_listed(_field_names(decoder.type, ''))}",
            field=whole,
        )
    if body.count(b'"') - body.count(b'\\"') > 2 * MAX_STRINGS:
        raise InvalidArgument(f"{whole}: over {MAX_STRINGS} strings; send fewer", field=whole)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse(_with_name(str(error), body), whole, decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{whole}: not JSON: {_explain(error, body)}", field=whole) from None


def parse_query(query: MultiMapping[str], kind: type[T]) -> T:
    """Convert a query. A number or a boolean is parsed from its text. Raises InvalidArgument."""
    for name in query:
        if len(query.getall(name)) > 1:
            raise InvalidArgument(f"{name}: given more than once; send it once", field=name)
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse(str(error), "query", kind)
    except UnicodeEncodeError:
        raise InvalidArgument(
            "query: a name, or a value that is no text, is not UTF-8", field="query"
        ) from None


def without_defaults(asked: S, defaults: Mapping[str, object]) -> S:
    """Replace each field that has its default value by None."""
    spelled = {name: None for name, default in defaults.items() if getattr(asked, name) == default}
    return msgspec.structs.replace(asked, **spelled)


def _refuse(message: str, whole: str, kind: object) -> NoReturn:
    match = _MESSAGE.fullmatch(message)
    rule, place = (message, "") if match is None else (match["rule"], match["place"])
    stray = _STRAY.fullmatch(rule)
    if stray is not None and stray["kind"] == "contains unknown":
        rule = "unknown field" + _suggest(stray["name"], _field_names(kind, place))
    elif stray is not None:
        rule = "required"
    elif rule.startswith("Invalid enum value"):
        rule += f", not one of {', '.join(map(repr, _choices(kind, place)))}"
    if stray is not None:
        place = f"{place}.{stray['name']}" if place else stray["name"]
    raise InvalidArgument(f"{place or whole}: {rule[:1].lower()}{rule[1:]}", field=place or whole)


def _with_name(message: str, body: bytes) -> str:
    """Put the name of the variable, or of another part of a map, where the library has "[...]"."""
    match = _IN_A_MAP.search(message)
    if match is None:
        return message
    try:
        parts = msgspec.json.decode(body)[match["map"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return message  # behind the place the body is no JSON
    # A body may have a name twice, and only the last is left here.
    items = parts.items() if isinstance(parts, dict) else ()
    wrong = next((name[:MAX_NAME] for name, part in items if not isinstance(part, str)), "…")
    return f"{message[: match.start()]} - at `$.{match['map']}.{wrong}`"


def _explain(error: Exception, body: bytes) -> str:
    """Return the reason why a body cannot be decoded, and the remedy where the library's words name
    none."""
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):
        # msgspec before 0.23 raises UnicodeDecodeError, whose position counts from the start of the
        # string, not of the body; later releases raise DecodeError with a text of their own.
        return "a string is not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "surrogate pair" in str(error) or LONE_SURROGATE.search(body):
        return (
            "a string has a lone surrogate (\\ud800 to \\udfff without its other half), which is "
            "no character"
        )
    return "the JSON ends too early" if "truncated" in str(error) else str(error)


def _suggest(name: str, known: list[str]) -> str:
    """Return the nearest known name, if any is near, and all known names."""
    if not known:
        return "; none is known here"
    near = _nearest(name, known) if len(name) <= MAX_NAME else None
    return (f", did you mean {near}?" if near else ";") + f" known are: {', '.join(known)}"


def _nearest(name: str, known: list[str]) -> str | None:
    """Return a known name that differs by a slip, is longer ("cmd" for command) or shorter
    ("environment" for env), or is at least similar."""
    import difflib  # few requests have such a name

    slips = difflib.get_close_matches(name, known, 1, SLIP)
    related = [one for one in known if _abbreviates(name, one) or _abbreviates(one, name)]
    similar = difflib.get_close_matches(name, known, 1, SIMILAR)
    return next(iter((*slips, *sorted(related, key=len), *similar)), None)


def _abbreviates(short: str, long: str) -> bool:
    """Return whether both begin alike, and the letters of ``short`` are in ``long``, in order."""
    rest = iter(long)
    return len(short) > 2 and short[0] == long[:1] and all(letter in rest for letter in short)


def _listed(names: list[str]) -> str:
    return f" with the fields {', '.join(names)}" if names else ""


def _field_names(kind: object, place: str) -> list[str]:
    """Return the fields of the structs at ``place``, in order."""
    structs = _structs(_types_at(kind, place))
    return sorted({field.encode_name for struct in structs for field in struct.fields})


def _structs(types: Iterable[msgspec.inspect.Type]) -> list[msgspec.inspect.StructType]:
    return [one for one in _without_unions(types) if isinstance(one, msgspec.inspect.StructType)]


def _types_at(kind: object, place: str) -> list[msgspec.inspect.Type]:
    """Return the types that a value at ``place`` may have. No types: the place is in a list or a
    map, of whose parts no body of this daemon is a struct."""
    found = [msgspec.inspect.type_info(kind)]
    for name in place.split(".") if place else ():
        found = [
            field.type
            for struct in _structs(found)
            for field in struct.fields
            if field.encode_name == name
        ]
    return found


def _choices(kind: object, place: str) -> list[object]:
    """Return the values that the type at ``place`` allows, as far as the type lists them."""
    choices: list[object] = []
    for one in _without_unions(_types_at(kind, place)):
        if isinstance(one, msgspec.inspect.LiteralType):
            choices.extend(one.values)
        elif isinstance(one, msgspec.inspect.EnumType):
            choices.extend(member.value for member in one.cls)
    return choices


def _without_unions(types: Iterable[msgspec.inspect.Type]) -> Iterator[msgspec.inspect.Type]:
    for kind in types:
        bare = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind  # a description
        if isinstance(bare, msgspec.inspect.UnionType):
            yield from _without_unions(bare.types)
        else:
            yield bare
