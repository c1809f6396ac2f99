"""Name lookups in the pod of the manifests: how soon they fail, and which name they ask for
first."""

from __future__ import annotations

import pytest

from .manifests import pod
from .name_lookups import NAMESPACE, longest_failure_seconds, names_asked, of_pod

OUTSIDE = ["pypi.org", "files.pythonhosted.org", "registry", "a.b.c.d.example"]


def test_the_kubelets_own_resolv_conf_lets_a_lookup_fail_after_40_s() -> None:
    """As seen on a cluster where DNS was cut off: the model computes what was measured."""
    spec = {name: value for name, value in pod().items() if name != "dnsConfig"}
    for name in OUTSIDE:
        assert longest_failure_seconds(name, of_pod(spec)) == 40


@pytest.mark.parametrize("name", OUTSIDE)
def test_name_lookup_fails_within_8_s_where_dns_is_cut_off(name: str) -> None:
    assert longest_failure_seconds(name, of_pod(pod())) <= 8


def test_a_lost_datagram_does_not_fail_a_lookup() -> None:
    assert of_pod(pod()).attempts >= 2


def test_a_name_without_search_is_asked_for_once() -> None:
    conf = of_pod(pod())
    assert names_asked("pypi.org.", conf) == ["pypi.org"]
    assert longest_failure_seconds("pypi.org.", conf) == 2


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cache", f"cache.{NAMESPACE}.svc.cluster.local"),
        ("cache.other", "cache.other.svc.cluster.local"),
        ("cache.other.svc", "cache.other.svc.cluster.local"),
        ("cache.other.svc.cluster.local", "cache.other.svc.cluster.local"),
    ],
)
def test_each_form_of_a_service_s_name_still_finds_the_service(name: str, meant: str) -> None:
    assert meant in names_asked(name, of_pod(pod()))


def test_a_service_of_another_namespace_wins_over_a_public_name() -> None:
    """`cache.dev` is a service where the cluster has a namespace `dev`, and a public name as well.
    The cluster's name is asked for first, as in pods without dnsConfig; so no question about a
    service leaves the cluster."""
    asked = names_asked("cache.dev", of_pod(pod()))
    assert asked.index("cache.dev.svc.cluster.local") < asked.index("cache.dev")


def test_a_public_name_of_three_labels_is_asked_for_first() -> None:
    assert names_asked("files.pythonhosted.org", of_pod(pod()))[0] == "files.pythonhosted.org"
