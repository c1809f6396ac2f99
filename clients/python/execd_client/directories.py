"""Plans of directories, up and down.

Up: small files travel in tar archives of some megabytes, each of which is one request that may be
repeated; large files travel alone and resume. Down: the whole as one archive; after a cut, and for
a directory that is partly there, file by file, and only files whose size or digest differ. (Times
do not tell: a file may be written twice within the precision of a time.)

One rule for links, both ways: a link whose target is absolute, or leads out of the copied
directory, is left out and named; other links stay links.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import quote, unquote_to_bytes

from execd_client.address import part_name, with_query
from execd_client.calls import call, opened
from execd_client.effects import Close, Cut, Local, NextChunk, Request
from execd_client.errors import Conflict, ConnectionLost, NotFound, TransferFailed
from execd_client.tar_files import (
    batches,
    entries,
    leads_out,
    left_out_link,
    packed,
    unpack,
    without_links_out,
)
from execd_client.transfers import (
    change,
    digest_of,
    download,
    exists,
    has_digest,
    listing,
    sha256_header,
    stat,
    upload,
)

if TYPE_CHECKING:
    from pathlib import Path

    from execd_client.calls import Patience
    from execd_client.effects import Plan
    from execd_client.models import EntryReply
    from execd_client.tar_files import Entry
    from execd_client.transfers import Progress

ARCHIVE = "/v1/archive"


def upload_dir(
    local: Path, remote: str, progress: Progress | None, patience: Patience
) -> Plan[list[str]]:
    """Merge a local directory into a remote one. A new remote directory gets its name at the end;
    until then the directory is a part beside the name, with which a repeat of the upload goes on.

    Returns a sentence for each link that is left out, because the link leads out of the directory.
    Raises Conflict for any other link, where the remote directory is outside of the base dir.
    """
    everything: list[Entry] = yield Local(entries, local)
    found, left_out = yield Local(without_links_out, everything, local)
    report = _Sum(progress, sum(entry.size for entry in found))
    if (yield from exists(remote, patience)):
        yield from change("mkdir", {"path": remote}, patience)
        yield from _send(found, remote, report, patience)
        return cast("list[str]", left_out)
    folder, name = os.path.split(remote.rstrip("/"))
    tag: str = yield Local(_tag, found)
    part = os.path.join(folder, part_name(name, tag))
    lacking = yield from _lacking(found, part, report, patience)
    yield from change("mkdir", {"path": part}, patience)
    yield from _send(lacking, part, report, patience)
    yield from _put_in_place(part, remote.rstrip("/"), patience)
    return cast("list[str]", left_out)


def _tag(found: list[Entry]) -> str:
    """What a part will hold: a tree with other files, sizes or times gets another part."""
    facts = []
    for entry in found:
        info = entry.path.lstat()
        facts.append((entry.name, entry.size, info.st_mode, info.st_mtime_ns))
    return hashlib.sha256(ascii(facts).encode()).hexdigest()[:16]


def _lacking(found: list[Entry], part: str, report: _Sum, patience: Patience) -> Plan[list[Entry]]:
    """The entries without the files that an earlier upload has sent. execd gives a file its name
    with the last byte, so the size tells. Directories and links are sent again."""
    if not (yield from exists(part, patience)):
        return found
    folders = [e.name for e in found if e.path.is_dir() and not e.path.is_symlink()]
    sizes: dict[str, int] = {}
    for folder in ["", *folders]:
        try:
            there = yield from listing(os.path.join(part, folder), patience)
        except (NotFound, Conflict):
            continue
        sizes |= {os.path.join(folder, entry_name(e)): e.size for e in there if e.type == "file"}
    lacking = []
    for entry in found:
        is_file = entry.path.is_file() and not entry.path.is_symlink()
        if not is_file or sizes.get(entry.name) != entry.size:
            lacking.append(entry)
    report.add(sum(entry.size for entry in found) - sum(entry.size for entry in lacking))
    return lacking


def _send(found: list[Entry], remote: str, report: _Sum, patience: Patience) -> Plan[None]:
    route = yield from _archive_route(remote, patience)
    if route is None:
        yield from _upload_one_by_one(found, remote, report, patience)
        return
    for batch in batches(found):
        content: bytes = yield Local(packed, batch)
        headers = {
            "Content-Type": "application/x-tar",
            "Content-Digest": sha256_header(hashlib.sha256(content).digest()),
        }
        request = Request("PUT", with_query(route, {"format": "tar"}), headers, content)
        yield from call(request, patience)
        patience.alive()
        report.add(sum(entry.size for entry in batch))
    for entry in found:
        if entry.is_large:
            # as an archive does with a link in the place of a small file
            yield from _upload_file(entry, remote, report, patience, replaces_link=True)


def _put_in_place(part: str, remote: str, patience: Patience) -> Plan[None]:
    """Give the whole directory its name. A repeated move finds no source."""
    body = {"src": part, "dest": remote, "overwrite": False}
    while True:
        try:
            yield from change("move", body, patience)
            return
        except ConnectionLost as lost:
            yield from patience.after_cut(Cut(str(lost), was_sent=True))
            if not (yield from exists(part, patience)) and (yield from exists(remote, patience)):
                return


def _upload_one_by_one(
    found: list[Entry], remote: str, report: _Sum, patience: Patience
) -> Plan[None]:
    for entry in found:
        if entry.path.is_symlink():
            raise Conflict(
                f"{entry.path} is a link, and links reach directories below the base dir only: "
                "choose a remote directory below the base dir"
            )
        if entry.path.is_dir():
            yield from change("mkdir", {"path": os.path.join(remote, entry.name)}, patience)
        else:
            yield from _upload_file(entry, remote, report, patience, replaces_link=False)


def _upload_file(
    entry: Entry, remote: str, report: _Sum, patience: Patience, *, replaces_link: bool
) -> Plan[None]:
    target = os.path.join(remote, entry.name)
    yield from upload(
        entry.path, target, None, report.of_one_file, patience, replaces_link=replaces_link
    )
    report.add(entry.size)


def download_dir(
    remote: str, local: Path, progress: Progress | None, patience: Patience
) -> Plan[list[str]]:
    """Merge a remote directory into a local one. A new local directory gets its name at the end;
    until then the directory is a part beside the name, with which a repeat of the download goes on.

    Returns a sentence for each link that is left out, because the link leads out of the directory.
    """
    facts = yield from stat(remote, patience)
    if facts.type != "directory":
        raise Conflict(f"{remote} is a file, and not a directory: download the file")
    route = yield from _archive_route(remote, patience)
    if (yield Local(os.path.lexists, local)):
        tree = _Tree(_Sum(progress, 0), is_part=False)
        spool: IO[bytes] = yield Local(tempfile.TemporaryFile)
        with spool:
            yield from _fetch(remote, route, local, spool, tree, patience)
        return tree.left_out
    tag = hashlib.sha256(ascii(facts.path).encode()).hexdigest()[:16]
    part = local.with_name(part_name(local.name, tag))
    kept = local.with_name(part_name(local.name, f"{tag}.tar"))
    tree = _Tree(_Sum(progress, 0), is_part=True)
    yield Local(partial(part.mkdir, parents=True, exist_ok=True))
    with (yield Local(kept.open, "a+b")) as spool:
        if (yield Local(spool.tell)):
            # An earlier download was killed during the archive.
            yield Local(_unpack_spool, spool, part, tree)
        yield from _fetch(remote, route, part, spool, tree, patience)
    yield Local(kept.unlink)
    yield Local(part.rename, local)
    return tree.left_out


def _fetch(
    remote: str,
    route: str | None,
    local: Path,
    spool: IO[bytes],
    tree: _Tree,
    patience: Patience,
) -> Plan[None]:
    is_empty = not (yield Local(os.listdir, local))
    if is_empty and route is not None:
        is_whole = yield from _fetch_archive(route, local, spool, tree, patience)
        if is_whole:
            return
    yield from _download_tree(remote, local, "", tree, patience)


def _fetch_archive(
    route: str, local: Path, spool: IO[bytes], tree: _Tree, patience: Patience
) -> Plan[bool]:
    """Fetch and unpack the archive. False: the connection broke; what came is unpacked."""
    stream = yield from opened(Request("GET", with_query(route, {"format": "tar"})), patience)
    done, is_whole = 0, True
    yield Local(spool.truncate, 0)
    try:
        while (chunk := (yield NextChunk(stream))) is not None:
            patience.alive()
            yield Local(spool.write, chunk)
            done += len(chunk)
            tree.report.total = max(done, int(stream.headers.get("content-length", 0)))
            tree.report.of_one_file(done, 0)
    except Cut as cut:
        is_whole = False
        yield from patience.after_cut(cut)
    yield Close(stream)
    yield Local(_unpack_spool, spool, local, tree)
    tree.report.total = 0
    return is_whole


@dataclass
class _Tree:
    """A directory that comes."""

    report: _Sum
    is_part: bool
    """The local directory is a part: what the remote directory does not have is removed."""
    left_out: list[str] = field(default_factory=list)


def _unpack_spool(spool: IO[bytes], local: Path, tree: _Tree) -> None:
    spool.flush()
    spool.seek(0)
    try:
        left_out = unpack(spool, local)  # type: ignore[arg-type]
    except ValueError as error:
        raise TransferFailed(str(error)) from None
    finally:
        spool.truncate(0)
    tree.left_out += left_out


def _download_tree(
    remote: str, local: Path, inside: str, tree: _Tree, patience: Patience
) -> Plan[None]:
    """``inside``: the path below the copied directory; empty, or with a slash at the end."""
    there = yield from listing(remote, patience)
    for entry in there:
        name = entry_name(entry)
        source, target = os.path.join(remote, name), local / name
        modified = datetime.fromisoformat(entry.modified_at).timestamp()
        is_directory = entry.type == "directory"
        tree.report.total += 0 if is_directory else entry.size
        if not is_directory and (yield Local(_has_size, target, entry.size)):
            digest: bytes = yield Local(digest_of, target, entry.size)
            if (yield from has_digest(source, digest, patience)):
                yield Local(_take_over, target, entry.mode, modified)
                tree.report.add(entry.size)
                continue
        facts = yield from stat(source, patience, follow=False)
        if facts.type == "symlink":
            # Followed, a link to a parent would never end.
            yield Local(_link, target, inside + name, facts.target or "", tree)
        elif is_directory:
            yield Local(partial(target.mkdir, exist_ok=True))
            yield from _download_tree(source, target, f"{inside}{name}/", tree, patience)
        elif facts.type == "file":
            yield from download(source, target, tree.report.of_one_file, patience)
            yield Local(os.utime, target, (modified, modified))
            tree.report.add(entry.size)
    if tree.is_part:
        yield Local(_remove_others, local, {entry_name(entry) for entry in there})


def entry_name(entry: EntryReply) -> str:
    """The name as ``os.fsdecode`` gives it. Raises TransferFailed for a name that is a path: the
    other side may not choose where files are written."""
    encoded = entry.name_percent_encoded
    name = entry.name if encoded is None else os.fsdecode(unquote_to_bytes(encoded))
    if "/" in name or name in ("", ".", ".."):
        raise TransferFailed(f"the listing has the name {name!r}")
    return name


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove what the remote directory does not have any more, and parts of older files."""
    for path in list(folder.iterdir()):
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _link(local: Path, name: str, target: str, tree: _Tree) -> None:
    """Make a link anew. A link that leads out of the copied directory is left out, as in an
    archive."""
    if leads_out(name, target):
        tree.left_out.append(left_out_link(name, target))
        return
    if local.is_symlink() or local.exists():
        local.unlink()
    local.symlink_to(target)


def _has_size(local: Path, size: int) -> bool:
    try:
        found = local.lstat()
    except OSError:
        return False
    return S_ISREG(found.st_mode) and found.st_size == size


def _take_over(local: Path, mode: str, modified: float) -> None:
    local.chmod(int(mode, 8))
    os.utime(local, (modified, modified))


def _archive_route(remote: str, patience: Patience) -> Plan[str | None]:
    """The route of the archive of a directory; None outside of the base dir."""
    base = (yield from stat(".", patience)).path
    relative = os.path.relpath(os.path.normpath(os.path.join(base, remote)), base)
    if relative == ".":
        return ARCHIVE
    return None if relative.split("/")[0] == ".." else f"{ARCHIVE}/{quote(os.fsencode(relative))}"


class _Sum:
    """The progress of many files as one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self.total = progress, 0, total

    def add(self, n_bytes: int) -> None:
        self._done += n_bytes
        self.of_one_file(0, 0)

    def of_one_file(self, done: int, _total: int) -> None:
        if self._progress:
            self._progress(self._done + done, self.total)
