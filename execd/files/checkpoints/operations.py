"""The operations on checkpoints: make, compare, restore, verify. Blocking, one at a time.

Every call runs on a thread that acts as the user of commands. ``Own`` runs the steps that need the
daemon's own rights: those in the daemon's folder.

A reset's restore and verification scan the tree twice, and read a content twice only where the
restore has changed something. What the restore's scan has read counts as long as ctime stays: user
code has ended before, so nobody is left who could change a content behind ctime. (If a process
lives on, the reset is not clean anyway.) No kind of restore believes what it has written itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from execd.errors import Conflict, ExecdError, InvalidArgument, NoSpace
from execd.files.checkpoints.compare import compare
from execd.files.checkpoints.directories import Directories
from execd.files.checkpoints.entries import (
    Checkpoint,
    Manifest,
    StoredCheckpoint,
    TreeChange,
    TreeEntry,
    Trouble,
    full_path,
)
from execd.files.checkpoints.restore import Restored, RootRestore
from execd.files.checkpoints.root_places import RootPlace, open_again, open_places
from execd.files.checkpoints.scan import (
    READ_FILE,
    Cleared,
    Scanning,
    begin,
    digest_of,
    is_told_by_ctime,
    scan,
)
from execd.files.checkpoints.shelf import Shelf, copy_content, encode, needed_bytes, used_bytes
from execd.files.glob import compile_glob
from execd.files.paths import blame, decode
from execd.files.resolve import held, open_and_stat
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from execd.files.checkpoints.crew import Crew, Place
    from execd.files.root import Root

T = TypeVar("T")
How = Literal["auto", "content", "stat"]
"""How a scan finds changed files: by their content, or by inode, size and ctime, which no program
can set. ``auto``: by ctime where the file system tells every write by it."""

MAX_DIFFERENCES = 1000
MAX_NAMED = 3
"""Paths in the message of a refusal."""
MAX_STALE_BYTES, MAX_STALE_FILES = 32 << 20, 500
"""Files that every verification hashes although they are as before, until the checkpoint gets
their new inodes and ctimes."""


class Own(Protocol):
    """Runs a call with the daemon's own rights."""

    def __call__(self, call: Callable[[], T]) -> T: ...


class Verified(msgspec.Struct, frozen=True):
    """The outcome of a verification."""

    verified_by: Literal["content", "stat"]
    """``stat``: of a file whose ctime is as in the checkpoint, nobody has read the content."""
    differences: list[Trouble]
    """The first ``MAX_DIFFERENCES``."""
    n_differences: int


class Operations:
    """The blocking half of ``engine.checkpoints``."""

    def __init__(self, root: Root, own: Own, crew: Crew, shelf: Callable[[], Shelf]) -> None:
        """``root``: with paths as user code sees them. ``shelf``: called by ``own`` only."""
        self._root = root
        self._own = own
        self._crew = crew
        self._shelf = shelf

    def create(
        self,
        checkpoint_id: str,
        roots: Sequence[str],
        watched: Sequence[str],
        exclude: Sequence[str],
        reserve: Callable[[int], int],
        stop: Callable[[], bool],
    ) -> Checkpoint:
        """Make a checkpoint. ``reserve`` takes the needed bytes, and returns those that it has not
        got; then nothing was taken.

        Raises InvalidArgument and NotFound, which name the field; Conflict (a file cannot be read,
        or changes meanwhile); PayloadTooLarge (too many files); NoSpace.
        """
        created_at, began_at = time.time(), time.monotonic()
        how = self._scanning(exclude, stop)._replace(skipped_prefix=TEMPORARY_PREFIX)
        with contextlib.ExitStack() as stack:
            places = open_places(self._root, roots, watched, stack)
            manifests = [self._scan_new(place, how) for place in places]
            kept = [each.facts for each in manifests if each.has_content]
            compared = [each.facts for each in manifests if not each.has_content]
            facts = Checkpoint(checkpoint_id, created_at, kept, compared, list(exclude), 0.0)
            self._keep_all(places, StoredCheckpoint(facts, manifests), reserve, stop)
            facts = replace(facts, duration_seconds=time.monotonic() - began_at)
            self._save(StoredCheckpoint(facts, manifests))
        return facts

    def _save(self, stored: StoredCheckpoint) -> None:
        """Raises what ``blame`` returns."""
        data = encode(stored)
        try:
            self._own(lambda: self._shelf().save(stored.facts.id, data))
        except OSError as error:
            raise blame(error, "the state dir") from error

    def _scan_new(self, place: RootPlace, how: Scanning) -> Manifest:
        """Scan what is believed later on. Raises Conflict, PayloadTooLarge."""
        began = self._begin(place.directory)
        how = how._replace(is_kept=True)
        manifest = scan(place.directory, place.path, how, has_content=place.has_content)
        return Manifest(place.path, place.has_content, _without_troubles(manifest), *began)

    def _begin(self, directory: int) -> tuple[int, bool]:
        """Return ``began_ns`` and ``is_told_by_ctime`` of a manifest."""
        began_ns, is_told = 0, False
        with contextlib.suppress(OSError):
            began_ns = begin(directory)
            is_told = self._own(partial(is_told_by_ctime, directory))
        return began_ns, is_told

    def _keep_all(
        self,
        places: Sequence[RootPlace],
        stored: StoredCheckpoint,
        reserve: Callable[[int], int],
        stop: Callable[[], bool],
    ) -> None:
        """Keep the contents that are not kept yet. Raises NoSpace, Conflict."""
        wanted: list[tuple[RootPlace, list[TreeEntry]]] = []
        seen: set[bytes] = set()
        n_bytes = needed_bytes(len(encode(stored)))
        for place, manifest in zip(places, stored.manifests, strict=True):
            if manifest.has_content:
                missing = self._own(partial(_missing, self._shelf, manifest, seen))
                wanted.append((place, missing))
                n_bytes += _needed_bytes_of(place, missing)
        lacking_bytes = reserve(n_bytes)
        if lacking_bytes:
            raise NoSpace(
                f"the checkpoint needs {n_bytes} bytes of the state dir, and --checkpoint-bytes "
                f"and --state-bytes leave {n_bytes - lacking_bytes}; delete a checkpoint, exclude "
                "files, or enlarge both",
                needed_bytes=n_bytes,
                available_bytes=n_bytes - lacking_bytes,
            )
        for place, entries in wanted:
            try:
                self._crew.share(place.directory, entries, partial(self._keep, place.path), stop)
            except OSError as error:
                raise blame(error, f"checkpoint of {place.path!r}") from error

    def _keep(self, root: str, place: Place, entry: TreeEntry) -> None:
        """Keep the content of a scanned file. Raises OSError, Conflict (changed meanwhile)."""
        shelf = self._own(self._shelf)
        parent, name = place.directories.open_parent(entry.path)
        with held(os.open(name, READ_FILE, dir_fd=parent)) as source:
            draft, target = self._own(shelf.begin_content)
            with held(target):
                copy_content(source, target, place.stop)
                if digest_of(place, target) != entry.digest:
                    raise _changed_meanwhile(root, entry)
                self._own(partial(shelf.finish_content, draft, entry.digest))

    def changes(self, stored: StoredCheckpoint, stop: Callable[[], bool]) -> list[TreeChange]:
        """Return all changes since. Raises PayloadTooLarge, Conflict, and what ``blame``
        returns."""
        how = self._scanning(stored.facts.exclude, stop)
        changes: list[TreeChange] = []
        for manifest in stored.manifests:
            new = self._scan_again(manifest, how, _former(manifest, "auto"))
            changes += compare(manifest, new)
        return changes

    def restore(self, stored: StoredCheckpoint, how: How, stop: Callable[[], bool]) -> Restored:
        """Make the roots as they were. Raises nothing for a single file."""
        done, n_entries = Restored(), 0
        scanning = self._scanning(stored.facts.exclude, stop)
        for manifest in stored.manifests:
            if manifest.has_content:
                cleared = Cleared()
                try:
                    self._restore_root(manifest, scanning._replace(cleared=cleared), how, done)
                    n_entries += len(manifest.entries)
                except ExecdError as error:
                    done.troubles.append(Trouble(manifest.root, error.message))
                done.removed += cleared.n_removed
        done.unchanged = max(0, n_entries - done.restored)
        return done

    def _restore_root(self, manifest: Manifest, how: Scanning, by: How, done: Restored) -> None:
        """Raises ExecdError."""
        shelf = self._own(self._shelf)
        with held(open_again(manifest.root, makes=True)) as top:
            began_ns = time.time_ns()
            new = scan(top, manifest.root, how, _former(manifest, by), wanted=manifest)
            done.seen[manifest.root] = replace(new, began_ns=began_ns)
            changes = compare(manifest, new, setter=os.geteuid())

            def open_content(digest: bytes) -> int:
                return self._own(partial(shelf.open_content, digest))

            RootRestore(manifest, top, how, open_content, new.holders, done).undo(changes)

    def verify(
        self,
        stored: StoredCheckpoint,
        how: How,
        stop: Callable[[], bool],
        seen: Mapping[str, Manifest] | None = None,
    ) -> Verified:
        """Compare all directories with the checkpoint, and believe nothing else. ``seen``: what a
        restore has read after the end of user code."""
        scanning = self._scanning(stored.facts.exclude, stop)
        differences: list[Trouble] = []
        n_differences, is_by_content, is_stale = 0, True, False
        for manifest in stored.manifests:
            is_by_content = is_by_content and _former(manifest, how) is None
            try:
                former = (seen or {}).get(manifest.root) or _former(manifest, how)
                new = self._scan_again(manifest, scanning, former, wanted=manifest)
            except ExecdError as error:
                found = [Trouble(manifest.root, error.message)]
            else:
                found = [_difference(each) for each in compare(manifest, new, setter=os.geteuid())]
                is_stale = is_stale or _is_stale(manifest, new, how)
            n_differences += len(found)
            differences += found[: MAX_DIFFERENCES - len(differences)]
        if is_stale and not n_differences:
            self._renew(stored, scanning, how)
        return Verified("content" if is_by_content else "stat", differences, n_differences)

    def _renew(self, stored: StoredCheckpoint, how: Scanning, by: How) -> None:
        """Give the checkpoint the inodes and ctimes of files that were restored, or else each scan
        hashes all files that were ever restored. The scan begins as that of a new checkpoint,
        since a digest is believed for as long as ctime stays."""
        manifests: list[Manifest] = []
        try:
            for old in stored.manifests:
                with held(open_again(old.root)) as top:
                    began = self._begin(top)
                new = self._scan_again(old, how._replace(is_kept=True), _former(old, by))
                if compare(old, new, setter=os.geteuid()):
                    return
                entries = _without_troubles(new)
                manifests.append(Manifest(old.root, old.has_content, entries, *began))
            self._save(StoredCheckpoint(stored.facts, manifests))
        except (ExecdError, OSError):
            return  # the old manifest is as true as before

    def open_new(self, root: str, entry: TreeEntry) -> int:
        """Open a file as it was scanned; the caller closes it. Raises ExecdError, OSError."""
        with held(open_again(root)) as top, Directories(top) as directories:
            parent, name = directories.open_parent(entry.path)
            fd, info = open_and_stat(name, READ_FILE, parent)
        facts = (info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns)
        if facts != (entry.device, entry.inode, entry.size_bytes, entry.changed_ns):
            os.close(fd)
            raise _changed_meanwhile(root, entry)
        return fd

    def _scan_again(
        self,
        manifest: Manifest,
        how: Scanning,
        former: Manifest | None,
        wanted: Manifest | None = None,
    ) -> Manifest:
        """Raises ExecdError."""
        is_kept = manifest.has_content
        with held(open_again(manifest.root)) as top:
            return scan(top, manifest.root, how, former, has_content=is_kept, wanted=wanted)

    def _scanning(self, exclude: Sequence[str], stop: Callable[[], bool]) -> Scanning:
        forbidden = self._own(self._root.forbidden)
        return Scanning(forbidden, self._crew, stop, excluding(exclude))


def _former(manifest: Manifest, how: How) -> Manifest | None:
    """Return the manifest that a scan may take entries from."""
    if not manifest.began_ns or how == "content":
        return None
    return manifest if how == "stat" or manifest.is_told_by_ctime else None


def _is_stale(manifest: Manifest, new: Manifest, by: How) -> bool:
    """Whether many files are as in the checkpoint, and ctime cannot vouch for them. ``new``: a scan
    that has found no difference."""
    if _former(manifest, by) is None:
        return False
    known = {entry.path: entry.changed_ns for entry in manifest.entries}
    sizes = [
        entry.size_bytes
        for entry in new.entries
        if entry.type == "file" and entry.changed_ns != known.get(entry.path)
    ]
    return len(sizes) > MAX_STALE_FILES or sum(sizes) > MAX_STALE_BYTES


def excluding(patterns: Sequence[str]) -> Callable[[bytes], bool] | None:
    """Return whether a path below a root is left out. Raises InvalidArgument."""
    if not patterns:
        return None
    matchers = []
    for number, pattern in enumerate(patterns):
        try:
            matchers.append(compile_glob(pattern).matches)
        except InvalidArgument as error:
            field = f"exclude[{number}]"
            rule = error.message.removeprefix("glob: ")
            raise InvalidArgument(f"{field}: {rule}", field=field) from None

    def excludes(path: bytes) -> bool:
        names = decode(path).split("/")
        return any(matches(names) for matches in matchers)

    return excludes


def _missing(shelf: Callable[[], Shelf], manifest: Manifest, seen: set[bytes]) -> list[TreeEntry]:
    """Return a file for each content that is not kept yet. Notes the digests in ``seen``."""
    missing = []
    for entry in manifest.entries:
        if entry.digest and entry.digest not in seen:
            seen.add(entry.digest)
            if not shelf().has_content(entry.digest):
                missing.append(entry)
    return missing


def _needed_bytes_of(place: RootPlace, entries: Sequence[TreeEntry]) -> int:
    """Return the room that the contents of scanned files take. Raises what ``blame`` returns."""
    n_bytes = 0
    with Directories(place.directory) as directories:
        for entry in entries:
            try:
                parent, name = directories.open_parent(entry.path)
                n_bytes += used_bytes(os.stat(name, dir_fd=parent, follow_symlinks=False))
            except OSError:
                raise _changed_meanwhile(place.path, entry) from None
    return n_bytes


def _changed_meanwhile(root: str, entry: TreeEntry) -> Conflict:
    return Conflict(
        f"{full_path(root, entry.path)!r} changed meanwhile; repeat the request, or exclude the "
        "file"
    )


def _without_troubles(manifest: Manifest) -> list[TreeEntry]:
    """Return the entries, and refuse what could never be verified. A watched file that only other
    users can read stays: its ctime tells whether it changed. So does a watched directory in which
    user code can reach nothing. Raises Conflict."""
    entries: list[TreeEntry] = []
    troubles: list[TreeEntry] = []
    for entry in manifest.entries:
        if not entry.trouble:
            entries.append(entry)
        elif not manifest.has_content and (entry.type == "file" or entry.is_closed):
            entries.append(replace(entry, trouble=""))
        else:
            troubles.append(entry)
    if troubles:
        named = ", ".join(
            f"{full_path(manifest.root, entry.path)!r}: {entry.trouble}"
            for entry in troubles[:MAX_NAMED]
        )
        more = f", and {len(troubles) - MAX_NAMED} more" if len(troubles) > MAX_NAMED else ""
        raise Conflict(f"{named}{more}; leave these paths out by exclude, or repeat the request")
    return entries


def _difference(change: TreeChange) -> Trouble:
    trouble = change.new.trouble if change.new is not None else ""
    message = f"{change.kind}: {trouble}" if trouble else change.kind
    return Trouble(change.full_path, message)
