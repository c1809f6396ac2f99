"""The settings of the dialect."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The variables EXECD_OPENSANDBOX_LINE_ENDS, _ENV_FILE and _RUNTIME_INIT."""

    line_ends: Annotated[
        Literal["keep", "strip"],
        Meta(
            description="Line ends in the output events: `keep`, as clients from 1.1 on expect, or "
            "`strip`, as clients of 1.0 expect."
        ),
    ] = "keep"
    env_file: Annotated[
        str | None,
        Meta(
            description="File of variables for commands; the SDK's `set_env` appends to the file.",
            extra={"default": "`.opensandbox.env` in TMPDIR of commands"},
        ),
    ] = None
    runtime_init: Annotated[
        bool,
        Meta(
            description="Serve only probes on every port of the daemon until `POST /internal/init` "
            "has brought the access token's hash."
        ),
    ] = False
