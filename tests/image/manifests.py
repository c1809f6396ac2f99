"""The manifests of the folder image/, read like an API server reads a request with
``fieldValidation=Strict``: a key that a mapping has twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Hashable

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATE = REPOSITORY / "image" / "sandbox-template.yaml"
POLICY = REPOSITORY / "image" / "network-policy.yaml"


class _StrictLoader(yaml.SafeLoader):
    """Refuse a mapping that has a key twice. PyYAML alone takes the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {name!r} is there twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, Loader=_StrictLoader))


def uncommented(path: Path, first_line: str) -> list[dict[str, Any]]:
    """The documents with the settings of the comment block that begins with ``first_line``."""
    text = path.read_text()
    head, found, rest = text.partition(f"# {first_line}\n")
    assert found, first_line
    # In the block a line is a setting, or goes on with a setting.
    block = re.match(r"(?: *# (?:- | {2}).*\n)*", rest)
    assert block is not None
    settings = re.sub(r"(?m)^( *)# ", r"\1", block[0])
    return documents(head + first_line + "\n" + settings + rest[block.end() :])


def one(kind: str, path: Path = TEMPLATE) -> dict[str, Any]:
    (found,) = (document for document in documents(path.read_text()) if document["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    return one("SandboxTemplate")["spec"]["podTemplate"]["spec"]


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return only
