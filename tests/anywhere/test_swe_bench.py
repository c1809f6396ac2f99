"""An image like those of SWE-bench, by the SDKs of agent-sandbox and of E2B and by execctl: apply a
patch to /testbed, whose files belong to another user, and run the tests by the image's Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.anywhere.conftest import PLACES, PROGRAM, ROOTS, TREE, VOLUMES, in_image, serving
from tests.free_port import free_port
from tests.sdk.conftest import DRIVER, NEWEST, environment, installed, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.third_party
EXECCTL = Path(sys.executable).parent / "execctl"
E2B_DRIVER = Path(__file__).parents[2] / "wings/e2b/tests/sdk/drive_e2b.py"
E2B_PACKAGES = ("e2b==2.63.0", "e2b-code-interpreter==2.11.5")
OWNER = 4321
ACTIVATE = ". /opt/conda/bin/activate && cd /testbed"
PATCH = """--- a/numbers_.py
+++ b/numbers_.py
@@ -1,2 +1,2 @@
 def double(number):
-    return number + 2
+    return number * 2
"""
LINES = [
    # The git of Debian 11 (2.30) reads no variables of execd's kind (GIT_CONFIG_COUNT: 2.31).
    "git config --global --add safe.directory /testbed",
    f"{ACTIVATE} && python -B -m unittest 2>&1 | tail -1; python -B -m unittest 2>/dev/null",
    f"{ACTIVATE} && git apply fix.patch && git status --short",
    f"{ACTIVATE} && python -B -m unittest",
    f"{ACTIVATE} && git -c user.name=a -c user.email=a@b commit --quiet -am fix && git show --stat "
    "--format=%s",
    f"{ACTIVATE} && python -c 'import sys; print(sys.prefix)'",
    "exit 77",
]
FOUND = [
    [0, ""],
    [1, "FAILED (failures=1)\n"],
    [0, " M numbers_.py\n?? fix.patch\n"],
    [0, ""],
    [0, "fix\n\n numbers_.py | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n"],
    [0, "/opt/conda/envs/testbed\n"],
    [77, ""],
]


class Addresses(NamedTuple):
    execd: str
    e2b: str


@pytest.fixture(params=PLACES)
def swe_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Addresses]:
    testbed = tmp_path / "testbed"
    shutil.copytree(f"{ROOTS}/conda/testbed", testbed)
    for path in (testbed, *testbed.rglob("*")):
        os.chown(path, OWNER, OWNER)
        path.chmod(0o777 if path.is_dir() else 0o666)
    options = ("--tmpfs=/app", "--tmpfs=/state", f"--share={testbed}:/testbed", "--env=HOME=/app")
    command = in_image("conda", 1000, request.param, {"/opt/execd": str(TREE)}, *options)
    port = free_port()
    flags = ("--base-dir=/testbed", VOLUMES[1], f"--e2b-envd-port={port}")
    with serving("conda", 1000, request.param, [*command, PROGRAM], flags) as daemon:
        yield Addresses(str(daemon.client.base_url), f"http://localhost:{port}")


def by_agent_sandbox(to: Addresses) -> object:
    given = json.dumps({"file": ["fix.patch", PATCH], "lines": LINES})
    command = [environment(NEWEST), DRIVER, "given", "sync", "direct", to.execd]
    return json.loads(output_of(command, GIVEN=given))


def by_e2b(to: Addresses) -> object:
    given = json.dumps({"file": ["/testbed/fix.patch", PATCH], "lines": LINES})
    interpreter = installed("-".join(E2B_PACKAGES).replace("==", "-"), *E2B_PACKAGES)
    command = [interpreter, E2B_DRIVER, "given", "sync", to.e2b, to.e2b]
    return json.loads(output_of(command, GIVEN=given))


def by_execctl(to: Addresses) -> object:
    def execctl(*words: str, **options: str) -> list[object]:
        done = subprocess.run(
            [EXECCTL, "--url", to.execd, *words], capture_output=True, text=True, **options
        )
        return [done.returncode, done.stdout]

    assert execctl("run", "--", "tee", "fix.patch", input=PATCH) == [0, PATCH]
    return [execctl("run", "-c", line) for line in LINES]


@pytest.mark.parametrize("drive", [by_agent_sandbox, by_e2b, by_execctl])
def test_patch_is_applied_and_the_tests_run_by_the_images_python(
    swe_bench: Addresses, drive: object
) -> None:
    assert callable(drive)
    assert drive(swe_bench) == FOUND
