"""What an API server checks of a manifest with ``kubectl apply --validate=strict``: each field is
known, has the right type, and no required field is missing.

The facts come from these API types, and no text of theirs is here:

* extensions.agents.x-k8s.io/v1beta1 of kubernetes-sigs/agent-sandbox: SandboxTemplate (with the
  SandboxBlueprint of api/v1beta1 inline) and SandboxWarmPool;
* networking.k8s.io/v1 and core/v1 of Kubernetes 1.34. The pod's schema is part of the CRD of
  SandboxTemplate, so the API server checks the pod template too. Of the pod, only the parts that
  the manifest uses are here; a field that is new in the manifest needs an entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Fields(NamedTuple):
    """A mapping with known fields."""

    known: dict[str, Any]
    required: frozenset[str] = frozenset()


def fields(*required: str, **known: Any) -> Fields:
    assert set(required) <= set(known)
    return Fields(known, frozenset(required))


class AtLeast(NamedTuple):
    """An integer with a minimum."""

    minimum: int


LABELS = {str: str}
"""A mapping with keys that the writer chooses."""
INT_OR_STRING = (int, str)
SELECTOR = fields(
    matchLabels=LABELS,
    matchExpressions=[
        fields(
            "key",
            "operator",
            key=str,
            operator={"In", "NotIn", "Exists", "DoesNotExist"},
            values=[str],
        )
    ],
)
METADATA = fields("name", name=str, namespace=str, labels=LABELS, annotations=LABELS)
PROBE = fields(
    httpGet=fields("port", path=str, port=INT_OR_STRING, scheme={"HTTP", "HTTPS"}),
    periodSeconds=AtLeast(1),
    timeoutSeconds=AtLeast(1),
    failureThreshold=AtLeast(1),
    initialDelaySeconds=AtLeast(0),
)
CONTAINER = fields(
    "name",
    name=str,
    image=str,
    imagePullPolicy={"Always", "IfNotPresent", "Never"},
    command=[str],
    args=[str],
    ports=[fields("containerPort", name=str, containerPort=int, protocol={"TCP", "UDP"})],
    env=[
        fields(
            "name",
            name=str,
            value=str,
            valueFrom=fields(resourceFieldRef=fields("resource", resource=str, divisor=str)),
        )
    ],
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=fields(requests=LABELS, limits=LABELS),
    securityContext=fields(
        allowPrivilegeEscalation=bool,
        readOnlyRootFilesystem=bool,
        privileged=bool,
        capabilities=fields(drop=[str], add=[str]),
    ),
    volumeMounts=[fields("name", "mountPath", name=str, mountPath=str, readOnly=bool)],
)
POD = fields(
    "containers",
    runtimeClassName=str,
    automountServiceAccountToken=bool,
    enableServiceLinks=bool,
    terminationGracePeriodSeconds=int,
    dnsPolicy={"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
    dnsConfig=fields(nameservers=[str], searches=[str], options=[fields(name=str, value=str)]),
    securityContext=fields(
        runAsNonRoot=bool,
        runAsUser=int,
        runAsGroup=int,
        fsGroup=int,
        seccompProfile=fields("type", type={"RuntimeDefault", "Localhost"}, localhostProfile=str),
    ),
    initContainers=[CONTAINER],
    containers=[CONTAINER],
    volumes=[
        fields(
            "name",
            name=str,
            emptyDir=fields(sizeLimit=str, medium={"", "Memory"}),
            image=fields(reference=str, pullPolicy={"Always", "IfNotPresent", "Never"}),
        )
    ],
)
PEER = fields(
    podSelector=SELECTOR,
    namespaceSelector=SELECTOR,
    ipBlock=Fields({"cidr": str, "except": [str]}, frozenset({"cidr"})),
)
PORT = fields(protocol={"TCP", "UDP", "SCTP"}, port=INT_OR_STRING, endPort=int)
POLICY_OF_CLAIMS = {"Allowed", "Overrides", "Disallowed"}

EXTENSIONS = "extensions.agents.x-k8s.io/v1beta1"
SPECS = {
    (EXTENSIONS, "SandboxTemplate"): fields(
        "podTemplate",
        podTemplate=fields("spec", metadata=fields(labels=LABELS, annotations=LABELS), spec=POD),
        service=bool,
        networkPolicyManagement={"Managed", "Unmanaged"},
        envVarsInjectionPolicy=POLICY_OF_CLAIMS,
        volumeClaimTemplatesPolicy=POLICY_OF_CLAIMS,
    ),
    (EXTENSIONS, "SandboxWarmPool"): fields(
        "sandboxTemplateRef",
        replicas=AtLeast(0),
        sandboxTemplateRef=fields("name", name=str),
        updateStrategy=fields(type={"Recreate", "OnReplenish"}),
    ),
    ("networking.k8s.io/v1", "NetworkPolicy"): fields(
        podSelector=SELECTOR,
        policyTypes=[{"Ingress", "Egress"}],
        ingress=[Fields({"from": [PEER], "ports": [PORT]})],
        egress=[fields(to=[PEER], ports=[PORT])],
    ),
}


def faults(document: dict[str, Any]) -> list[str]:
    """What a strict API server refuses in a manifest, with the path of each fault."""
    spec = SPECS.get((document.get("apiVersion"), document.get("kind")))  # type: ignore[arg-type]
    if spec is None:
        return [f"no API has {document.get('apiVersion')} {document.get('kind')}"]
    kind = fields("metadata", "spec", apiVersion=str, kind=str, metadata=METADATA, spec=spec)
    return _faults(document, kind, document["kind"])


def _faults(value: Any, kind: Any, path: str) -> list[str]:
    match kind:
        case Fields():
            if not isinstance(value, dict):
                return [f"{path} is not a mapping"]
            missing = [f"{path}.{name} is missing" for name in sorted(kind.required - set(value))]
            found = [
                _faults(item, kind.known[name], f"{path}.{name}")
                if name in kind.known
                else [f"{path}.{name} is not known"]
                for name, item in value.items()
            ]
        case dict():
            if not isinstance(value, dict):
                return [f"{path} is not a mapping"]
            missing = []
            found = [_faults(item, kind[str], f"{path}.{name}") for name, item in value.items()]
        case list():
            if not isinstance(value, list):
                return [f"{path} is not a list"]
            missing = []
            found = [_faults(item, kind[0], f"{path}[{n}]") for n, item in enumerate(value)]
        case set():
            return [] if value in kind else [f"{path} is {value!r}, not one of {sorted(kind)}"]
        case AtLeast():
            is_right = type(value) is int and value >= kind.minimum
            return [] if is_right else [f"{path} is {value!r}, not {kind.minimum} or more"]
        case _:
            kinds = kind if isinstance(kind, tuple) else (kind,)
            # YAML has `yes` and `on` for booleans, and a boolean is an int in Python.
            return [] if type(value) in kinds else [f"{path} is {value!r}"]
    return missing + [fault for each in found for fault in each]
