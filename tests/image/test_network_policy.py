"""The network policy lets in both routers and Ray's workers, lets out questions to DNS, and
nothing else. The policy is evaluated over labelled pods, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from execd import config

from .manifests import POLICY, one
from .network_policy import DAEMON_PORT, Pod, admits, releases, selects

HOME = "sandboxes"
SYSTEM = "agent-sandbox-system"
"""The namespace of upstream's manifests of the router and of the controller. The SDK's tunnel looks
for the router there by default."""

# The labels of the routers' pods in upstream's manifests: sandbox_router/sandbox_router.yaml, and
# sandbox-router/deploy/deployment.yaml, older and newer.
PYTHON_ROUTER = {"app": "sandbox-router", "pod-template-hash": "7d9"}
GO_ROUTER = {
    "app.kubernetes.io/name": "sandbox-router",
    "app.kubernetes.io/component": "sandbox-router",
}
NEWER_GO_ROUTER = PYTHON_ROUTER | GO_ROUTER
RAY_WORKER = {"ray.io/node-type": "worker", "ray.io/cluster": "demo"}
RAY_HEAD = {"ray.io/node-type": "head", "ray.io/cluster": "demo"}
SANDBOX = {"app.kubernetes.io/name": "execd"}


def policy() -> dict[str, Any]:
    return one("NetworkPolicy", POLICY)


def test_the_network_policy_is_for_the_templates_pods() -> None:
    template = one("SandboxTemplate")["spec"]
    assert selects(policy()["spec"]["podSelector"], template["podTemplate"]["metadata"]["labels"])
    assert template["networkPolicyManagement"] == "Unmanaged", "or there would be two policies"


@pytest.mark.parametrize("namespace", [HOME, SYSTEM])
@pytest.mark.parametrize("labels", [PYTHON_ROUTER, GO_ROUTER, NEWER_GO_ROUTER])
def test_routers_reach_the_daemon_from_upstream_s_namespace_and_from_the_pod_s_own(
    labels: dict[str, str], namespace: str
) -> None:
    assert config.Config().port == DAEMON_PORT
    assert admits(policy(), Pod(namespace, labels), HOME)


def test_ray_workers_of_the_pod_s_namespace_reach_the_daemon() -> None:
    assert admits(policy(), Pod(HOME, RAY_WORKER), HOME)


@pytest.mark.parametrize(
    "pod",
    [
        Pod(HOME, SANDBOX),
        Pod(HOME, {}),
        Pod(HOME, RAY_HEAD),
        Pod("elsewhere", RAY_WORKER),
        Pod("elsewhere", PYTHON_ROUTER),
        Pod("elsewhere", GO_ROUTER),
        Pod(SYSTEM, {"app": "agent-sandbox-controller"}),
        Pod(SYSTEM, RAY_WORKER),
    ],
    ids=str,
)
def test_nobody_else_reaches_the_daemon(pod: Pod) -> None:
    assert not admits(policy(), pod, HOME)


@pytest.mark.parametrize("port", [22, 8080, DAEMON_PORT + 1])
def test_no_caller_reaches_another_port(port: int) -> None:
    for caller in (Pod(SYSTEM, NEWER_GO_ROUTER), Pod(HOME, RAY_WORKER)):
        assert not admits(policy(), caller, HOME, port)


DNS = Pod("kube-system", {"k8s-app": "kube-dns"})
NODE_LOCAL_DNS = Pod("kube-system", {"k8s-app": "node-local-dns"}, ip="169.254.20.10")


@pytest.mark.parametrize("server", [DNS, NODE_LOCAL_DNS], ids=str)
def test_user_code_reaches_dns_and_no_other_port_of_the_server(server: Pod) -> None:
    for protocol in ("UDP", "TCP"):
        assert releases(policy(), server, HOME, 53, protocol)
        assert not releases(policy(), server, HOME, 443, protocol)


@pytest.mark.parametrize(
    "server",
    [
        Pod("default", {}, ip="93.184.216.34"),  # outside the cluster
        Pod("default", {}, ip="169.254.169.254"),  # the cloud's metadata
        Pod("kube-system", {"component": "kube-apiserver"}),
        Pod("elsewhere", {"k8s-app": "kube-dns"}),
        Pod(HOME, {"k8s-app": "kube-dns"}),
        Pod(HOME, SANDBOX),
    ],
    ids=str,
)
def test_user_code_reaches_nobody_else(server: Pod) -> None:
    for port in (53, 80, 443, DAEMON_PORT):
        for protocol in ("UDP", "TCP"):
            assert not releases(policy(), server, HOME, port, protocol)


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ({}, {}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {"a": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": "1"}, False),
    ],
)
def test_the_evaluator_knows_the_selectors(
    selector: dict[str, Any], labels: dict[str, str], matches: bool
) -> None:
    assert selects(selector, labels) is matches


def test_the_evaluator_takes_an_empty_rule_for_everybody_and_no_rule_for_nobody() -> None:
    anyone = Pod("elsewhere", {})
    assert admits({"spec": {"policyTypes": ["Ingress"], "ingress": [{}]}}, anyone, HOME)
    assert not admits({"spec": {"policyTypes": ["Ingress"]}}, anyone, HOME)
    assert admits({"spec": {"policyTypes": ["Egress"]}}, anyone, HOME)
