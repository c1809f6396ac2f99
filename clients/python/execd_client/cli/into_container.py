"""execd into a container that runs, by the container engine's own program: the single file of
`make tree` is copied in and started beside the container's program (docs/anywhere.md)."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ENGINES = ("podman", "docker")
PLACE, TREE = "/.execd", "/.execd-tree"
"""The single file and the tree that it unpacks: in the root folder, which every image has."""
_ANY_ADDRESS = ("", "0.0.0.0", "::")


class InjectionError(Exception):
    """The engine or execd refused; the message is theirs."""


def inject_into_container(
    engine: str, name: str, execd_file: str, port: int, flags: Sequence[str]
) -> str | None:
    """Start execd in the container, as the container's user; return its URL, or None if this
    machine has no way to the container's port. ``flags``: of `execd serve`.

    root unpacks the tree, so that commands of another user cannot change it.
    """
    [found] = json.loads(_run(engine, "container", "inspect", name))
    if not found["State"]["Running"]:
        raise InjectionError(f"{engine}: {name} does not run")
    has_hosts_network = found["HostConfig"]["NetworkMode"] == "host"
    _run(engine, "cp", execd_file, f"{name}:{PLACE}")
    host = "127.0.0.1" if has_hosts_network else "0.0.0.0"
    serve = ("serve", "--detach", f"--host={host}", f"--port={port}", *flags)
    _run(engine, "exec", "--user=0", name, PLACE, "--unpack", TREE)
    _run(engine, "exec", name, f"{TREE}/bin/execd", *serve)
    return url_of(found, port)


def url_of(inspected: dict[str, Any], port: int) -> str | None:
    """Return how this machine reaches a port of a container, from what `inspect` says (pure)."""
    if inspected["HostConfig"]["NetworkMode"] == "host":
        return f"http://127.0.0.1:{port}"
    network = inspected["NetworkSettings"]
    for published in (network.get("Ports") or {}).get(f"{port}/tcp") or ():
        address = published.get("HostIp") or ""
        address = "127.0.0.1" if address in _ANY_ADDRESS else address
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{published['HostPort']}"
    networks = (network.get("Networks") or {}).values()
    for address in (network.get("IPAddress"), *(each.get("IPAddress") for each in networks)):
        if address:
            return f"http://{address}:{port}"
    return None


def _run(engine: str, *words: str) -> str:
    try:
        done = subprocess.run([engine, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InjectionError(f"{engine}: no such program on this machine") from None
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise InjectionError(f"{engine} {words[0]}: {said}")
    return done.stdout
