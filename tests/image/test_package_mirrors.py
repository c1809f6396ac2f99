"""docs/package-mirrors.md: the settings that the manifests hold as comments open the way to a
mirror, and name the mirror to user code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from execd import config
from execd.engine.executions.environment import ChildEnvironment

from .manifests import POLICY, TEMPLATE, documents, uncommented
from .network_policy import Pod, releases
from .schemas import faults

if TYPE_CHECKING:
    from pathlib import Path

HOME = "sandboxes"
MIRROR = Pod("package-mirror", {"app.kubernetes.io/name": "package-mirror"})
URL = "http://mirror.package-mirror:8081/"


def policy() -> dict[str, Any]:
    (found,) = uncommented(POLICY, "- to:")
    return found


def container_environment() -> dict[str, str]:
    """As far as the manifest has the values."""
    template = uncommented(TEMPLATE, "- name: EXECD_PASS_ENV")[0]
    (container,) = template["spec"]["podTemplate"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def command_environment(given: dict[str, str], folder: Path) -> dict[str, str]:
    settings = config.load(
        {"base_dir": str(folder / "base"), "state_dir": str(folder / "state")}, given
    )
    made = ChildEnvironment(settings, given, bin_dir="/state/bin", python="/usr/bin/python3")
    env, _marker = made.build("id", {})
    return env


def test_manifests_with_a_mirror_are_taken_by_a_strict_api_server() -> None:
    for document in [policy(), *uncommented(TEMPLATE, "- name: EXECD_PASS_ENV")]:
        assert faults(document) == []


def test_the_way_to_a_mirror_is_closed_without_the_rule() -> None:
    (closed,) = documents(POLICY.read_text())
    assert not releases(closed, MIRROR, HOME, 8081)


def test_the_rule_opens_the_mirror_and_no_other_port_or_pod() -> None:
    assert releases(policy(), MIRROR, HOME, 8081)
    assert not releases(policy(), MIRROR, HOME, 22)
    assert not releases(policy(), MIRROR._replace(labels={}), HOME, 8081)
    assert not releases(policy(), MIRROR._replace(namespace="elsewhere"), HOME, 8081)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_INDEX_URL", f"{URL}pypi/simple/"),
        ("PIP_TRUSTED_HOST", "mirror.package-mirror"),
        ("npm_config_registry", f"{URL}npm/"),
    ],
)
def test_commands_see_the_address_of_the_mirror(tmp_path: Path, name: str, value: str) -> None:
    env = command_environment(container_environment(), tmp_path)
    assert env[name] == value
    assert "EXECD_PASS_ENV" not in env


def test_commands_see_no_mirror_without_the_pattern(tmp_path: Path) -> None:
    given = container_environment()
    del given["EXECD_PASS_ENV"]
    env = command_environment(given, tmp_path)
    assert not env.keys() & {"PIP_INDEX_URL", "PIP_TRUSTED_HOST", "npm_config_registry"}
