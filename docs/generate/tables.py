"""The sections with one table: settings, errors, exit reasons, fields of log lines."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from docs.generate import types
from docs.generate.markdown import code, codes, paragraphs, table
from docs.generate.routes import all_errors
from docs.generate.source_docs import field_docs
from execd import config
from execd.api.app import RequestFields
from execd.api.probes.families import families
from execd.api.wire.errors import PYTHON_RUNTIME_HTTP_STATUS, V1_HTTP_STATUS
from execd.command_line import descriptions
from execd.dialects import GROUP, PORT_FLAGS, VARIABLE_FLAGS
from execd.engine.executions.end_words import EndFields
from execd.model import ExitReason

if TYPE_CHECKING:
    from types import ModuleType

WINGS = Path(__file__).parents[2] / "wings"
UNITS = {"timeout": "s", "max_timeout": "s", "shutdown_timeout": "s"}
"""Settings whose names do not tell the unit."""


def settings(*names: str) -> str:
    """Return the table of the settings with these names."""
    words = descriptions()
    fields = {field.name: field for field in types.fields(config.Config)}
    rows = [
        (
            code(config.flag(name)),
            words[name].default,
            unit(name),
            _values(fields[name].type),
            words[name].meaning,
        )
        for name in names
    ]
    return table(("flag", "default", "unit", "values", "meaning"), rows)


def dialects() -> dict[str, ModuleType]:
    """Return the modules of the dialects (``execd.dialects.DialectModule``) of the repository's
    wings, by name."""
    found = {}
    for path in sorted(WINGS.glob("*/pyproject.toml")):
        points = tomllib.loads(path.read_text())["project"]["entry-points"][GROUP]
        found.update({name: importlib.import_module(module) for name, module in points.items()})
    return found


def dialect_settings() -> str:
    """Return the table of the variables of all wings."""
    users: dict[str, list[str]] = {}
    rows = {}
    for name, module in dialects().items():
        for field in types.fields(module.Settings):
            variable = f"EXECD_{module.SETTINGS_NAME}_{field.name}".upper()
            users.setdefault(variable, []).append(name)
            rows[variable] = (
                _default(field),
                _values(field.type),
                types.description(module.Settings, field),
            )
    return table(
        ("variable", "dialects", "default", "values", "meaning"),
        [(code(variable), codes(users[variable]), *row) for variable, row in rows.items()],
    )


def _default(field: msgspec.inspect.Field) -> str:
    if isinstance(field.type, msgspec.inspect.Metadata) and field.type.extra is not None:
        return str(field.type.extra["default"])
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def older_settings() -> str:
    """Return the table of the older names of dialects' settings."""
    ports = {name: f"--dialect {dialect}=PORT" for name, dialect in PORT_FLAGS.items()}
    return table(
        ("older flag", "older variable", "today"),
        [
            (code(config.flag(name)), code(config.environment_name(name)), code(today))
            for name, today in {**ports, **VARIABLE_FLAGS}.items()
        ],
    )


def unit(setting: str) -> str:
    if setting.endswith("_seconds"):
        return "s"
    return "bytes" if setting.endswith("_bytes") else UNITS.get(setting, "")


def _values(kind: msgspec.inspect.Type) -> str:
    """Return the rule of a setting in words."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _values(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        [kind] = [
            member for member in kind.types if not isinstance(member, msgspec.inspect.NoneType)
        ]
        return _values(kind)
    words = types.in_words(kind)
    return "" if words.startswith(("string", "list")) else words


def errors() -> str:
    """Return the table of errors."""
    rows = []
    for kind in all_errors():
        meaning, remedy = paragraphs(kind.__doc__)
        status, other = V1_HTTP_STATUS[kind.code], PYTHON_RUNTIME_HTTP_STATUS[kind.code]
        shown = str(status) if status == other else f"{status} (python-runtime: {other})"
        rows.append((code(kind.code), shown, kind.blame, meaning, remedy))
    return table(("code", "status", "whose turn", "meaning", "remedy"), rows)


def exit_reasons() -> str:
    """Return the table of exit reasons."""
    docs = field_docs(ExitReason)
    rows = [(code(reason), docs[reason.name]) for reason in ExitReason]
    return table(("reason", "how the execution ended"), rows)


def metrics() -> str:
    """Return the table of the metrics."""
    rows = [
        (code(family.name), family.kind, codes(family.labels), family.help) for family in families()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


LINES = {"request": RequestFields, "end": EndFields}


def log_fields(line: str) -> str:
    """Return the table of the fields of a log line."""
    rows = [(code(name), text) for name, text in field_docs(LINES[line]).items()]
    return table(("field", "meaning"), rows)
