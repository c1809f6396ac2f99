"""execd_client.kubernetes.inject, against the manifest and the schema of the CRD."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from execd_client.kubernetes import inject

from .manifests import REPOSITORY, one
from .schemas import faults
from .test_manifests import restricted_violations

TREE_IMAGE = "registry.example/execd-tree:0.1.0"
MANIFEST = one("SandboxTemplate", REPOSITORY / "image" / "inject.yaml")
PLAIN: dict[str, Any] = {
    "runtimeClassName": "gvisor",
    "automountServiceAccountToken": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "sandbox",
            "image": "registry.example/your-image:1",
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
        }
    ],
}


def with_container(**fields: Any) -> dict[str, Any]:
    spec = copy.deepcopy(PLAIN)
    spec["containers"][0].update(fields)
    return spec


def injected(spec: dict[str, Any], **options: Any) -> dict[str, Any]:
    return inject(spec, execd_image=TREE_IMAGE, **options)


def test_the_manifest_is_what_inject_makes_of_a_plain_pod() -> None:
    before = copy.deepcopy(PLAIN)
    assert injected(PLAIN) == MANIFEST["spec"]["podTemplate"]["spec"]
    assert before == PLAIN, "the caller's spec stays as it is"


@pytest.mark.parametrize("image_volume", [False, True])
def test_a_strict_and_restricted_cluster_takes_the_pod(image_volume: bool) -> None:
    spec = injected(PLAIN, image_volume=image_volume)
    template = copy.deepcopy(MANIFEST)
    template["spec"]["podTemplate"]["spec"] = spec
    assert faults(template) == []
    allowed = ["volume type: image"] if image_volume else []
    assert restricted_violations(spec) == allowed


def test_an_image_volume_needs_no_init_container() -> None:
    spec = injected(PLAIN, image_volume=True)
    assert "initContainers" not in spec
    assert spec["volumes"][0]["image"]["reference"] == TREE_IMAGE


def test_the_command_of_the_container_goes_on_beside_execd() -> None:
    spec = injected(with_container(command=["server", "-v"], args=["--port", "1"]))
    [container] = spec["containers"]
    assert container["command"][1:] == ["serve", "--", "server", "-v", "--port", "1"]
    assert "args" not in container


def test_what_the_spec_says_stays() -> None:
    probe = {"httpGet": {"path": "/own", "port": 1}}
    spec = injected(
        with_container(
            env=[{"name": "EXECD_HOST", "value": "127.0.0.1"}],
            readinessProbe=probe,
            securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}},
        )
        | {"terminationGracePeriodSeconds": 60}
    )
    [container] = spec["containers"]
    assert container["readinessProbe"] == probe
    assert container["env"][0] == {"name": "EXECD_HOST", "value": "127.0.0.1"}
    assert [each["name"] for each in container["env"]].count("EXECD_HOST") == 1
    assert container["securityContext"]["capabilities"] == {"add": ["NET_BIND_SERVICE"]}
    assert spec["terminationGracePeriodSeconds"] == 60


def test_a_field_without_a_value_is_absent() -> None:
    nulls = dict.fromkeys(("command", "args", "env", "securityContext", "ports", "readinessProbe"))
    assert injected(with_container(**nulls) | {"volumes": None}) == injected(PLAIN)


def test_a_container_without_limits_gets_no_size_of_the_node() -> None:
    [container] = injected(with_container(resources={}))["containers"]
    assert not any("valueFrom" in variable for variable in container["env"])


def test_a_container_that_may_run_as_root_keeps_the_capabilities_of_the_runtime() -> None:
    [container] = injected(with_container() | {"securityContext": {}})["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False}


def test_the_container_is_the_one_of_the_name() -> None:
    spec = copy.deepcopy(PLAIN)
    spec["containers"].insert(0, {"name": "proxy", "image": "proxy"})
    first, second = injected(spec, container="sandbox")["containers"]
    assert "command" not in first
    assert second["command"] == ["/opt/execd/bin/execd", "serve"]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ({}, {}, "containers: there is no container; there are: none"),
        (PLAIN, {"container": "other"}, "there is no other; there are: sandbox"),
        (injected(PLAIN), {}, "volumes: execd-state is there already: execd is injected once"),
        (with_container(args=["x"]), {}, "sandbox has args without a command"),
        (with_container(env=[{"name": "EXECD_PORT", "value": "9"}]), {}, "the probes ask 8888"),
    ],
)
def test_a_spec_that_cannot_take_execd_is_refused(
    spec: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        injected(spec, **options)
