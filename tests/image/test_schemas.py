"""A strict API server takes each manifest: the equivalent of ``kubectl apply --validate=strict``
without a cluster."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from .manifests import POLICY, TEMPLATE, documents, one
from .schemas import faults

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", [TEMPLATE, POLICY], ids=lambda path: path.name)
def test_a_strict_api_server_takes_each_manifest(path: Path) -> None:
    found = documents(path.read_text())
    assert found
    for document in found:
        assert faults(document) == []


def test_a_field_that_is_there_twice_is_refused() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="'replicas' is there twice"):
        documents("spec: {replicas: 1, name: pool, replicas: 2}")


REMOVED = object()


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("kind", "SandboxTemplat", "no API has extensions.agents.x-k8s.io/v1beta1 SandboxTemplat"),
        ("metadata.name", REMOVED, "metadata.name is missing"),
        ("spec.networkPolicyManagment", "No", "spec.networkPolicyManagment is not known"),
        ("spec.networkPolicyManagement", "No", "spec.networkPolicyManagement is 'No', not one of"),
        ("spec.podTemplate", "No", "spec.podTemplate is not a mapping"),
        ("spec.podTemplate.metadata.name", "x", "spec.podTemplate.metadata.name is not known"),
        ("spec.podTemplate.metadata.labels.app", 1, "spec.podTemplate.metadata.labels.app is 1"),
        ("spec.podTemplate.spec", REMOVED, "spec.podTemplate.spec is missing"),
        ("spec.podTemplate.spec.volumes", {}, "spec.podTemplate.spec.volumes is not a list"),
        (
            "spec.podTemplate.spec.enableServiceLinks",
            "no",
            "spec.podTemplate.spec.enableServiceLinks is 'no'",
        ),
        (
            "spec.podTemplate.spec.containers.0.name",
            REMOVED,
            "spec.podTemplate.spec.containers[0].name is missing",
        ),
        (
            "spec.podTemplate.spec.containers.0.readinessProbe.periodSeconds",
            0,
            "spec.podTemplate.spec.containers[0].readinessProbe.periodSeconds is 0, not 1 or more",
        ),
        (
            "spec.podTemplate.spec.terminationGracePeriodSeconds",
            True,
            "spec.podTemplate.spec.terminationGracePeriodSeconds is True",
        ),
        (
            "spec.podTemplate.spec.dnsConfig",
            {"options": [{"name": "ndots", "value": 2}]},
            "spec.podTemplate.spec.dnsConfig.options[0].value is 2",
        ),
    ],
)
def test_a_fault_in_a_manifest_is_named_with_its_path(path: str, value: Any, fault: str) -> None:
    document = copy.deepcopy(one("SandboxTemplate"))
    *parents, last = path.split(".")
    place: Any = document
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    (found,) = faults(document)
    assert found.removeprefix("SandboxTemplate.").startswith(fault)
