"""Stands in for a Kubernetes cluster with agent-sandbox: takes the Sandboxes of a server of
OpenSandbox, and runs each pod as processes of this machine.

The stand-in keeps to the pod's manifest: first the init container's command, then the container's
command with the manifest's variables. Each pod has an address of 127.0.0.0/8, so the daemon can
have OpenSandbox's own port. With a launcher (EXECD_SANDBOX_LAUNCHER: ``.ci/in-image``, a runsc and
an image) both commands run in containers of the image. Otherwise there is no image:

* the init container's command runs in a folder with the two files, of which ``execd`` runs the
  daemon of this environment, and the image's variables are set here;
* a mount of the emptyDir is a folder, whose path takes the place of the mount's path in commands
  and variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPOSITORY = Path(__file__).resolve().parents[2]
BOOTSTRAP = REPOSITORY / "image" / "opensandbox" / "bootstrap.sh"
RESOURCE = "/apis/agents.x-k8s.io/v1beta1/namespaces/sandboxes/sandboxes"
LAUNCHER = os.environ.get("EXECD_SANDBOX_LAUNCHER", "").split()
PODS = "/api/v1/namespaces/sandboxes/pods"
STOP_SECONDS = 60.0


@dataclass
class Pod:
    """The processes of a pod. End with ``stop``."""

    spec: dict[str, Any]
    folder: Path
    log: str = ""
    address: str = field(
        default_factory=lambda: "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))
    )
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for volume in self.spec["volumes"]:
            assert volume["emptyDir"] == {}
            (self.folder / volume["name"]).mkdir(parents=True)
        for name in ("base", "state"):
            (self.folder / name).mkdir()
        for made in self.folder.iterdir():
            made.chmod(0o777)  # as the kubelet makes an emptyDir
        [installer] = self.spec["initContainers"]
        [container] = self.spec["containers"]
        if LAUNCHER:
            subprocess.run(self._launch(installer), check=True, cwd=REPOSITORY)
            command, variables = self._launch(container), dict(os.environ)
        else:
            subprocess.run(self._command(installer), check=True, cwd=self._files())
            command = self._command(container)
            variables = {**self._image_variables(), **self._variables(container)}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY if LAUNCHER else "/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _launch(self, container: dict[str, Any]) -> list[str]:
        """The command in a container of the image."""
        state = self.folder / "state"
        mounts = {
            self.folder / each["name"]: each["mountPath"] for each in container["volumeMounts"]
        }
        options = [f"--mount={source}:{path}" for source, path in mounts.items()]
        variables = {each["name"]: each["value"] for each in container.get("env", [])}
        variables |= {"EXECD_HOST": self.address, "EXECD_STATE_DIR": str(state)}
        options += [f"--env={name}={value}" for name, value in variables.items()]
        words = [*container["command"], *container.get("args", [])]
        return [*LAUNCHER, f"--bind={state}", *options, "--", *words]

    def _files(self) -> Path:
        """The working directory of the image, with the files for the server."""
        files = self.folder / "image"
        files.mkdir()
        shutil.copy(BOOTSTRAP, files)
        execd = files / "execd"
        execd.write_text(f'#!/bin/sh\nexec {sys.executable} -I -m execd "$@"\n')
        execd.chmod(0o755)
        return files

    def _image_variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "SANDBOX_BASE_DIR": str(self.folder / "base"),
            "EXECD_STATE_DIR": str(self.folder / "state"),
            "EXECD_HOST": self.address,
        }

    def _variables(self, container: dict[str, Any]) -> dict[str, str]:
        return {
            each["name"]: self._in_mounts(container, each["value"]) for each in container["env"]
        }

    def _command(self, container: dict[str, Any]) -> list[str]:
        words = [*container["command"], *container.get("args", [])]
        return [self._in_mounts(container, word) for word in words]

    def _in_mounts(self, container: dict[str, Any], text: str) -> str:
        for mount in container["volumeMounts"]:
            text = text.replace(mount["mountPath"], str(self.folder / mount["name"]))
        return text

    def stop(self) -> int:
        """Send SIGTERM, as the kubelet does; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        exit_code = self.process.wait(STOP_SECONDS)
        self.log = (self.folder / "log").read_text(errors="replace")
        return exit_code


class Cluster:
    """The API of Kubernetes, and the pods. End with ``stop``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self.exit_codes: list[int] = []
        self.logs: list[str] = []
        self._lock = Lock()
        self._version = 0
        self._is_stopping = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        Thread(target=self._server.serve_forever, daemon=True).start()

    def kubeconfig(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "here", "user": {"token": "none"}}],
        }

    def stop(self) -> None:
        self._is_stopping.set()
        for name in list(self.sandboxes):
            self._delete(name)
        self._server.shutdown()
        self._server.server_close()

    def _create(self, sandbox: dict[str, Any]) -> dict[str, Any]:
        name = sandbox["metadata"]["name"]
        pod = Pod(sandbox["spec"]["podTemplate"]["spec"], self.folder / name)
        pod.start()
        with self._lock:
            self._version += 1
            sandbox["metadata"] |= {
                "uid": f"uid-{name}",
                "resourceVersion": str(self._version),
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            # A container without a probe is ready when it runs.
            ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady"}
            sandbox["status"] = {
                "conditions": [ready],
                "selector": f"sandbox={name}",
                "podIPs": [pod.address],
            }
            self.sandboxes[name], self.pods[name] = sandbox, pod
        return sandbox

    def _delete(self, name: str) -> None:
        with self._lock:
            pod = self.pods.pop(name)
            self.sandboxes.pop(name)
        self.exit_codes.append(pod.stop())
        self.logs.append(pod.log)

    def _pods(self, selector: str) -> dict[str, Any]:
        name = selector.removeprefix("sandbox=")
        pods = [self.pods[name]] if name in self.pods else []
        items = [
            {
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "sandbox"}]},
                "status": {"phase": "Running", "podIP": pod.address},
            }
            for pod in pods
        ]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def _handler(cluster) -> type[BaseHTTPRequestHandler]:  # self is the handler
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                if url.path == RESOURCE and "watch" in query:
                    # Without an event: the server falls back on reading.
                    cluster._is_stopping.wait(1)
                    self.reply(200, None)
                elif url.path == RESOURCE:
                    metadata = {"resourceVersion": str(cluster._version)}
                    items = list(cluster.sandboxes.values())
                    self.reply(200, {"metadata": metadata, "items": items})
                elif url.path == PODS:
                    self.reply(200, cluster._pods(query["labelSelector"][0]))
                else:
                    self.one(url.path)

            def one(self, path: str) -> None:
                sandbox = cluster.sandboxes.get(path.removeprefix(RESOURCE + "/"))
                if sandbox is None:
                    self.reply(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
                else:
                    self.reply(200, sandbox)

            def do_POST(self) -> None:
                assert self.path.partition("?")[0] == RESOURCE, self.path
                self.reply(201, cluster._create(self.body()))

            def do_PATCH(self) -> None:
                name = self.path.partition("?")[0].removeprefix(RESOURCE + "/")
                cluster.sandboxes[name]["spec"] |= self.body()["spec"]
                self.one(urlsplit(self.path).path)

            def do_DELETE(self) -> None:
                name = self.path.partition("?")[0].removeprefix(RESOURCE + "/")
                cluster._delete(name)
                self.reply(200, {"kind": "Status", "status": "Success"})

            def body(self) -> Any:
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def reply(self, http_status: int, body: Any) -> None:
                data = b"" if body is None else json.dumps(body).encode()
                self.send_response(http_status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                with contextlib.suppress(BrokenPipeError):  # a watch that the server has ended
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """The requests are no part of a failure's report."""

        return Handler
