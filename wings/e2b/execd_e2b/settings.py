"""The settings of both ports."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The variable EXECD_E2B_OPEN_CONTEXTS."""

    open_contexts: Annotated[
        Literal["on", "off"],
        Meta(
            description="`on`: the routes `/contexts` need no token, which E2B's SDK does not send "
            "to them; `off`: they need the token."
        ),
    ] = "off"
