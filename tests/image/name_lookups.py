"""How long a name lookup in the pod takes at worst, by the rules of resolv.conf(5).

The kubelet writes the pod's resolv.conf for the policy ClusterFirst: one name server, three search
domains, and ``options ndots:5``. An option of the pod's ``dnsConfig`` replaces the kubelet's option
of the same name (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/).
"""

from __future__ import annotations

from typing import Any, NamedTuple

NAMESPACE = "sandboxes"
CLUSTER_DOMAINS = [f"{NAMESPACE}.svc.cluster.local", "svc.cluster.local", "cluster.local"]


class ResolvConf(NamedTuple):
    """resolv.conf with the defaults of resolv.conf(5)."""

    nameservers: int = 1
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout_seconds: int = 5
    attempts: int = 2


def of_pod(spec: dict[str, Any]) -> ResolvConf:
    """The resolv.conf that the kubelet makes for a pod."""
    assert spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst", (
        "else the kubelet writes another"
    )
    chosen = spec.get("dnsConfig", {})
    options = {"ndots": "5"} | {
        option["name"]: option["value"] for option in chosen.get("options", [])
    }
    unknown = set(options) - {"ndots", "timeout", "attempts"}
    assert not unknown, f"the model does not know {unknown}"
    return ResolvConf(
        nameservers=1 + len(chosen.get("nameservers", [])),
        search=(*CLUSTER_DOMAINS, *chosen.get("searches", [])),
        ndots=int(options["ndots"]),
        timeout_seconds=int(options.get("timeout", ResolvConf().timeout_seconds)),
        attempts=int(options.get("attempts", ResolvConf().attempts)),
    )


def names_asked(name: str, conf: ResolvConf) -> list[str]:
    """The names that a resolver asks for, in turn, until a name has an address.

    A name with ``ndots`` dots or more is asked for as it is first, else last. A name that ends with
    a dot is asked for as it is only.
    """
    if name.endswith("."):
        return [name.removesuffix(".")]
    searched = [f"{name}.{domain}" for domain in conf.search]
    return [name, *searched] if name.count(".") >= conf.ndots else [*searched, name]


def longest_failure_seconds(name: str, conf: ResolvConf) -> int:
    """Until a lookup fails where no name server answers: each name is asked for ``attempts`` times
    at each name server, and each question waits ``timeout`` seconds."""
    assert conf.attempts >= 1
    names = len(names_asked(name, conf))
    return names * conf.nameservers * conf.attempts * conf.timeout_seconds
