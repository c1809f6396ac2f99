"""What a value looks like, by IPython's rules, and without asking all of them about a number.

A value is offered to twelve formatters, one for each form that it may have. Of the types that Python comes with only text/plain has
one, unless somebody registers another: for those it is enough to look whether somebody has. What the rest of the questions take is a
tenth of a small cell.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.formatters import DisplayFormatter

if TYPE_CHECKING:
    from collections.abc import Container

_PLAIN = frozenset((bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))


class Formatter(DisplayFormatter):
    """IPython's, and as exact."""

    def format(
        self, obj: Any, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The value's bundle and its metadata."""
        if type(obj) in _PLAIN and not include and not exclude and not self._has_other_form(type(obj)):
            text, metadata = self.formatters["text/plain"](obj), None
            if isinstance(text, tuple) and len(text) == 2:
                text, metadata = text
            return {} if text is None else {"text/plain": text}, {} if metadata is None else {"text/plain": metadata}
        bundle: tuple[dict[str, Any], dict[str, Any]] = super().format(obj, include=include, exclude=exclude)
        return bundle

    def _has_other_form(self, kind: type) -> bool:
        kinds = kind.__mro__
        names = [(kind.__module__, kind.__name__) for kind in kinds]
        plain = self.formatters["text/plain"]
        return any(
            formatter.singleton_printers
            or not formatter.type_printers.keys().isdisjoint(kinds)
            or not formatter.deferred_printers.keys().isdisjoint(names)
            for formatter in (self.ipython_display_formatter, self.mimebundle_formatter, *self.formatters.values())
            if formatter is not plain
        )
