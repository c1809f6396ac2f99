"""``execctl inject``: manifests from stdin to stdout. No daemon is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from execd_client.cli.into_container import url_of
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


@pytest.mark.parametrize(
    ("mode", "network", "url"),
    [
        ("host", {}, "http://127.0.0.1:8888"),
        (
            "bridge",
            {
                "Ports": {"8888/tcp": [{"HostIp": "0.0.0.0", "HostPort": "99"}]},
                "IPAddress": "10.0.0.2",
            },
            "http://127.0.0.1:99",
        ),
        (
            "bridge",
            {"Ports": {"8888/tcp": [{"HostIp": "::1", "HostPort": "99"}]}},
            "http://[::1]:99",
        ),
        ("bridge", {"Ports": {"8888/tcp": None}, "IPAddress": "10.0.0.2"}, "http://10.0.0.2:8888"),
        ("own", {"Networks": {"own": {"IPAddress": "10.0.0.3"}}}, "http://10.0.0.3:8888"),
        ("none", {"Ports": None, "Networks": {"none": {"IPAddress": ""}}, "IPAddress": ""}, None),
    ],
)
def test_url_is_the_way_from_this_machine_to_the_container(
    mode: str, network: dict[str, object], url: str | None
) -> None:
    inspected = {"HostConfig": {"NetworkMode": mode}, "NetworkSettings": network}
    assert url_of(inspected, 8888) == url


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--execd-image is missing"),
        (["--podman=x"], "--execd-file is missing"),
        (["--podman=x", "--docker=y", "--execd-file", __file__], "name one container"),
        (["--podman=x", "--execd-image=i", "--execd-file", __file__], "are for pods"),
        (["--execd-image=i", "--", "--token=x"], "flags of execd are for --podman"),
        (
            ["--podman=x", "--execd-file", __file__, "--", "--port=1"],
            "--port: say it before the --",
        ),
        (["--docker=x", "--execd-file", __file__, "--", "--port", "1"], "say it before the --"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str) -> None:
    done = subprocess.run(
        [EXECCTL, "inject", *options], input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
