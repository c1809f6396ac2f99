"""What a value looks like, by IPython's rules, and without asking all of them about a number.

A value is offered to twelve formatters, one for each form that it may have. Of the types that Python comes with only text/plain has
one, unless somebody registers another: for those it is enough to look whether somebody has. What the rest of the questions take is a
tenth of a small cell.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core import formatters

if TYPE_CHECKING:
    from collections.abc import Container

_PLAIN = frozenset((bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))


def _own_methods() -> dict[type, str]:
    """Of each formatter of IPython's own: by which method of a value it asks for the form. None of the plain types has any of them."""
    ipythons = formatters.DisplayFormatter()
    own = [*ipythons.formatters.values(), ipythons.ipython_display_formatter, ipythons.mimebundle_formatter]
    return {type(formatter): formatter.print_method for formatter in own}


_OWN_METHODS = _own_methods()


class DisplayFormatter(formatters.DisplayFormatter):
    """IPython's, and as exact. Its name is that of the section in %config."""

    def format(
        self, obj: Any, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The value's bundle and its metadata."""
        plain = self.formatters.get("text/plain")
        if plain is None or include or exclude or type(obj) not in _PLAIN or self._may_have_other_form(type(obj), plain):
            bundle: tuple[dict[str, Any], dict[str, Any]] = super().format(obj, include=include, exclude=exclude)
            return bundle
        text, metadata = plain(obj), None
        if isinstance(text, tuple) and len(text) == 2:
            text, metadata = text
        return {} if text is None else {"text/plain": text}, {} if metadata is None else {"text/plain": metadata}

    def _may_have_other_form(self, kind: type, plain: Any) -> bool:
        kinds = kind.__mro__
        names = [(kind.__module__, kind.__name__) for kind in kinds]
        return any(
            type(formatter) not in _OWN_METHODS  # not IPython's, or not as IPython made it
            or formatter.print_method != _OWN_METHODS[type(formatter)]
            or formatter.singleton_printers
            or not formatter.type_printers.keys().isdisjoint(kinds)
            or not formatter.deferred_printers.keys().isdisjoint(names)
            for formatter in (self.ipython_display_formatter, self.mimebundle_formatter, *self.formatters.values())
            if formatter is not plain
        )
