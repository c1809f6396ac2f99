"""Local directories as tar: packing in batches, and unpacking that stays inside the target."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from execd_client.address import part_name

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_BYTES, BATCH_ENTRIES = 8 << 20, 2000


@dataclass(frozen=True)
class Entry:
    """A path below a local directory: a file, a directory or a symbolic link."""

    path: Path
    name: str
    """Relative, with slashes."""
    size: int
    """Of a file; 0 for others."""

    @property
    def is_large(self) -> bool:
        return self.size > BATCH_BYTES


def entries(folder: Path) -> list[Entry]:
    """All files, directories and links below a folder, parents first. Sockets, FIFOs and devices
    are left out. Raises OSError for a folder that is missing, is a file, or cannot be read: a
    directory is copied as a whole or not at all."""
    found = []
    for parent, directories, files in os.walk(folder, onerror=_raise):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(parent, name)
            is_file = path.is_file() and not path.is_symlink()
            if is_file or path.is_symlink() or path.is_dir():
                relative = path.relative_to(folder).as_posix()
                found.append(Entry(path, relative, path.stat().st_size if is_file else 0))
    return found


def _raise(error: OSError) -> None:
    raise error


def without_links_out(found: list[Entry], folder: Path) -> tuple[list[Entry], list[str]]:
    """The entries that a copy of the folder can have, and a sentence for each link that leads out
    of the folder."""
    kept, left_out = [], []
    top = os.path.realpath(folder)
    for entry in found:
        if entry.path.is_symlink():
            target = os.readlink(entry.path)
            if leads_out(entry.name, target) or not _is_below(os.path.realpath(entry.path), top):
                left_out.append(left_out_link(entry.name, target))
                continue
        kept.append(entry)
    return kept, left_out


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def leads_out(name: str, target: str) -> bool:
    """Whether a link of this name, relative to the copied directory, leads out of the directory.
    Absolute targets always do."""
    return target.startswith("/") or _ascends(str(PurePosixPath(name).parent / target))


def left_out_link(name: str, target: str) -> str:
    return f"{name} is left out: the link leads out of the copied directory, to {target}"


def batches(found: list[Entry]) -> Iterator[list[Entry]]:
    """The entries without the large files, in portions for one request each."""
    batch: list[Entry] = []
    n_bytes = 0
    for entry in found:
        if entry.is_large:
            continue
        if batch and (n_bytes + entry.size > BATCH_BYTES or len(batch) >= BATCH_ENTRIES):
            yield batch
            batch, n_bytes = [], 0
        batch.append(entry)
        n_bytes += entry.size
    if batch:
        yield batch


def packed(batch: list[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in batch:
            tar.add(entry.path, arcname=entry.name, recursive=False, filter=_without_owner)
    return buffer.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.islnk():
        member.type = tarfile.REGTYPE
    return member


def unpack(archive: BinaryIO, target: Path) -> list[str]:
    """Unpack an archive that may be cut off: members before the cut are whole, later members are
    missing. Returns a sentence for each link that is left out, because the link leads out of the
    target. A member that would leave the target is refused with a ValueError."""
    left_out: list[str] = []
    target.mkdir(parents=True, exist_ok=True)
    later: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for member in tar:
                path = _inside(target, member.name)
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                    later.append((path, member))
                elif member.isreg():
                    _write(tar, member, path)
                elif member.issym() and leads_out(member.name, member.linkname):
                    left_out.append(left_out_link(member.name, member.linkname))
                elif member.issym():
                    _link(member, path)
    except (tarfile.ReadError, EOFError):
        pass  # The archive is cut: the caller fetches the rest file by file.
    for path, member in reversed(later):
        path.chmod(member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
    return left_out


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None, "a regular member has content"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(part_name(path.name, "unpacked"))
    try:
        with partial.open("wb") as file:
            shutil.copyfileobj(source, file)
        if partial.stat().st_size != member.size:
            raise EOFError
        partial.chmod(member.mode & 0o777)
        os.utime(partial, (member.mtime, member.mtime))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _link(member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    path.symlink_to(member.linkname)


def _inside(target: Path, name: str) -> Path:
    """The place of a member. Raises ValueError for a name that leads out of the target, also
    through a link that an earlier member made."""
    if name.startswith("/") or _ascends(name):
        raise ValueError(f"the archive has the name {name!r}, outside of {target}")
    path = target / name
    if path != target and not path.parent.resolve().is_relative_to(target.resolve()):
        raise ValueError(f"the archive writes through a link: {name!r}")
    return path


def _ascends(name: str) -> bool:
    return os.path.normpath(name).split("/")[0] == ".."
