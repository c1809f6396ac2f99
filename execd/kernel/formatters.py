"""What a value looks like, by IPython's rules, and without asking all of them about a number.

A value is offered to twelve formatters, one for each form that it may have. Of the types that
Python comes with only text/plain has one, unless somebody registers another: for those it is enough
to look whether somebody has. What the rest of the questions take is a fifth of a small cell.

It is looked at anew for each value. What was noted for the next one would have to be kept from all
that user code may do to a formatter: traitlets tells of no change from one dictionary to an equal
one, for example.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from IPython.core import formatters

if TYPE_CHECKING:
    from collections.abc import Container

_PLAIN = frozenset((bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))


def _own_methods() -> dict[type, str]:
    """Of each formatter of IPython's own: by which method of a value it asks for the form. None of
    the plain types has any of them."""
    ipythons = formatters.DisplayFormatter()
    own = [
        *ipythons.formatters.values(),
        ipythons.ipython_display_formatter,
        ipythons.mimebundle_formatter,
    ]
    return {type(formatter): formatter.print_method for formatter in own}


_OWN_METHODS = _own_methods()
_ASKED = ("print_method", "singleton_printers", "type_printers", "deferred_printers")
_asked_of = itemgetter(*_ASKED)


def _traits(formatter: Any) -> tuple[Any, ...]:
    """The four of ``_ASKED``. From where traitlets keeps them: by its name each is three calls, all
    of them a tenth of a cell."""
    try:
        found: tuple[Any, ...] = _asked_of(formatter._trait_values)
    except (AttributeError, KeyError):  # not made yet
        found = tuple(getattr(formatter, name) for name in _ASKED)
    return found


class DisplayFormatter(formatters.DisplayFormatter):
    """IPython's, and as exact. Its name is that of the section in %config."""

    def format(
        self, obj: Any, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The value's bundle and its metadata."""
        own = self.formatters
        plain = own.get("text/plain")
        if (
            plain is None
            or include
            or exclude
            or type(obj) not in _PLAIN
            or self._may_have_other_form(type(obj), own)
        ):
            bundle: tuple[dict[str, Any], dict[str, Any]] = super().format(
                obj, include=include, exclude=exclude
            )
            return bundle
        text, metadata = plain(obj), None
        if isinstance(text, tuple) and len(text) == 2:
            text, metadata = text
        return {} if text is None else {"text/plain": text}, {} if metadata is None else {
            "text/plain": metadata
        }

    def _may_have_other_form(self, kind: type, own: dict[str, Any]) -> bool:
        kinds = kind.__mro__
        others = [formatter for mime, formatter in own.items() if mime != "text/plain"]
        for formatter in (self.ipython_display_formatter, self.mimebundle_formatter, *others):
            if type(formatter) not in _OWN_METHODS:
                return True  # not IPython's
            method, singletons, by_type, by_name = _traits(formatter)
            if (
                method != _OWN_METHODS[type(formatter)]
                or singletons
                or (by_type and not by_type.keys().isdisjoint(kinds))
            ):
                return True
            if by_name and not by_name.keys().isdisjoint(
                [(one.__module__, one.__name__) for one in kinds]
            ):
                return True
        return False
