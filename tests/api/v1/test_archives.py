"""The queries of the archive routes. The conformance tests pack and unpack."""

from __future__ import annotations

import pytest
from multidict import MultiDict

from execd.api.v1.archives import PackQuery, UnpackQuery
from execd.api.wire.fields import parse_query
from execd.errors import InvalidArgument


@pytest.mark.parametrize("kind", [PackQuery, UnpackQuery])
def test_a_parameter_that_no_archive_has_is_refused_by_name(
    kind: type[PackQuery | UnpackQuery],
) -> None:
    with pytest.raises(InvalidArgument, match=r"^formt: unknown field, did you mean format\?"):
        parse_query(MultiDict({"formt": "zip"}), kind)
