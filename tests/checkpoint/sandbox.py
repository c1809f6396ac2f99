"""A sandbox of gVisor with a network of its own, which runsc can freeze and restore.

runsc cannot freeze a sandbox with the host's network, and a build machine allows no other network
with a way in. So the sandbox has its loopback alone, and a program inside (`runsc exec`) asks the
daemon.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

IN_GVISOR = Path(__file__).parents[2] / ".ci" / "in-gvisor"
UID, PORT = 1000, 8888
START_SECONDS = 60.0
ASK = """
import json, sys, urllib.request, urllib.error
method, path, body, token = sys.argv[1:]
request = urllib.request.Request(
    "http://127.0.0.1:8888" + path, method=method, data=body.encode() or None,
    headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
)
try:
    with urllib.request.urlopen(request, timeout=60) as reply:
        found = reply.status, reply.read().decode()
except urllib.error.HTTPError as error:
    found = error.code, error.read().decode()
except OSError as error:
    found = 0, str(error)
print(json.dumps(found))
"""
"""Asks the daemon once, and prints the HTTP status and the body; status 0: no reply."""


def _in_gvisor() -> ModuleType:
    """The script that shapes CI's sandboxes, as a module."""
    loader = importlib.machinery.SourceFileLoader("in_gvisor", str(IN_GVISOR))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Sandbox:
    """A running sandbox. ``kill`` ends it."""

    def __init__(self, folder: Path, name: str, cgroup: Path | None = None) -> None:
        """``cgroup``: the directory of the memory cgroup that holds the sandbox and what the host
        runs for it, as in a pod."""
        self.name = name
        self.token = ""
        """Presented with each question."""
        self._cgroup = cgroup
        self._limit_bytes = 0
        self._bundle = folder / "bundle"
        self._runsc = [
            *(os.environ["RUNSC"], "--network=none", "--platform=systrap"),
            *("--root", str(folder / "state")),
            *(["--ignore-cgroups"] if cgroup else []),
        ]
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(
        cls,
        folder: Path,
        *flags: str,
        cgroup: Path | None = None,
        limit_bytes: int = 0,
        env: Sequence[str] = (),
    ) -> Sandbox:
        """Start a daemon with these flags and variables, in a sandbox of its own. ``limit_bytes``:
        the memory limit of the container, for which runsc makes a cgroup."""
        made = cls(folder, "original", cgroup)
        made._limit_bytes = limit_bytes
        made._bundle.mkdir()
        made._describe(flags, env)
        made._begin("run")
        return made

    def _describe(self, flags: Sequence[str], env: Sequence[str]) -> None:
        """Write the specification of the container."""
        self._flags = flags
        daemon = shlex.split(os.environ["EXECD_CONFORMANCE_COMMAND"])
        places = ["--base-dir", "/tmp/base", "--state-dir", "/tmp/state"]
        command = [*daemon, "--port", str(PORT), *places, *flags]
        words = [f"--uid={UID}", *(f"--env={each}" for each in ("HOME=/tmp", *env)), "--", *command]
        in_gvisor = _in_gvisor()
        config = in_gvisor.bundle_config(in_gvisor.arguments(words))
        if self._limit_bytes:
            config["linux"] |= {
                "cgroupsPath": f"/execd-test-{os.getpid()}-{self.name}",
                "resources": {"memory": {"limit": self._limit_bytes}},
            }
        (self._bundle / "config.json").write_text(json.dumps(config))

    def restored(self, image: Path, name: str, *, env: Sequence[str] = ()) -> Sandbox:
        """Restore another sandbox, with these variables, from the image of a checkpoint. The first
        has ended."""
        made = Sandbox(self._bundle.parent, name)
        made._describe(self._flags, env)
        made._begin("restore", "--image-path", str(image))
        return made

    def _begin(self, *how: str) -> None:
        command = [*self._runsc, *how, "--bundle", str(self._bundle), self.name]
        if self._cgroup is not None:
            enter = 'echo $$ > "$0" && exec "$@"'
            command = ["sh", "-c", enter, str(self._cgroup / "cgroup.procs"), *command]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self, *arguments: str) -> str:
        """Run runsc with these arguments. Fail with the words of runsc."""
        done = subprocess.run(
            [*self._runsc, *arguments], capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr, self.log)
        return done.stdout

    def pause(self, seconds: float) -> None:
        self.command("pause", self.name)
        time.sleep(seconds)  # the length of the pause is the subject
        self.command("resume", self.name)

    def checkpoint(self, image: Path, *, goes_on: bool) -> None:
        """Write an image of the sandbox. ``goes_on``: the sandbox lives on afterwards."""
        options = ["--leave-running"] if goes_on else []
        self.command("checkpoint", *options, "--image-path", str(image), self.name)

    def ask(self, method: str, path: str, **fields: Any) -> Any:
        """Ask the daemon. Return the JSON of the reply; fail for an error."""
        http_status, body = self.reply(method, path, json.dumps(fields) if fields else "")
        assert 200 <= http_status < 300, (path, http_status, body, self.log)
        return json.loads(body) if body else None

    def reply(self, method: str, path: str, body: str = "") -> tuple[int, str]:
        """Ask the daemon. Return the HTTP status and the body."""
        asking = ["exec", self.name, "python3", "-c", ASK, method, path, body, self.token]
        http_status, text = json.loads(self.command(*asking))
        return http_status, text

    def run_inside(self, program: str) -> str:
        """Run a Python program beside the daemon. Return the output."""
        return self.command("exec", self.name, "python3", "-c", program)

    @property
    def tells_restores(self) -> bool:
        """Whether this release has the files below /proc/gvisor."""
        return self.run_inside("import os; print(os.path.isdir('/proc/gvisor'))") == "True\n"

    def read(self, path: str) -> str:
        """The text that the daemon has at ``path``."""
        http_status, text = self.reply("GET", path)
        assert http_status == 200, (path, text)
        return text

    def output(self, execution_id: str) -> list[str]:
        """The lines of a command's standard output so far."""
        return self.read(f"/v1/executions/{execution_id}/stdout").splitlines()

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            with contextlib.suppress(AssertionError, json.JSONDecodeError):
                return self.reply("GET", "/readyz")[0] == 200
            return False

        wait_until(is_ready, START_SECONDS)

    @property
    def log(self) -> str:
        return self._log.read_bytes().decode("utf-8", "replace").replace("\0", "")[-5000:]

    def kill(self) -> None:
        subprocess.run(
            [*self._runsc, "delete", "--force", self.name], check=False, capture_output=True
        )
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        # As in .ci/in-gvisor: pytest cannot remove the folder below a mount.
        state = self._bundle.parent / "state"
        subprocess.run(["umount", state / "null-netns"], check=False, capture_output=True)


@contextlib.contextmanager
def ended(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Kill the sandbox at the end of the block."""
    try:
        yield sandbox
    finally:
        sandbox.kill()
