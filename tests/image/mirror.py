"""A mirror of package registries, on loopback: a package for pip and a package for apt."""

from __future__ import annotations

import contextlib
import email.utils
import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME, VERSION = "tabulate", "1.0"
"""The package for pip."""
PROGRAM = "jq"
"""The package for apt: one program, which prints VERSION."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path, architecture: str) -> Iterator[str]:
    """Serve a mirror; yields the address without the last slash. ``architecture``: Debian's name
    for the sandbox' machine."""
    _make_index(folder / "pypi" / "simple" / NAME)
    _make_debian(folder / "debian", architecture)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _make_index(folder: Path) -> None:
    folder.mkdir(parents=True)
    info = f"{NAME}-{VERSION}.dist-info"
    name = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{NAME}.py", f"VERSION = {VERSION!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{NAME}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')


def _make_debian(folder: Path, architecture: str) -> None:
    control = (
        f"Package: {PROGRAM}\nVersion: {VERSION}\nArchitecture: {architecture}\n"
        "Maintainer: nobody <nobody@example.org>\nDescription: a sample\n"
    )
    package = _deb(
        {"./control": (control, 0o644)},
        {f"./usr/bin/{PROGRAM}": (f"#!/bin/sh\necho {VERSION}\n", 0o755)},
    )
    pool = f"pool/{PROGRAM}_{VERSION}_{architecture}.deb"
    index = (
        f"{control}Filename: {pool}\nSize: {len(package)}\n"
        f"SHA256: {hashlib.sha256(package).hexdigest()}\n"
    )
    where = f"main/binary-{architecture}/Packages"
    release = (
        f"Suite: trixie\nCodename: trixie\nComponents: main\nArchitectures: {architecture}\n"
        f"Date: {email.utils.formatdate(usegmt=True)}\n"
        f"SHA256:\n {hashlib.sha256(index.encode()).hexdigest()} {len(index)} {where}\n"
    )
    for path, content in (
        (pool, package),
        (f"dists/trixie/{where}", index.encode()),
        ("dists/trixie/Release", release.encode()),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _deb(control: dict[str, tuple[str, int]], data: dict[str, tuple[str, int]]) -> bytes:
    """deb(5): an ar archive of a version and two tars."""
    made = b"!<arch>\n"
    for name, content in (
        ("debian-binary", b"2.0\n"),
        ("control.tar", _tar(control)),
        ("data.tar", _tar(data)),
    ):
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    return made


def _tar(files: dict[str, tuple[str, int]]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path, (text, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()
