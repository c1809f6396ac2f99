"""The manifests fit the schemas of the API servers, the "restricted" standard, and the image.

Facts of the schemas: agent-sandbox' SandboxTemplate and SandboxWarmPool of
extensions.agents.x-k8s.io/v1beta1 (extensions/api/v1beta1, api/v1beta1: SandboxBlueprint),
networking.k8s.io/v1, and the parts of core/v1 used here. An API server drops or refuses unknown
fields, and without a schema no test of a manifest would notice a misspelt field.
"""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from execd import config

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATE = REPOSITORY / "image" / "sandbox-template.yaml"
POLICY = REPOSITORY / "image" / "network-policy.yaml"
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()

EXTENSIONS = "extensions.agents.x-k8s.io/v1beta1"

# The kind of a value: a type, a set of words, a list of a kind, a mapping of known fields, or
# (ANY) a mapping with keys chosen by the writer.
ANY = "any"
SELECTOR = {"matchLabels": {ANY: str}}
METADATA = {"name": str, "namespace": str, "labels": {ANY: str}, "annotations": {ANY: str}}
CAPABILITIES = {"drop": [str], "add": [str]}
PROBE = {
    "httpGet": {"path": str, "port": (int, str), "scheme": {"HTTP", "HTTPS"}},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
    "initialDelaySeconds": int,
}
CONTAINER = {
    "name": str,
    "image": str,
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "args": [str],
    "ports": [{"name": str, "containerPort": int, "protocol": {"TCP", "UDP"}}],
    "env": [
        {
            "name": str,
            "value": str,
            "valueFrom": {"resourceFieldRef": {"resource": str, "divisor": str}},
        }
    ],
    "startupProbe": PROBE,
    "readinessProbe": PROBE,
    "livenessProbe": PROBE,
    "resources": {"requests": {ANY: str}, "limits": {ANY: str}},
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "privileged": bool,
        "capabilities": CAPABILITIES,
    },
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "runtimeClassName": str,
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "seccompProfile": {"type": {"RuntimeDefault", "Localhost"}},
    },
    "containers": [CONTAINER],
    "volumes": [{"name": str, "emptyDir": {"sizeLimit": str, "medium": {"Memory"}}}],
}
PEER = {
    "podSelector": SELECTOR,
    "namespaceSelector": SELECTOR,
    "ipBlock": {"cidr": str, "except": [str]},
}
PORT = {"protocol": {"TCP", "UDP", "SCTP"}, "port": (int, str), "endPort": int}
SPECS = {
    (EXTENSIONS, "SandboxTemplate"): {
        "podTemplate": {"metadata": {"labels": {ANY: str}, "annotations": {ANY: str}}, "spec": POD},
        "service": bool,
        "networkPolicyManagement": {"Managed", "Unmanaged"},
        "envVarsInjectionPolicy": {"Allowed", "Overrides", "Disallowed"},
        "volumeClaimTemplatesPolicy": {"Allowed", "Overrides", "Disallowed"},
    },
    (EXTENSIONS, "SandboxWarmPool"): {
        "replicas": int,
        "sandboxTemplateRef": {"name": str},
        "updateStrategy": {"type": {"Recreate", "OnReplenish"}},
    },
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": SELECTOR,
        "policyTypes": [{"Ingress", "Egress"}],
        "ingress": [{"from": [PEER], "ports": [PORT]}],
        "egress": [{"to": [PEER], "ports": [PORT]}],
    },
}


def unknown(value: Any, kind: Any, where: str) -> list[str]:
    """The paths in ``value`` that the schema does not know."""
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [f"{where} is not a mapping"]
        fields = {name: kind.get(name, kind.get(ANY)) for name in value}
        return [
            fault
            for name, field in fields.items()
            for fault in (
                unknown(value[name], field, f"{where}.{name}")
                if field
                else [f"{where}.{name} is not known"]
            )
        ]
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where} is not a list"]
        return [
            fault
            for n, item in enumerate(value)
            for fault in unknown(item, kind[0], f"{where}[{n}]")
        ]
    if isinstance(kind, set):
        return [] if value in kind else [f"{where} is {value!r}, not one of {sorted(kind)}"]
    if isinstance(value, bool) and kind is not bool:
        return [f"{where} is a boolean"]
    return [] if isinstance(value, kind) else [f"{where} is {value!r}"]


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def one(kind: str, path: Path = TEMPLATE) -> dict[str, Any]:
    (found,) = (document for document in documents(path.read_text()) if document["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    return one("SandboxTemplate")["spec"]["podTemplate"]["spec"]


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return only


def restricted_violations(spec: dict[str, Any]) -> list[str]:
    """The "restricted" Pod Security Standard of Kubernetes (including "baseline"), control by
    control."""
    found = []
    of_pod = spec.get("securityContext", {})
    containers = [
        each
        for key in ("containers", "initContainers", "ephemeralContainers")
        for each in spec.get(key, [])
    ]
    contexts = [each.get("securityContext", {}) for each in containers]

    def each_says(field: str) -> list[Any]:
        """A container's own word, else the pod's."""
        return [context.get(field, of_pod.get(field)) for context in contexts]

    found += [
        f"host namespace: {field}"
        for field in ("hostNetwork", "hostPID", "hostIPC")
        if spec.get(field)
    ]
    found += ["privileged" for context in contexts if context.get("privileged")]
    found += [
        "procMount" for context in contexts if context.get("procMount", "Default") != "Default"
    ]
    found += [
        "hostPort" for each in containers for port in each.get("ports", []) if port.get("hostPort")
    ]
    found += ["sysctls" for _ in of_pod.get("sysctls", [])]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found += [
        f"volume type: {kind}"
        for volume in spec.get("volumes", [])
        for kind in set(volume) - {"name"} - allowed
    ]
    found += [
        "privilege escalation"
        for context in contexts
        if context.get("allowPrivilegeEscalation") is not False
    ]
    found += ["runAsNonRoot" for says in each_says("runAsNonRoot") if says is not True]
    found += ["runAsUser 0" for says in each_says("runAsUser") if says == 0]
    profiles = [(says or {}).get("type") for says in each_says("seccompProfile")]
    found += [
        f"seccomp: {profile}"
        for profile in profiles
        if profile not in ("RuntimeDefault", "Localhost")
    ]
    for context in contexts:
        capabilities = context.get("capabilities", {})
        found += [] if "ALL" in capabilities.get("drop", []) else ["capabilities not dropped"]
        found += [
            f"capability: {name}"
            for name in set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}
        ]
    return found


def quantity_bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def image_environment() -> dict[str, str]:
    """ENV of the Dockerfile's last stage."""
    last = DOCKERFILE.rpartition("\nFROM ")[2].replace("\\\n", " ")
    return dict(
        pair.split("=", 1)
        for line in re.findall(r"^ENV (.*)$", last, re.MULTILINE)
        for pair in line.split()
    )


@pytest.mark.parametrize("path", [TEMPLATE, POLICY], ids=lambda path: path.name)
def test_every_field_is_one_that_its_schema_knows(path: Path) -> None:
    for document in documents(path.read_text()):
        spec = SPECS[document["apiVersion"], document["kind"]]
        kind = {"apiVersion": str, "kind": str, "metadata": METADATA, "spec": spec}
        assert unknown(document, kind, document["kind"]) == []


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ("networkPolicyManagment", "SandboxTemplate.networkPolicyManagment is not known"),
        ("networkPolicyManagement", "SandboxTemplate.networkPolicyManagement is 'No', not one of"),
        ("podTemplate", "SandboxTemplate.podTemplate is not a mapping"),
    ],
)
def test_a_misspelt_field_would_be_noticed(field: str, fault: str) -> None:
    (found,) = unknown({field: "No"}, SPECS[EXTENSIONS, "SandboxTemplate"], "SandboxTemplate")
    assert found.startswith(fault)


def test_the_pod_meets_the_restricted_standard() -> None:
    assert restricted_violations(pod()) == []


def _set(spec: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for name in parents:
        spec = spec["containers"][0] if name == "container" else spec.setdefault(name, {})
    spec[last] = value


@pytest.mark.parametrize(
    ("path", "value", "violation"),
    [
        ("hostNetwork", True, "host namespace: hostNetwork"),
        ("volumes", [{"name": "host", "hostPath": {"path": "/"}}], "volume type: hostPath"),
        ("securityContext.runAsNonRoot", False, "runAsNonRoot"),
        ("securityContext.seccompProfile", {"type": "Unconfined"}, "seccomp: Unconfined"),
        ("container.securityContext.runAsUser", 0, "runAsUser 0"),
        ("container.securityContext.privileged", True, "privileged"),
        ("container.securityContext.allowPrivilegeEscalation", True, "privilege escalation"),
        ("container.securityContext.capabilities.drop", ["NET_RAW"], "capabilities not dropped"),
        ("container.securityContext.capabilities.add", ["SYS_ADMIN"], "capability: SYS_ADMIN"),
    ],
)
def test_a_laxer_pod_would_not_meet_it(path: str, value: object, violation: str) -> None:
    spec = copy.deepcopy(pod())
    _set(spec, path, value)
    assert restricted_violations(spec) == [violation]


def test_the_pod_is_a_gvisor_sandbox_without_a_way_to_the_api_server() -> None:
    assert pod()["runtimeClassName"] == "gvisor"
    assert pod()["automountServiceAccountToken"] is False


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_the_root_of_the_daemons_port(probe: str) -> None:
    (port,) = container()["ports"]
    get = container()[probe]["httpGet"]
    assert get["path"] == "/"
    assert get["port"] in (port["name"], port["containerPort"])


def test_the_port_is_the_daemons_default_and_the_images() -> None:
    (port,) = container()["ports"]
    assert port["containerPort"] == config.Config().port
    assert f"\nEXPOSE {port['containerPort']}\n" in DOCKERFILE


def test_every_setting_is_one_that_execd_has() -> None:
    settings = {config.environment_name(name) for name in config.Config.__struct_fields__}
    assert {each["name"] for each in container()["env"]} <= settings
    assert set(image_environment()) - settings == {
        "PIP_ROOT_USER_ACTION",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    }


def test_the_pods_true_size_comes_by_the_downward_api() -> None:
    sizes = {
        each["name"]: each["valueFrom"]["resourceFieldRef"]["resource"]
        for each in container()["env"]
    }
    assert sizes == {"EXECD_POD_MEMORY_BYTES": "limits.memory", "EXECD_POD_CPUS": "limits.cpu"}
    assert {"cpu", "memory"} <= set(container()["resources"]["limits"])


def test_the_root_is_read_only_and_the_image_writes_only_to_mounted_volumes() -> None:
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    environment = image_environment()
    assert {environment["SANDBOX_BASE_DIR"], environment["EXECD_STATE_DIR"]} <= set(mounts)
    assert sorted(mounts.values()) == sorted(volume["name"] for volume in pod()["volumes"])


def test_what_the_state_dir_may_hold_fits_into_its_volume() -> None:
    (mount,) = (
        m
        for m in container()["volumeMounts"]
        if m["mountPath"] == image_environment()["EXECD_STATE_DIR"]
    )
    (volume,) = (v for v in pod()["volumes"] if v["name"] == mount["name"])
    assert quantity_bytes(volume["emptyDir"]["sizeLimit"]) > config.Config().state_bytes


def test_volumes_fit_into_the_pods_ephemeral_storage() -> None:
    sizes = [quantity_bytes(volume["emptyDir"]["sizeLimit"]) for volume in pod()["volumes"]]
    assert sum(sizes) <= quantity_bytes(container()["resources"]["limits"]["ephemeral-storage"])


def test_the_user_of_the_pod_is_the_images() -> None:
    user = int(re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1])  # type: ignore[index]
    context = pod()["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {user}


def test_the_daemon_is_pid_1_and_given_longer_to_end_than_it_takes() -> None:
    assert re.search(r'^ENTRYPOINT \["/opt/execd/bin/python3",', DOCKERFILE, re.MULTILINE), (
        "no shell in between"
    )
    assert pod()["terminationGracePeriodSeconds"] > config.Config().shutdown_timeout


def test_the_token_hash_is_there_to_be_uncommented() -> None:
    assert "EXECD_TOKEN_SHA256" not in {each["name"] for each in container()["env"]}, (
        "KubeRay's client cannot send one"
    )
    text = re.sub(
        r"^( *)# (- name: EXECD_TOKEN_SHA256|  value: )",
        r"\1\2",
        TEMPLATE.read_text(),
        flags=re.MULTILINE,
    )
    (template, _) = documents(text)
    environment = {
        each["name"]: each
        for each in template["spec"]["podTemplate"]["spec"]["containers"][0]["env"]
    }
    example = environment["EXECD_TOKEN_SHA256"]["value"]
    assert len(example) == len(hashlib.sha256().hexdigest())
    assert config.load(
        {"base_dir": "/app", "state_dir": "/state"}, {"EXECD_TOKEN_SHA256": example}
    ).token_sha256


def test_the_warm_pool_is_of_this_template_and_has_the_name_that_kuberay_asks_for() -> None:
    pool = one("SandboxWarmPool")
    assert pool["spec"]["sandboxTemplateRef"]["name"] == one("SandboxTemplate")["metadata"]["name"]
    assert pool["metadata"]["name"] == "python-runtime-pool"


def test_the_network_policy_is_for_the_templates_pods() -> None:
    labels = one("SandboxTemplate")["spec"]["podTemplate"]["metadata"]["labels"]
    assert (
        one("NetworkPolicy", POLICY)["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    )
    assert one("SandboxTemplate")["spec"]["networkPolicyManagement"] == "Unmanaged", (
        "or there would be two policies"
    )


def _opens(rules: list[dict[str, Any]], direction: str) -> Callable[[str], bool]:
    peers = [peer for rule in rules for peer in rule[direction]]
    return lambda label: any(
        label in peer.get("podSelector", {}).get("matchLabels", {}).values() for peer in peers
    )


def test_nothing_leaves_a_sandbox_but_questions_to_dns() -> None:
    spec = one("NetworkPolicy", POLICY)["spec"]
    assert "Egress" in spec["policyTypes"]
    assert all(
        rule["to"] and {port["port"] for port in rule["ports"]} == {53} for rule in spec["egress"]
    )
    assert _opens(spec["egress"], "to")("kube-dns")
    blocks = [
        peer["ipBlock"]["cidr"]
        for rule in spec["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    assert all(block.endswith("/32") for block in blocks)


def test_only_routers_and_ray_workers_get_in_and_only_to_the_daemons_port() -> None:
    spec = one("NetworkPolicy", POLICY)["spec"]
    assert "Ingress" in spec["policyTypes"]
    assert all(
        rule["from"] and {p["port"] for p in rule["ports"]} == {config.Config().port}
        for rule in spec["ingress"]
    )
    assert all(peer.get("podSelector") for rule in spec["ingress"] for peer in rule["from"]), (
        "an empty one means all pods"
    )
    admits = _opens(spec["ingress"], "from")
    assert admits("sandbox-router")
    assert admits("worker")
