"""A daemon with dialects: the order of its ports, the init that all ports await, and the end."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from tests.test_server import ROOT, TERMINATED, start
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.test_server import Daemon

__all__ = ["start"]
EVERY_DIALECT = ("sandboxd-rest", "sandboxd-grpc", "opensandbox", "e2b-envd", "e2b-code")


def ports(daemon: Daemon) -> dict[str, int]:
    """By the title of the dialect; the daemon's own port has none."""
    return {
        line.get("dialect", ""): line["port"]
        for line in daemon.log
        if line["message"].startswith("listening")
    }


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_port_8888_is_opened_after_the_ports_of_the_dialects(start: Any) -> None:
    flags = [f"--dialect={name}=0" for name in EVERY_DIALECT]
    daemon = start(*flags, "--sessions=off")
    daemon.wait_ready()
    titles = list(ports(daemon))
    assert titles[-1] == ""
    assert len(titles) == len(EVERY_DIALECT) + 1
    assert daemon.stop() == TERMINATED


def test_every_port_awaits_the_init_that_one_dialect_takes(start: Any) -> None:
    http_dialects = [name for name in EVERY_DIALECT if name != "sandboxd-grpc"]
    daemon = start(
        *(f"--dialect={name}=0" for name in http_dialects), "--sessions=off", "--runtime-init=true"
    )
    daemon.wait_ready()
    found = ports(daemon)
    for port in found.values():
        assert ask(port, "POST", "/execute", {"command": "true", "code": "1"})[0] in (404, 503)
        assert ask(port, "GET", "/metrics")[0] == 503
    init = {"sandboxId": "s", "accessTokenHash": f"sha256:{'0' * 64}"}
    assert ask(found["OpenSandbox"], "POST", "/internal/init", init)[0] == 200
    assert ask(found[""], "POST", "/execute", {"command": "true"})[0] == 401
    assert daemon.stop() == TERMINATED


def test_the_two_ports_of_e2b_share_their_state_and_end_together(start: Any) -> None:
    daemon = start("--dialect=e2b-envd=0", "--dialect=e2b-code=0", "--sessions=off")
    daemon.wait_ready()
    found = ports(daemon)
    envd, code = found["E2B's envd"], found["E2B's code interpreter"]
    assert (ask(envd, "GET", "/health"), ask(code, "GET", "/health")) == ((204, b""), (200, b"OK"))
    assert ask(envd, "POST", "/init", {"envVars": {"SHARED": "yes"}})[0] == 204
    assert json.loads(ask(code, "GET", "/envs")[1])["SHARED"] == "yes"
    for _ in range(5):
        asked = {"path": str(daemon.folder / "base")}
        assert ask(envd, "POST", "/filesystem.Filesystem/CreateWatcher", asked)[0] == 200
    assert daemon.stop() == TERMINATED
    assert [line for line in daemon.log if line["level"] == "error"] == []


def add_wing(folder: Path, opened: str) -> None:
    """A wing that nobody has installed, for PYTHONPATH. ``opened``: the body of ``open``."""
    info = folder / "mine-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[execd.dialects]\nmine = mine_port\n")
    other = folder / "other-1.dist-info"
    other.mkdir()
    (other / "entry_points.txt").write_bytes(b"[not-utf-8]\n\xff = x\n")
    (folder / "mine_port.py").write_text(
        "import msgspec\nTITLE, SETTINGS_NAME = 'Mine', 'mine'\n\n\n"
        "class Settings(msgspec.Struct):\n    pass\n\n\n"
        "class Server:\n"
        "    async def start(self, host, port, backlog):\n        return host, 1\n\n"
        "    async def cleanup(self):\n        raise ValueError('mine')\n\n\n"
        f"def open(engine, settings, context):\n    {opened}\n"
    )


def test_a_dialect_that_cannot_be_imported_ends_the_start(start: Any, tmp_path: Path) -> None:
    add_wing(tmp_path, "import nowhere")
    daemon = start("--dialect=mine=0", PYTHONPATH=f"{tmp_path}:{ROOT}")
    wait_until(lambda: daemon.process.poll() is not None, 20)
    assert daemon.process.returncode == 1
    assert "--dialect: Mine: No module named 'nowhere'" in daemon.log_path.read_text()


def test_a_port_that_fails_to_close_changes_no_exit_code(start: Any, tmp_path: Path) -> None:
    add_wing(tmp_path, "return Server()")
    daemon = start("--dialect=mine=0", "--sessions=off", PYTHONPATH=f"{tmp_path}:{ROOT}")
    daemon.wait_ready()
    assert daemon.stop() == TERMINATED
    [error] = [line for line in daemon.log if line["level"] == "error"]
    assert error["message"] == "a port did not close in order"
    assert "ValueError: mine" in error["exception"]
