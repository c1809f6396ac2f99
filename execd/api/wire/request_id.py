"""The id of a request, which the reply echoes and the log has."""

from __future__ import annotations

import random
import re

MAX_REQUEST_ID_LENGTH = 128


def request_id(given: str | None) -> str:
    """Return the printable ASCII of the peer's id, or a new id if nothing printable is left."""
    kept = re.sub(r"[^!-~]", "", given)[:MAX_REQUEST_ID_LENGTH] if given else ""
    return kept or f"{random.getrandbits(64):016x}"
