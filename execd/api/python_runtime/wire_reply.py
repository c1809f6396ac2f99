"""The replies of the routes of files, and of refusals, as the python-runtime names the fields.
Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


class UploadReply(msgspec.Struct, frozen=True, kw_only=True):
    """A file was written."""

    message: Annotated[str, Meta(description="A sentence with the name of the file.")]


class ListedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a directory."""

    name: Annotated[str, Meta(description="The name in the directory.")]
    size: Annotated[int, Meta(description="Size in bytes.")]
    type: Annotated[
        Literal["file", "directory"],
        Meta(description="Everything except directories is a file. Links are followed."),
    ]
    mod_time: Annotated[
        float, Meta(description="Time of the last change of the content, in seconds since 1970.")
    ]


class ExistsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a path exists."""

    path: Annotated[str, Meta(description="The path of the request.")]
    exists: Annotated[bool, Meta(description="Whether a file or a directory has the path.")]


class BodyFault(msgspec.Struct, frozen=True, kw_only=True):
    """A field that breaks a rule, in the words of pydantic."""

    type: Annotated[str, Meta(description="The name of the rule.")]
    loc: Annotated[list[str | int], Meta(description="The place of the field.")]
    msg: Annotated[str, Meta(description="The rule in words.")]
    input: Annotated[Any, Meta(description="The value that breaks the rule.")]
    ctx: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="The parameters of the rule. Absent: there are none."),
    ] = UNSET


class FaultsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that break rules."""

    detail: Annotated[list[BodyFault], Meta(description="The fields.")]
