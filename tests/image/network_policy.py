"""Whom a NetworkPolicy lets in and out, by the rules of networking.k8s.io/v1.

https://kubernetes.io/docs/concepts/services-networking/network-policies/ has the rules; a
connection passes if one rule has a peer and a port that match.
"""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple

DAEMON_PORT = 8888


class Pod(NamedTuple):
    """One end of a connection. The other end is a pod that the policy selects."""

    namespace: str
    labels: dict[str, str]
    ip: str = "10.0.0.1"


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector matches. An empty selector matches everything."""
    wanted = selector.get("matchLabels", {})
    if not wanted.items() <= labels.items():
        return False
    for term in selector.get("matchExpressions", []):
        value = labels.get(term["key"])
        match term["operator"]:
            case "In":
                holds = value in term["values"]
            case "NotIn":
                holds = value not in term["values"]
            case "Exists":
                holds = value is not None
            case "DoesNotExist":
                holds = value is None
        if not holds:
            return False
    return True


def _is_peer(peer: dict[str, Any], pod: Pod, home: str) -> bool:
    """Whether an entry of ``from`` or ``to`` means the pod. ``home``: the policy's namespace.

    Two selectors in one entry must both match; a podSelector alone means pods of the policy's own
    namespace.
    """
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(pod.ip)
        return address in ipaddress.ip_network(block["cidr"]) and not any(
            address in ipaddress.ip_network(cidr) for cidr in block.get("except", [])
        )
    namespaces = peer.get("namespaceSelector")
    if namespaces is None:
        is_namespace = pod.namespace == home
    else:
        # The API server sets this label on every namespace.
        is_namespace = selects(namespaces, {"kubernetes.io/metadata.name": pod.namespace})
    return is_namespace and selects(peer.get("podSelector", {}), pod.labels)


def _passes(
    rules: list[dict[str, Any]], end: str, pod: Pod, home: str, port: int, protocol: str
) -> bool:
    """Whether one rule fits. A rule without peers means all peers, without ports all ports."""
    return any(
        (not rule.get(end) or any(_is_peer(peer, pod, home) for peer in rule[end]))
        and (not rule.get("ports") or any(_is_port(item, port, protocol) for item in rule["ports"]))
        for rule in rules
    )


def _is_port(item: dict[str, Any], port: int, protocol: str) -> bool:
    assert "endPort" not in item, "ranges are not needed so far"
    assert not isinstance(item.get("port"), str), "names of ports are not needed so far"
    return item.get("protocol", "TCP") == protocol and item.get("port", port) == port


def admits(policy: dict[str, Any], pod: Pod, home: str, port: int = DAEMON_PORT) -> bool:
    """Whether ``pod`` may open a TCP connection to a pod that the policy selects."""
    spec = policy["spec"]
    return "Ingress" not in spec["policyTypes"] or _passes(
        spec.get("ingress", []), "from", pod, home, port, "TCP"
    )


def releases(policy: dict[str, Any], pod: Pod, home: str, port: int, protocol: str = "TCP") -> bool:
    """Whether a pod that the policy selects may send to ``pod``."""
    spec = policy["spec"]
    return "Egress" not in spec["policyTypes"] or _passes(
        spec.get("egress", []), "to", pod, home, port, protocol
    )
