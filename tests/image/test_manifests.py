"""The manifests fit the "restricted" standard of Kubernetes and the image."""

from __future__ import annotations

import copy
import hashlib
import re
from typing import Any

import pytest

from execd import config

from .manifests import POLICY, REPOSITORY, TEMPLATE, container, one, pod, uncommented

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


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


def test_the_first_probe_comes_a_second_after_the_start_at_the_earliest() -> None:
    """The kubelet counts whole seconds from a start time without fractions."""
    assert container()["startupProbe"]["initialDelaySeconds"] >= 2


def test_the_manifest_says_what_its_pods_ask_for_together() -> None:
    said = re.search(
        r"the (\d+) pods of the pool ask for ([\d.]+) CPUs and (\d+) GiB", TEMPLATE.read_text()
    )
    assert said
    n_pods = one("SandboxWarmPool")["spec"]["replicas"]
    requests = container()["resources"]["requests"]
    assert int(said[1]) == n_pods
    assert float(said[2]) == n_pods * int(requests["cpu"].removesuffix("m")) / 1000
    assert int(said[3]) << 30 == n_pods * quantity_bytes(requests["memory"])


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
        if "valueFrom" in each
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


def test_the_disk_guard_knows_the_size_limit_of_each_volume_that_user_code_can_fill() -> None:
    volumes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in pod()["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    settings = {each["name"]: each.get("value") for each in container()["env"]}
    for name, path in (
        ("EXECD_BASE_DIR_BYTES", image_environment()["SANDBOX_BASE_DIR"]),
        ("EXECD_TMP_DIR_BYTES", "/tmp"),
    ):
        assert settings[name] == str(quantity_bytes(volumes[mounts[path]]))


def test_volumes_fit_into_the_pods_ephemeral_storage() -> None:
    sizes = [quantity_bytes(volume["emptyDir"]["sizeLimit"]) for volume in pod()["volumes"]]
    assert sum(sizes) <= quantity_bytes(container()["resources"]["limits"]["ephemeral-storage"])


def test_the_user_of_the_pod_is_the_images() -> None:
    user = int(re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1])  # type: ignore[index]
    context = pod()["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {user}


def test_the_daemon_is_pid_1_and_given_longer_to_end_than_it_takes() -> None:
    assert '\nENTRYPOINT ["/opt/execd/bin/execd", "serve"]\n' in DOCKERFILE, "no shell in between"
    assert pod()["terminationGracePeriodSeconds"] > config.Config().shutdown_timeout


def test_the_token_hash_is_there_to_be_uncommented() -> None:
    assert "EXECD_TOKEN_SHA256" not in {each["name"] for each in container()["env"]}, (
        "KubeRay's client cannot send one"
    )
    (template, _) = uncommented(TEMPLATE, "- name: EXECD_TOKEN_SHA256")
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


def test_ports_of_dialects_are_there_to_be_uncommented_and_agree() -> None:
    (template, _) = uncommented(TEMPLATE, "- name: sandboxd-rest")
    (first,) = template["spec"]["podTemplate"]["spec"]["containers"]
    (template, _) = uncommented(TEMPLATE, "- name: EXECD_SANDBOXD_REST_PORT")
    (second,) = template["spec"]["podTemplate"]["spec"]["containers"]
    (policy,) = uncommented(POLICY, "- protocol: TCP")
    ports = {port["name"]: port["containerPort"] for port in first["ports"]}
    variables = {
        each["name"]: each["value"]
        for each in second["env"]
        if re.fullmatch("EXECD_.*_PORT", each["name"])
    }
    assert variables == {
        config.environment_name(name.replace("-", "_") + "_port"): str(port)
        for name, port in ports.items()
        if name != "http"
    }
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == list(ports.values())
