"""execd into a container that runs, by the container engine's own program: the single file of
`make tree` is copied in and started beside the container's program (docs/anywhere.md)."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
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
    # podman would give the file to the container's user, who could replace it before root runs it.
    archive = ["--archive=false"] if engine == "podman" else []
    _run(engine, "cp", *archive, "-", f"{name}:/", stdin=_of_root(execd_file))
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


def _of_root(execd_file: str) -> bytes:
    """An archive with the file as root's program at PLACE."""
    content = Path(execd_file).read_bytes()
    member = tarfile.TarInfo(PLACE.lstrip("/"))  # uid and gid are 0
    member.size, member.mode = len(content), 0o755
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _run(engine: str, *words: str, stdin: bytes = b"") -> str:
    try:
        done = subprocess.run([engine, *words], input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise InjectionError(f"{engine}: no such program on this machine") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise InjectionError(f"{engine} {words[0]}: {said}")
    return done.stdout.decode(errors="replace")
