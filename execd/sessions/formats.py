"""What a value looks like, by IPython's rules, and without asking all of them about a number.

A value is offered to twelve formatters, one for each form that it may have. Of the types that Python comes with only text/plain has
one, unless somebody registers another: for those it is enough to look whether somebody has; and a number's text is its repr, unless
somebody has said otherwise. What the rest of the questions take is a fifth of a small cell.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core import formatters
from IPython.lib import pretty

if TYPE_CHECKING:
    from collections.abc import Container

_NUMBERS = (int, float)
_AS_REPR = pretty.for_type(int, None)
"""The printer that IPython has for them."""
_PLAIN = frozenset((bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))


def _own_methods() -> dict[type, str]:
    """Of each formatter of IPython's own: by which method of a value it asks for the form. None of the plain types has any of them."""
    ipythons = formatters.DisplayFormatter()
    own = [*ipythons.formatters.values(), ipythons.ipython_display_formatter, ipythons.mimebundle_formatter]
    return {type(formatter): formatter.print_method for formatter in own}


_OWN_METHODS = _own_methods()


class DisplayFormatter(formatters.DisplayFormatter):
    """IPython's, and as exact. Its name is that of the section in %config."""

    _known: list[Any] | None = None
    """The formatters that the registries below are of; None: what is noted of them may be wrong by now."""
    _are_ipythons = False
    _singletons: list[dict[Any, Any]] = []  # noqa: RUF012  # replaced, never changed
    _registries: list[dict[Any, Any]] = []  # noqa: RUF012
    """By type, and by module and name."""
    _numbers: dict[Any, Any] = {}  # noqa: RUF012
    _constants: dict[Any, Any] = {}  # noqa: RUF012
    """Of text/plain: printers by type, and by the value's id. Empty: it is not IPython's."""

    def format(
        self, obj: Any, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The value's bundle and its metadata."""
        own = self.formatters
        plain = own.get("text/plain")
        if plain is None or include or exclude or type(obj) not in _PLAIN or self._may_have_other_form(type(obj), own, plain):
            bundle: tuple[dict[str, Any], dict[str, Any]] = super().format(obj, include=include, exclude=exclude)
            return bundle
        if type(obj) in _NUMBERS and self._numbers.get(type(obj)) is _AS_REPR and id(obj) not in self._constants:
            try:
                return {"text/plain": repr(obj)}, {}
            except ValueError:
                pass  # more digits than Python converts, which IPython shows as an error
        text, metadata = plain(obj), None
        if isinstance(text, tuple) and len(text) == 2:
            text, metadata = text
        return {} if text is None else {"text/plain": text}, {} if metadata is None else {"text/plain": metadata}

    def _may_have_other_form(self, kind: type, own: dict[str, Any], plain: Any) -> bool:
        every = [plain, self.ipython_display_formatter, self.mimebundle_formatter, *own.values()]
        if every != self._known:
            self._note(every)
        if not self._are_ipythons or any(self._singletons):
            return True
        filled = [*filter(None, self._registries)]
        if not filled:
            return False
        kinds = kind.__mro__
        keys = [*kinds, *((kind.__module__, kind.__name__) for kind in kinds)]
        return not all(registry.keys().isdisjoint(keys) for registry in filled)

    def _note(self, every: list[Any]) -> None:
        """What is asked of each formatter takes as long as formatting a number; so it is, as long as none is changed."""
        plain = every[0]
        others = [formatter for formatter in every if formatter is not plain]
        self._known, self._numbers, self._constants = every, {}, {}
        self._are_ipythons = all(
            type(formatter) in _OWN_METHODS and formatter.print_method == _OWN_METHODS[type(formatter)] for formatter in others
        )
        if self._are_ipythons:
            self._singletons = [formatter.singleton_printers for formatter in others]
            self._registries = [formatter.type_printers for formatter in others]
            self._registries += [formatter.deferred_printers for formatter in others]
        if type(plain) is formatters.PlainTextFormatter:
            self._numbers, self._constants = plain.type_printers, plain.singleton_printers
        for formatter in every:
            if type(formatter) in _OWN_METHODS:
                formatter.observe(self._forget, ["print_method", "singleton_printers", "type_printers", "deferred_printers"])

    def _forget(self, _: object) -> None:
        self._known = None
