"""``execctl inject``: manifests from stdin to stdout. No daemon is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.client.cli.conftest import EXECCTL

MANIFEST = Path(__file__).parents[3] / "image" / "inject.yaml"
IMAGE = "registry.example/execd-tree:0.1.0"
CONTAINER = {"name": "own", "image": "own", "command": ["server"]}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"}}


def inject(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EXECCTL, "inject", "--execd-image", IMAGE, *options],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("Pod", ["spec"]),
        ("Deployment", ["spec", "template", "spec"]),
        ("CronJob", ["spec", "jobTemplate", "spec", "template", "spec"]),
        ("SandboxTemplate", ["spec", "podTemplate", "spec"]),
    ],
)
def test_the_pod_of_each_kind_gets_execd_and_other_objects_stay(kind: str, way: list[str]) -> None:
    document: dict = {"containers": [CONTAINER]}  # type: ignore[type-arg]
    for name in reversed(way):
        document = {name: document}
    done = inject(yaml.safe_dump_all([SERVICE, {"kind": kind, **document}]))
    service, found = yaml.safe_load_all(done.stdout)
    assert service == SERVICE
    for name in way:
        found = found[name]
    [container] = found["containers"]
    assert container["command"] == ["/opt/execd/bin/execd", "serve", "--", "server"]
    assert [each["image"] for each in found["initContainers"]] == [IMAGE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "stdin: not YAML"),
        (yaml.safe_dump(SERVICE), "stdin: no object with a pod spec"),
        (MANIFEST.read_text(), "SandboxTemplate: volumes: execd-state is there already"),
    ],
)
def test_a_manifest_that_cannot_take_execd_is_refused(text: str, message: str) -> None:
    done = inject(text)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
