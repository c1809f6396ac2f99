"""Plans of single files: read, write, upload and download, with resume and digests.

A large upload grows a file beside the target, whose name has the digest of the content: a later
upload of the same content, also by another process, goes on where the first broke off. A download
grows a local file whose name has the entity tag of the remote file. The last step of both is a
rename, so nobody sees half a file under the final name.

A file may grow meanwhile, as logs do. A transfer takes the bytes that were there at the beginning,
and their digest tells at the end that they are still the same.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from execd_client import models
from execd_client.address import part_name, with_query
from execd_client.calls import call, decoded, json_request, opened
from execd_client.effects import Close, Cut, Emit, Local, NextChunk, Request
from execd_client.errors import (
    Conflict,
    ConnectionLost,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    TransferFailed,
    not_execd,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from execd_client.calls import Patience
    from execd_client.effects import Opened, Plan

    Progress: TypeAlias = Callable[[int, int], None]
    """Gets the bytes that are done, and the bytes of the whole."""

FILE, STAT = "/v1/fs/file", "/v1/fs/stat"
PIECE_BYTES = 256 * 1024
ONE_REQUEST_BYTES = 1 << 20
"""A file up to this size is written by one request, which is repeated as a whole."""
ATTEMPTS_WITH_ANOTHER_CONTENT = 3
MAX_LINKS = 40
"""As many as the kernel follows, path_resolution(7)."""


def file_path(path: str, **query: str | int | bool | None) -> str:
    return with_query(FILE, {"path": path, **query})


def sha256_header(digest: bytes) -> str:
    """The value of ``Repr-Digest`` (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(digest).decode()}:"


# --- facts and changes


def stat(path: str, patience: Patience, *, follow: bool = True) -> Plan[models.DescriptionReply]:
    request = Request("GET", with_query(STAT, {"path": path, "follow": follow}))
    reply = yield from call(request, patience)
    return decoded(reply, models.DescriptionReply)


def exists(path: str, patience: Patience) -> Plan[bool]:
    try:
        yield from stat(path, patience)
    except NotFound:
        return False
    return True


def listing(path: str, patience: Patience) -> Plan[list[models.EntryReply]]:
    """The entries of a directory. Raises Conflict for a file."""
    facts = yield from stat(path, patience)
    if facts.type != "directory":
        raise Conflict(f"{path} is a file, and not a directory: read the file")
    reply = yield from call(Request("GET", file_path(path)), patience)
    return decoded(reply, models.ListingReply).entries


def remove(path: str, recursive: bool, patience: Patience) -> Plan[None]:
    """Delete a file or a directory. Raises NotFound, except where a repeated request finds that the
    first request has deleted the path."""
    request = Request("DELETE", file_path(path, recursive="true" if recursive else None))
    try:
        yield from call(request, patience, may_repeat=False)
    except ConnectionLost:
        try:
            yield from call(request, patience)
        except NotFound:
            return


def change(route: str, body: dict[str, Any], patience: Patience) -> Plan[models.DescriptionReply]:
    """``mkdir``, ``move``, ``copy`` and ``chmod``. Only mkdir and chmod may be repeated."""
    may_repeat = route in ("mkdir", "chmod")
    request = json_request("POST", f"/v1/fs/{route}", body)
    return decoded(
        (yield from call(request, patience, may_repeat=may_repeat)), models.DescriptionReply
    )


def search(body: dict[str, Any], patience: Patience) -> Plan[models.SearchReply]:
    reply = yield from call(json_request("POST", "/v1/fs/search", body), patience)
    return decoded(reply, models.SearchReply)


# --- up


def write(path: str, content: bytes, mode: str | None, patience: Patience) -> Plan[None]:
    """Replace a file as a whole, atomically. A repeated request writes the same content."""
    request = Request(
        "PUT",
        file_path(path, mode=mode),
        {
            "Content-Type": "application/octet-stream",
            "Repr-Digest": sha256_header(hashlib.sha256(content).digest()),
        },
        content,
    )
    yield from call(request, patience)


def upload(
    local: Path,
    remote: str,
    mode: str | None,
    progress: Progress | None,
    patience: Patience,
    *,
    replaces_link: bool = False,
) -> Plan[None]:
    """Send a local file. A link at ``remote`` is followed, as by a write, unless
    ``replaces_link``. Raises TransferFailed when the local file changes meanwhile."""
    facts: os.stat_result = yield Local(local.stat)
    size, mode = facts.st_size, mode or f"{facts.st_mode & 0o777:04o}"
    if size <= ONE_REQUEST_BYTES:
        content = yield Local(local.read_bytes)
        yield from write(remote, content, mode, patience)
        if progress:
            progress(len(content), len(content))
        return
    remote = yield from _target(remote, replaces_link, patience)
    digest: bytes = yield Local(digest_of, local, size)
    folder, name = os.path.split(remote)
    part = os.path.join(folder, part_name(name, digest.hex()[:16]))
    sent = yield from _grow(local, part, size, digest, progress, patience)
    if sent != size:
        raise TransferFailed(f"{local} has changed during the upload")
    yield from change("chmod", {"path": part, "mode": mode}, patience)
    yield from _put_in_place(part, remote, digest, patience)


def _target(remote: str, replaces_link: bool, patience: Patience) -> Plan[str]:
    """The path at the end of the links of ``remote``, where a rename replaces what a write would
    replace. Raises Conflict for a directory."""
    target = remote
    for _ in range(MAX_LINKS):
        try:
            facts = yield from stat(target, patience, follow=False)
        except NotFound:
            return target
        if facts.type == "directory":
            raise Conflict(f"{remote} is a directory: name the file")
        if facts.type != "symlink" or replaces_link:
            return target
        target = os.path.join(os.path.dirname(target), facts.target or "")
    raise Conflict(f"{remote} is a link that leads to no file")


def _grow(
    local: Path,
    part: str,
    size: int,
    digest: bytes,
    progress: Progress | None,
    patience: Patience,
) -> Plan[int]:
    """Send the bytes that the partial file lacks, until the partial file is whole."""
    attempts = 0
    while True:
        done = yield from _size_of(part, patience)
        if done > size:
            yield from _remove_quietly(part, patience)
            done = 0
        if progress:
            progress(done, size)
        if done == size and (yield from has_digest(part, digest, patience)):
            return size
        report = _Report(progress, done, size, patience)
        request = Request(
            "PUT",
            file_path(part, offset=done),
            {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(size - done),
                "Repr-Digest": sha256_header(digest),
            },
            source=partial(_pieces, local, done, size),
            on_sent=report.add,
        )
        try:
            yield from call(request, patience, may_repeat=False)
            return size
        except (ConnectionLost, Conflict):
            # execd keeps the bytes that came. Conflict: the partial file has another size than
            # asked a moment ago, because execd was still writing what came before the cut.
            if (yield from _size_of(part, patience)) > done:
                patience.alive()
            else:
                yield from patience.after_cut(Cut("the upload was cut", was_sent=True))
        except InvalidArgument:
            # The whole would have another digest: begin anew, unless the local file has changed.
            attempts += 1
            yield from _remove_quietly(part, patience)
            if attempts >= ATTEMPTS_WITH_ANOTHER_CONTENT:
                raise
            if (yield Local(digest_of, local, size)) != digest:
                raise TransferFailed(f"{local} has changed during the upload") from None


def _put_in_place(part: str, remote: str, digest: bytes, patience: Patience) -> Plan[None]:
    """Give the whole file its name. A repeated move finds no source: then the name must have the
    content."""
    body = {"src": part, "dest": remote, "overwrite": True}
    while True:
        try:
            yield from change("move", body, patience)
            return
        except ConnectionLost as lost:
            yield from patience.after_cut(Cut(str(lost), was_sent=True))
        except NotFound:
            if (yield from has_digest(remote, digest, patience)):
                return
            raise


def _size_of(path: str, patience: Patience) -> Plan[int]:
    try:
        reply = yield from call(Request("HEAD", file_path(path)), patience)
    except NotFound:
        return 0
    return int(reply.headers["content-length"])


def has_digest(path: str, digest: bytes, patience: Patience) -> Plan[bool]:
    wants = {"Want-Repr-Digest": "sha-256=1"}
    try:
        reply = yield from call(Request("HEAD", file_path(path), wants), patience)
    except NotFound:
        return False
    return bool(reply.headers.get("repr-digest") == sha256_header(digest))


def _remove_quietly(path: str, patience: Patience) -> Plan[None]:
    try:
        yield from remove(path, False, patience)
    except NotFound:
        return


def _pieces(local: Path, start: int, end: int) -> Iterator[bytes]:
    """The bytes [start, end) of a local file, or fewer where the file has become shorter."""
    with local.open("rb") as file:
        file.seek(start)
        left = end - start
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece


def digest_of(local: Path, n_bytes: int) -> bytes:
    """The digest of the first bytes: a local file may grow meanwhile."""
    digest = hashlib.sha256()
    for piece in _pieces(local, 0, n_bytes):
        digest.update(piece)
    return digest.digest()


class _Report:
    """Adds sizes of pieces up for the caller's progress function."""

    def __init__(
        self, progress: Progress | None, done: int, total: int, patience: Patience
    ) -> None:
        self._progress, self._done, self._total = progress, done, total
        self._patience = patience

    def add(self, n_bytes: int) -> None:
        """Raises DeadlineExceeded."""
        self._patience.check()
        self._done += n_bytes
        if self._progress:
            self._progress(self._done, self._total)


# --- down


def chunks(path: str, patience: Patience) -> Plan[None]:
    """Emit the bytes of a remote file, over as many connections as needed. Raises TransferFailed
    when these bytes change meanwhile. A file may grow: the bytes come that were there first."""
    done, total, etag = 0, 0, ""
    announced: str | None = None
    digest = hashlib.sha256()
    while True:
        try:
            stream = yield from _open(path, done, total if announced else 0, etag, patience)
        except (PreconditionFailed, RangeNotSatisfiable):
            raise TransferFailed(f"{path} has changed during the download") from None
        if done == 0:
            etag, total = stream.headers.get("etag", ""), _total_bytes(stream)
            announced = stream.headers.get("repr-digest")
        try:
            while (chunk := (yield NextChunk(stream))) is not None:
                patience.alive()
                done += len(chunk)
                digest.update(chunk)
                yield Emit(chunk)
            if done < total:
                raise Cut("the body ended early", was_sent=True)
        except Cut as cut:
            yield Close(stream)
            yield from patience.after_cut(cut)
            continue
        yield Close(stream)
        if announced is not None and announced != sha256_header(digest.digest()):
            raise TransferFailed(f"{path} has another digest than announced")
        return


def _open(path: str, start: int, total: int, etag: str, patience: Patience) -> Plan[Opened]:
    """Open the file from ``start`` on. ``total``: the number of bytes with a known digest. Raises
    PreconditionFailed, RangeNotSatisfiable."""
    headers = {"Want-Repr-Digest": "sha-256=1"}
    if start:
        # If-Match instead of If-Range: the bytes before are with the caller already.
        headers |= {"Range": f"bytes={start}-", "If-Match": etag}
    try:
        stream = yield from opened(Request("GET", file_path(path), headers), patience)
    except RangeNotSatisfiable:
        # Cut after the last byte.
        stream = yield from opened(Request("HEAD", file_path(path), headers), patience)
    except PreconditionFailed:
        if start >= total:
            raise
        # Perhaps the file has only grown: then the bytes make the digest. The caller compares.
        headers = {"Range": f"bytes={start}-{total - 1}"}
        stream = yield from opened(Request("GET", file_path(path), headers), patience)
    if _is_listing(stream.headers):
        raise Conflict(f"{path} is a directory, and not a file: list the directory")
    if not stream.headers.get("content-type", "").startswith("application/octet-stream"):
        raise not_execd(stream.http_status, stream.headers)
    return stream


def _total_bytes(stream: Opened) -> int:
    if content_range := stream.headers.get("content-range"):
        return int(content_range.rpartition("/")[2])
    return int(stream.headers.get("content-length", 0))


def _is_listing(headers: Any) -> bool:
    """Files are octet streams; only a listing is JSON."""
    return str(headers.get("content-type", "")).startswith("application/json")


def read(path: str, patience: Patience) -> Plan[bytes]:
    """The bytes of a remote file. A file that changes meanwhile is read again."""
    for attempt in range(ATTEMPTS_WITH_ANOTHER_CONTENT):
        content: list[bytes] = []
        try:
            yield from to_sink(chunks(path, patience), content.append)
            return b"".join(content)
        except TransferFailed:
            if attempt == ATTEMPTS_WITH_ANOTHER_CONTENT - 1:
                raise
    raise AssertionError("unreachable")


def to_sink(plan: Plan[None], sink: Callable[[bytes], Any]) -> Plan[None]:
    """Give what a plan emits to a function instead of the caller."""
    answer: Any = None
    thrown: Cut | None = None
    while True:
        try:
            effect = plan.throw(thrown) if thrown else plan.send(answer)
        except StopIteration:
            return
        answer, thrown = None, None
        if isinstance(effect, Emit):
            sink(effect.value)
            continue
        try:
            answer = yield effect
        except Cut as cut:
            thrown = cut


def download(remote: str, local: Path, progress: Progress | None, patience: Patience) -> Plan[None]:
    """Fetch a remote file into a local file, going on where an earlier download broke off."""
    if (yield Local(local.is_dir)):
        raise IsADirectoryError(errno.EISDIR, "is a directory: name the file", str(local))
    for attempt in range(ATTEMPTS_WITH_ANOTHER_CONTENT):
        facts = yield from stat(remote, patience)
        if facts.type == "directory":
            raise Conflict(f"{remote} is a directory, and not a file")
        etag = facts.etag or ""
        tag = hashlib.sha256(f"{etag} {remote}".encode("utf-8", "replace")).hexdigest()[:16]
        part = local.with_name(part_name(local.name, tag))
        try:
            yield from _fetch(remote, part, etag, facts.size, progress, patience)
        except (PreconditionFailed, RangeNotSatisfiable, TransferFailed):
            yield Local(part.unlink, True)
            if attempt == ATTEMPTS_WITH_ANOTHER_CONTENT - 1:
                raise TransferFailed(f"{remote} changes during the download") from None
            continue
        mode = int(facts.mode, 8) & 0o777
        yield Local(_finish, part, local, mode)
        return


def _fetch(
    remote: str, part: Path, etag: str, size: int, progress: Progress | None, patience: Patience
) -> Plan[None]:
    """Grow the partial file until it is whole, and compare the digest. ``etag`` and ``size`` are
    those of the partial file; a new partial file takes those of the first reply."""
    file: IO[bytes] = yield Local(part.open, "ab")
    try:
        announced: str | None = None
        while True:
            done = file.tell()
            if progress:
                progress(done, size)
            if done > size:
                raise TransferFailed(f"{part} is longer than {remote}")
            if done == size and announced is not None:
                break
            stream = yield from _open(remote, done, size if announced else 0, etag, patience)
            if 0 < done < size and stream.http_status != 206:
                raise TransferFailed(f"{remote}: the range was not served")
            if not done:
                announced = None
                etag = stream.headers.get("etag", etag)
                size = int(stream.headers.get("content-length", size))
            if announced is None:
                announced = stream.headers.get("repr-digest", "")
            try:
                while (chunk := (yield NextChunk(stream))) is not None:
                    patience.alive()
                    yield Local(file.write, chunk)
                    done += len(chunk)
                    if progress:
                        progress(done, size)
                if done < size:
                    raise Cut("the body ended early", was_sent=True)
            except Cut as cut:
                yield Close(stream)
                yield from patience.after_cut(cut)
                continue
            yield Close(stream)
    finally:
        file.close()
    if announced:
        digest: bytes = yield Local(digest_of, part, size)
        if sha256_header(digest) != announced:
            raise TransferFailed(f"{remote} has another digest than announced")


def _finish(part: Path, local: Path, mode: int) -> None:
    part.chmod(mode)
    part.replace(local)
