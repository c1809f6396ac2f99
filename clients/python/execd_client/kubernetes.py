"""execd into a pod of any image: the parts of a pod spec that bring and start the tree
(docs/anywhere.md). Pure: no cluster is asked, and nothing but the standard library is imported."""

from __future__ import annotations

import copy
from typing import Any

TREE = "/opt/execd"
STATE_DIR = "/var/lib/execd"
PORT = 8888
TREE_VOLUME, STATE_VOLUME, INIT_CONTAINER = "execd-tree", "execd-state", "execd-unpack"

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_GRACE_SECONDS = 15
"""More than ``--shutdown-timeout`` (10 s): callers get their answers before the pod dies."""


def inject(
    pod_spec: dict[str, Any],
    *,
    execd_image: str,
    container: str | None = None,
    image_volume: bool = False,
    port: int = PORT,
) -> dict[str, Any]:
    """Return the pod spec (core/v1 PodSpec) with execd in a container of it.

    ``execd_image``: the image of `make tree-image`. ``container``: the name of the container that
    execd serves in; None: the first. The container's own ``command`` goes on beside execd, and its
    end is execd's; a container without a command runs execd alone. ``image_volume``: mount the
    image, where the cluster has Kubernetes' feature ImageVolume, instead of unpacking the tree by
    an init container. ``port``: for execd, in the container.

    What the spec says already stays: probes, security contexts, variables of the same name.
    Commands need a directory that they may write: the image's WORKDIR, or a volume.

    Raises ValueError if the spec has no such container, has execd already, or has ``args`` without
    a ``command``: only the image knows what they are arguments of; or another EXECD_PORT.
    """
    spec: dict[str, Any] = _without_nulls(pod_spec)
    found = _container(spec, container)
    volumes = spec.setdefault("volumes", [])
    taken = {volume.get("name") for volume in volumes} & {TREE_VOLUME, STATE_VOLUME}
    if taken:
        raise ValueError(f"volumes: {min(taken)} is there already: execd is injected once")
    if "args" in found and "command" not in found:
        raise ValueError(
            f"containers: {found['name']} has args without a command; say the command too, since "
            "only the image knows its entrypoint"
        )
    if image_volume:
        source = {"image": {"reference": execd_image, "pullPolicy": "IfNotPresent"}}
    else:
        source = {"emptyDir": {}}
        spec.setdefault("initContainers", []).append(_unpacking(execd_image))
    volumes += [{"name": TREE_VOLUME, **source}, {"name": STATE_VOLUME, "emptyDir": {}}]
    _serve(found, port, is_user=_is_user(spec, found))
    spec.setdefault("terminationGracePeriodSeconds", _GRACE_SECONDS)
    spec.setdefault("enableServiceLinks", False)
    return spec


def _without_nulls(value: Any) -> Any:
    """Copy the value; a field without a value is absent, as for an API server."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _container(spec: dict[str, Any], name: str | None) -> dict[str, Any]:
    containers: list[dict[str, Any]] = spec.get("containers") or []
    for found in containers:
        if name in (None, found.get("name")):
            return found
    known = ", ".join(str(each.get("name")) for each in containers) or "none"
    raise ValueError(f"containers: there is no {name or 'container'}; there are: {known}")


def _unpacking(image: str) -> dict[str, Any]:
    return {
        "name": INIT_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/execd", "--unpack", TREE],
        "volumeMounts": [{"name": TREE_VOLUME, "mountPath": TREE}],
        "securityContext": copy.deepcopy(_RESTRICTED),
    }


def _is_user(spec: dict[str, Any], container: dict[str, Any]) -> bool:
    """Whether the spec says that the container does not run as root."""
    said = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    return bool(said.get("runAsNonRoot") or said.get("runAsUser"))


def _serve(container: dict[str, Any], port: int, *, is_user: bool) -> None:
    """Make the container run execd, and its own command beside execd. ``is_user``: not as root."""
    own = [*container.get("command", ()), *container.pop("args", ())]
    container["command"] = [f"{TREE}/bin/execd", "serve", *(["--", *own] if own else [])]
    _add(container, "ports", [{"name": "execd", "containerPort": port}])
    variables: list[dict[str, Any]] = [
        {"name": "EXECD_HOST", "value": "0.0.0.0"},
        {"name": "EXECD_PORT", "value": str(port)},
        {"name": "EXECD_STATE_DIR", "value": f"{STATE_DIR}/state"},
    ]
    for variable in container.get("env", ()):
        if variable.get("name") == "EXECD_PORT" and variable.get("value") != str(port):
            raise ValueError(f"env: EXECD_PORT is set, and the probes ask {port}: say port=")
    limits = container.get("resources", {}).get("limits", {})
    for resource, name in (("memory", "EXECD_POD_MEMORY_BYTES"), ("cpu", "EXECD_POD_CPUS")):
        if resource in limits:  # without a limit the downward API tells the node's size
            source = {"resourceFieldRef": {"resource": f"limits.{resource}"}}
            variables.append({"name": name, "valueFrom": source})
    _add(container, "env", variables)
    mounts: list[dict[str, Any]] = [
        {"name": TREE_VOLUME, "mountPath": TREE, "readOnly": True},
        {"name": STATE_VOLUME, "mountPath": STATE_DIR},
    ]
    _add(container, "volumeMounts", mounts)
    # As in image/sandbox-template.yaml, with the reasons.
    probe = {"httpGet": {"path": "/", "port": port}}
    for kind, times in (
        ("startupProbe", {"initialDelaySeconds": 2, "periodSeconds": 1, "failureThreshold": 60}),
        ("readinessProbe", {"periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 5}),
        ("livenessProbe", {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}),
    ):
        container.setdefault(kind, {**probe, **times})
    context = container.setdefault("securityContext", {})
    for field, value in _RESTRICTED.items():
        # As root, execd's walls and the image's own program need the runtime's capabilities.
        if field != "capabilities" or is_user:
            context.setdefault(field, copy.deepcopy(value))


def _add(container: dict[str, Any], field: str, items: list[dict[str, Any]]) -> None:
    """Append the items whose names the list does not have."""
    present = container.setdefault(field, [])
    names = {item.get("name") for item in present}
    present += [item for item in items if item["name"] not in names]
