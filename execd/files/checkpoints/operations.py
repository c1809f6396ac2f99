"""The operations on checkpoints: make, compare, restore, verify. Blocking, one at a time.

Every call runs on a thread that acts as the user of commands. ``Own`` runs the steps that need the
daemon's own rights: those in the daemon's folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from execd.errors import Conflict, ExecdError, InvalidArgument, NoSpace, PayloadTooLarge
from execd.files.checkpoints.compare import compare
from execd.files.checkpoints.content import keep, needed_bytes, room_of
from execd.files.checkpoints.directories import Directories
from execd.files.checkpoints.entries import (
    Checkpoint,
    CheckpointRoot,
    Difference,
    Manifest,
    StoredCheckpoint,
    TreeChange,
    TreeEntry,
    Trouble,
    full_path,
)
from execd.files.checkpoints.restore import RestoreParts, Undone, restore
from execd.files.checkpoints.root_places import RootPlace, open_again, open_places
from execd.files.checkpoints.scan import (
    READ_FILE,
    Scanning,
    TooManyEntries,
    begin,
    is_told_by_ctime,
    scan,
)
from execd.files.checkpoints.shelf import Shelf, encode
from execd.files.glob import compile_glob
from execd.files.paths import blame, decode
from execd.files.resolve import TreeChanged, open_and_stat
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execd.files.checkpoints.crew import Crew, Place
    from execd.files.root import Root

T = TypeVar("T")
How = Literal["auto", "content", "stat"]
"""How a scan finds changed files: by their content, or by inode, size and ctime, which no program
can set. ``auto``: by ctime where the file system tells every write by it."""

MAX_DIFFERENCES = 1000
MAX_NAMED = 3
"""Paths in the message of a refusal."""


class Own(Protocol):
    """Runs a call with the daemon's own rights."""

    def __call__(self, call: Callable[[], T]) -> T: ...


class Restored(msgspec.Struct, frozen=True):
    """The outcome of a restore."""

    restored: int
    removed: int
    unchanged: int
    troubles: list[Trouble]
    """What could not be restored."""


class Verified(msgspec.Struct, frozen=True):
    """The outcome of a verification."""

    verified_by: Literal["content", "stat"]
    """``stat``: of a file whose ctime is as in the checkpoint, nobody has read the content."""
    differences: list[Difference]
    """The first ``MAX_DIFFERENCES``."""
    n_differences: int


@dataclass(frozen=True)
class Request:
    """A checkpoint to be made."""

    id: str
    roots: Sequence[str]
    watched: Sequence[str]
    exclude: Sequence[str]


class Operations:
    """The blocking half of ``engine.checkpoints``."""

    def __init__(self, root: Root, own: Own, crew: Crew, shelf: Callable[[], Shelf]) -> None:
        """``root``: with paths as user code sees them. ``shelf``: called by ``own`` only."""
        self._root = root
        self._own = own
        self._crew = crew
        self._shelf = shelf

    def create(
        self, request: Request, reserve: Callable[[int], int], stop: Callable[[], bool]
    ) -> Checkpoint:
        """Make a checkpoint. ``reserve`` takes the needed bytes, and returns those that it has not
        got; then nothing was taken.

        Raises InvalidArgument and NotFound, which name the field; Conflict (a file cannot be read,
        or changes meanwhile); PayloadTooLarge (too many files); NoSpace.
        """
        began_at, created_at = time.monotonic(), time.time()
        how = self._scanning(request.exclude, stop, skipped_prefix=TEMPORARY_PREFIX)
        with contextlib.ExitStack() as stack:
            places = open_places(self._root, request.roots, request.watched, stack)
            manifests = [self._scan_new(place, how) for place in places]
            facts = Checkpoint(
                id=request.id,
                created_at=created_at,
                roots=[_root_facts(each) for each in manifests if each.has_content],
                watched=[_root_facts(each) for each in manifests if not each.has_content],
                exclude=list(request.exclude),
                duration_seconds=0.0,
            )
            self._keep_all(places, manifests, facts, reserve, stop)
            facts = msgspec.structs.replace(facts, duration_seconds=time.monotonic() - began_at)
            data = encode(StoredCheckpoint(facts, manifests))
            self._own(lambda: self._shelf().save(request.id, data))
        return facts

    def _scan_new(self, place: RootPlace, how: Scanning) -> Manifest:
        """Raises Conflict, PayloadTooLarge."""
        began_ns, is_told = 0, False
        with contextlib.suppress(OSError):
            began_ns = begin(place.directory)
            is_told = self._own(partial(is_told_by_ctime, place.directory))
        try:
            manifest = scan(place.directory, place.path, how, has_content=place.has_content)
        except TooManyEntries:
            raise PayloadTooLarge(
                f"{place.path!r} has too many files for a checkpoint; exclude some of them"
            ) from None
        except TreeChanged:
            raise Conflict(
                f"{place.path!r}: directories were moved meanwhile; repeat the request"
            ) from None
        except OSError as error:
            raise blame(error, repr(place.path)) from error
        manifest = msgspec.structs.replace(manifest, began_ns=began_ns, is_told_by_ctime=is_told)
        return _without_troubles(manifest)

    def _keep_all(
        self,
        places: Sequence[RootPlace],
        manifests: Sequence[Manifest],
        facts: Checkpoint,
        reserve: Callable[[int], int],
        stop: Callable[[], bool],
    ) -> None:
        """Keep the contents that are not kept yet. Raises NoSpace, Conflict."""
        wanted: list[list[TreeEntry]] = []
        seen: set[bytes] = set()
        data_bytes = len(encode(StoredCheckpoint(facts, list(manifests))))
        n_bytes = needed_bytes(data_bytes)
        for place, manifest in zip(places, manifests, strict=True):
            missing = (
                []
                if not manifest.has_content
                else self._own(partial(_missing, self._shelf, manifest, seen))
            )
            wanted.append(missing)
            with Directories(place.directory) as directories:
                n_bytes += sum(room_of(directories, entry) for entry in missing)
        lacking_bytes = reserve(n_bytes)
        if lacking_bytes:
            raise NoSpace(
                f"the checkpoint needs {n_bytes} bytes of the state dir, and --checkpoint-bytes "
                f"and --state-bytes leave {n_bytes - lacking_bytes}; delete a checkpoint, exclude "
                "files, or enlarge both",
                needed_bytes=n_bytes,
                available_bytes=n_bytes - lacking_bytes,
            )
        for place, entries in zip(places, wanted, strict=True):
            try:
                are_kept = self._crew.share(place.directory, entries, self._keep, stop)
            except OSError as error:
                raise blame(error, f"checkpoint of {place.path!r}") from error
            changed = [
                entry for entry, is_kept in zip(entries, are_kept, strict=True) if not is_kept
            ]
            if changed:
                raise Conflict(
                    f"{full_path(place.path, changed[0].path)!r} changed meanwhile; repeat the "
                    "request, or exclude the file"
                )

    def _keep(self, place: Place, entry: TreeEntry) -> bool:
        contents = self._own(self._shelf).contents
        return keep(
            place,
            entry,
            lambda: self._own(contents.begin),
            lambda draft, digest: self._own(partial(contents.finish, draft, digest)),
        )

    def changes(self, stored: StoredCheckpoint, stop: Callable[[], bool]) -> list[TreeChange]:
        """Return all changes since. Raises PayloadTooLarge, Conflict."""
        how = self._scanning(stored.facts.exclude, stop)
        changes: list[TreeChange] = []
        for manifest in stored.manifests:
            try:
                changes += compare(manifest, self._scan_again(manifest, how, "auto"))
            except TooManyEntries:
                raise PayloadTooLarge(
                    f"{manifest.root!r} has too many files to be compared"
                ) from None
            except TreeChanged:
                raise Conflict(
                    f"{manifest.root!r}: directories were moved meanwhile; repeat the request"
                ) from None
            except OSError as error:
                raise blame(error, repr(manifest.root)) from error
        return changes

    def restore(self, stored: StoredCheckpoint, how: How, stop: Callable[[], bool]) -> Restored:
        """Make the roots as they were. Raises nothing for a single file."""
        scanning = self._scanning(stored.facts.exclude, stop, opens=True)
        n_restored = n_removed = n_entries = 0
        troubles: list[Trouble] = []
        for manifest in stored.manifests:
            if not manifest.has_content:
                continue
            n_entries += len(manifest.entries)
            try:
                outcome = self._restore_root(manifest, scanning, how)
            except (OSError, TooManyEntries, TreeChanged, ExecdError) as error:
                troubles.append(Trouble(manifest.root, _reason(error)))
                continue
            n_restored += outcome.n_restored
            n_removed += outcome.n_removed
            troubles += outcome.troubles
        return Restored(n_restored, n_removed, max(0, n_entries - n_restored), troubles)

    def _restore_root(self, manifest: Manifest, how: Scanning, by: How) -> Undone:
        contents = self._own(self._shelf).contents
        top = open_again(manifest.root, makes=True)
        try:
            new = scan(top, manifest.root, how, _former(manifest, by))
            changes = compare(manifest, new, times=True)
            parts = RestoreParts(
                top,
                how.forbidden,
                lambda digest: self._own(partial(contents.open, digest)),
                how.stop,
            )
            return restore(manifest, changes, parts)
        finally:
            os.close(top)

    def verify(self, stored: StoredCheckpoint, how: How, stop: Callable[[], bool]) -> Verified:
        """Compare all directories with the checkpoint, and believe nothing else."""
        scanning = self._scanning(stored.facts.exclude, stop)
        differences: list[Difference] = []
        n_differences, is_by_content = 0, True
        for manifest in stored.manifests:
            is_by_content = is_by_content and _former(manifest, how) is None
            try:
                new = self._scan_again(manifest, scanning, how)
            except (OSError, TooManyEntries, TreeChanged, ExecdError) as error:
                found = [Difference(manifest.root, _reason(error))]
            else:
                found = [_difference(each) for each in compare(manifest, new, times=True)]
            n_differences += len(found)
            differences += found[: MAX_DIFFERENCES - len(differences)]
        return Verified("content" if is_by_content else "stat", differences, n_differences)

    def open_new(self, root: str, entry: TreeEntry) -> int:
        """Open a file as it was scanned; the caller closes it. Raises Conflict, OSError."""
        top = open_again(root)
        try:
            with Directories(top) as directories:
                parent, name = directories.open_parent(entry.path)
                fd, info = open_and_stat(name, READ_FILE, parent)
        finally:
            os.close(top)
        facts = (info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns)
        if facts != (entry.device, entry.inode, entry.size_bytes, entry.changed_ns):
            os.close(fd)
            raise Conflict(f"{full_path(root, entry.path)!r} changed meanwhile; repeat the request")
        return fd

    def _scan_again(self, manifest: Manifest, how: Scanning, by: How) -> Manifest:
        top = open_again(manifest.root)
        try:
            return scan(
                top, manifest.root, how, _former(manifest, by), has_content=manifest.has_content
            )
        finally:
            os.close(top)

    def _scanning(
        self,
        exclude: Sequence[str],
        stop: Callable[[], bool],
        *,
        skipped_prefix: bytes | None = None,
        opens: bool = False,
    ) -> Scanning:
        return Scanning(
            self._own(self._root.forbidden),
            self._crew,
            stop,
            excluding(exclude),
            skipped_prefix,
            opens,
        )


def _root_facts(manifest: Manifest) -> CheckpointRoot:
    return CheckpointRoot(manifest.root, manifest.n_files, manifest.n_bytes)


def _former(manifest: Manifest, how: How) -> Manifest | None:
    """Return the manifest that a scan may take entries from."""
    if not manifest.began_ns or how == "content":
        return None
    return manifest if how == "stat" or manifest.is_told_by_ctime else None


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
    contents, missing = shelf().contents, []
    for entry in manifest.entries:
        if entry.digest and entry.digest not in seen:
            seen.add(entry.digest)
            if not contents.has(entry.digest):
                missing.append(entry)
    return missing


def _without_troubles(manifest: Manifest) -> Manifest:
    """Refuse what could never be verified. A watched file that only other users can read stays: its
    ctime tells whether it changed. Raises Conflict."""
    entries: list[TreeEntry] = []
    troubles: list[TreeEntry] = []
    for entry in manifest.entries:
        if not entry.trouble:
            entries.append(entry)
        elif not manifest.has_content and entry.type == "file" and entry.changed_ns:
            entries.append(msgspec.structs.replace(entry, trouble=""))
        else:
            troubles.append(entry)
    if troubles:
        named = ", ".join(
            f"{full_path(manifest.root, entry.path)!r}: {entry.trouble}"
            for entry in troubles[:MAX_NAMED]
        )
        more = f", and {len(troubles) - MAX_NAMED} more" if len(troubles) > MAX_NAMED else ""
        raise Conflict(f"{named}{more}; leave these paths out by exclude, or repeat the request")
    return msgspec.structs.replace(manifest, entries=entries)


def _difference(change: TreeChange) -> Difference:
    trouble = change.new.trouble if change.new is not None else ""
    message = f"{change.kind}: {trouble}" if trouble else change.kind
    return Difference(change.full_path, message)


def _reason(error: Exception) -> str:
    match error:
        case ExecdError():
            return error.message
        case OSError():
            return error.strerror or "input/output error"
        case TooManyEntries():
            return "too many files to be compared"
    return "directories were moved meanwhile"
