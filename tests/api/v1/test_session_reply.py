from __future__ import annotations

import pytest

from execd.api.v1.session_reply import ELLIPSIS, _shortened
from execd.engine.sessions.session_log import MAX_PROMPT_CHARACTERS


@pytest.mark.parametrize("prompt", ["", "name? ", "é" * MAX_PROMPT_CHARACTERS])
def test_a_prompt_of_the_allowed_length_is_shown_whole(prompt: str) -> None:
    assert _shortened(prompt) == prompt


def test_a_longer_prompt_is_cut_and_says_so() -> None:
    allowed = "é" * MAX_PROMPT_CHARACTERS
    assert _shortened(allowed + "?") == allowed + ELLIPSIS
