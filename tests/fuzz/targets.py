"""What is fuzzed without a daemon: each target takes damaged bytes and checks the answer.

A target fails by any exception but those it names. docs/testing.md says what each target promises.
The seeds are the same bytes in every process, so that a seed and a blob of hypothesis repeat a
failure.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from execd.api.v1.attach import EndOfFile, Resize, SignalMessage, parse_control
from execd.api.v1.executions import last_event_id
from execd.api.wire.multipart import MultipartDecoder, boundary
from execd.engine.output.event_index import EventIndex, Kind
from execd.engine.store import journal
from execd.errors import ExecdError, InvalidArgument
from execd.files.archive import unpack
from execd.files.archive.tree import UnpackingLimits
from execd.files.root import Root
from execd.model import ArchiveFormat, ExitReason, Result
from execd.proc import memory_meter, pod_memory, process_tree

from . import slow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Target:
    """``seeds``: well-formed inputs. ``check`` takes an input, damaged or not."""

    seeds: Sequence[bytes]
    check: Callable[[bytes], None]


# Archives.

LIMITS = UnpackingLimits(max_bytes=1 << 20, max_entries=50)


def _members() -> list[tuple[str, bytes]]:
    return [
        ("d/", b""),
        ("d/file", b"content" * 50),
        ("d/sub/name é", b""),
        ("top", bytes(range(99))),
    ]


def tar_bytes(format_: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format_) as tar:
        for name, content in _members():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.mode, info.size = 0o755, len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "top"
            tar.addfile(info)
    return made.getvalue()


def zip_bytes(compression: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in _members():
            info = zipfile.ZipInfo(name)  # of 1980
            info.external_attr = (0o40755 if name.endswith("/") else 0o100644) << 16
            archive.writestr(info, content, compression)
    return made.getvalue()


def extraction(kind: ArchiveFormat) -> Callable[[bytes], None]:
    """Unpacking puts everything in place or nothing; outside of the target, nothing changes."""

    def check(data: bytes) -> None:
        descriptors = set(os.listdir("/proc/self/fd"))
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder, "base")
            base.mkdir()
            Path(folder, "outside").write_bytes(b"outside")
            (base / "before").write_bytes(b"before")
            is_done = False
            try:
                extracting = unpack.unpack(Root(str(base)), "out", kind, LIMITS)
                try:
                    for at in range(0, len(data), 700):
                        extracting.write(data[at : at + 700])
                    extracting.commit()
                    is_done = True
                finally:
                    extracting.abort()
            except ExecdError as error:
                assert error.code != "INTERNAL"  # noqa: PT017  # the error is an answer here
            assert {*os.listdir(base)} - {"out"} == {"before"}
            assert is_done or not (base / "out").exists()
            assert (base / "before").read_bytes() == b"before"
            assert sorted(os.listdir(folder)) == ["base", "outside"]
            assert Path(folder, "outside").read_bytes() == b"outside"
            # Not Path.rglob, which follows links: a damaged link may have a target too long for
            # the kernel.
            for above, directories, names in os.walk(base):
                for name in (*directories, *names):
                    mode = os.lstat(os.path.join(above, name)).st_mode
                    assert stat.S_ISLNK(mode) or stat.S_ISDIR(mode) or stat.S_ISREG(mode), name
        # Fewer are no leak: the collector may close the file of an earlier target meanwhile.
        assert set(os.listdir("/proc/self/fd")) <= descriptors, "a descriptor is left open"

    return check


# The wire.

BODY = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a b.txt"\r\n\r\nhello\r\n'
    b"--b\r\nContent-Disposition: form-data; name=x; filename*=UTF-8''%e2%98%83\r\n"
    b"Content-Type: text/plain\r\n\r\n--bb\r\n-\r\n--b--\r\nepilogue"
)


def check_multipart(data: bytes) -> None:
    """The size of the pieces changes nothing; a body is read or refused."""

    def read(piece_bytes: int) -> object:
        decoder = MultipartDecoder(b"b")
        events: list[object] = []
        try:
            for at in range(0, len(data), piece_bytes):
                chunk = data[at : at + piece_bytes]
                while True:
                    for event in decoder.feed(chunk):
                        if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
                            events[-1] += event
                        else:
                            events.append(event)
                    if not decoder.is_behind:
                        break
                    chunk = b""
        except InvalidArgument:
            return "refused"
        return events, decoder.is_complete

    whole = read(len(data) or 1)
    for piece_bytes in (1, 7):
        assert read(piece_bytes) == whole


def check_boundary(data: bytes) -> None:
    found = slow.answer(lambda: boundary(data.decode("utf-8", "surrogateescape")), InvalidArgument)
    assert found == slow.answer(lambda: slow.boundary(data), ValueError)


def check_last_event_id(data: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        header = data.decode("latin-1")
        assert last_event_id(header, 5) == int(header.strip(" \t") or "5")


def check_control(data: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        message = parse_control(data.decode("utf-8", "replace"))
        assert isinstance(message, Resize | SignalMessage | EndOfFile)


# The journal.


def event_index(max_events: int, n_outputs: int) -> EventIndex:
    index, totals = EventIndex(max_events), {Kind.STDOUT: 0, Kind.STDERR: 0}
    index.append(Kind.STARTED)
    for number in range(n_outputs):
        kind = Kind.STDERR if number % 3 else Kind.STDOUT
        index.append(kind, totals[kind], number)
        totals[kind] += number
        index.append(Kind.RICH, number)
    index.append(Kind.EXITED)
    return index


def check_event_index(data: bytes) -> None:
    """The content of a packed index is refused as a whole, or read as the slow reader reads the
    content, and packed again as before."""
    with contextlib.suppress(ValueError):
        EventIndex.unpack(data)
    packed = zlib.compress(data, level=1)
    found = slow.answer(lambda: EventIndex.unpack(packed), ValueError)
    expected = slow.answer(lambda: slow.event_index(data), ValueError)
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return
    trimmed, events = expected
    n_events = len(events)
    assert found.after(0, n_events + 1) == events
    assert found.last_sequence == max([trimmed, *(number for number, *_ in events)])
    assert found.can_resume(found.last_sequence)
    assert zlib.decompress(found.pack()) == data


def journal_records() -> list[journal.Record]:
    index = event_index(1000, 1)
    result = Result(exit_code=3, term_signal=None, exit_reason=ExitReason.EXITED, message="é\n")
    begins = [
        journal.Begin(name, "key", payload="p", display="echo ☃", created_at=1.5, cwd="/app")
        for name in ("one", "two")
    ]
    ended = journal.End("one", result, 2.5, {"stdout": 5, "stderr": 5}, events=index.pack())
    return [
        *begins,
        ended,
        journal.Cut("two", found_at=3.0),
        journal.Forget("two"),
        journal.SessionRecorded("s", generation=3),
        journal.SessionRecorded("t", generation=1),
        journal.SessionDeleted("s"),
        journal.MemoryShortage(4.0, left_bytes=-1, size_bytes=2),
        journal.MemoryRecovered(),
    ]


RECORDS = journal_records()


def check_journal(data: bytes) -> None:
    """A damaged journal yields whole records, each as the daemon wrote the record (the index of
    events too), and the next daemon goes on behind the last line."""
    records, damaged, end = journal.decode(data)
    assert all(record in RECORDS for record in records)
    assert sum(map(len, damaged)) <= end <= len(data)
    assert b"\n" not in data[end:]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/journal"
        Path(path).write_bytes(data)
        opened = journal.Journal(path)
        try:
            known = set(opened.load())
            assert known == set(journal.JournalState(records).executions)
            opened.append(journal.Forget("another"))
        finally:
            opened.close()
        after = journal.decode(Path(path).read_bytes())
        assert (after.damaged, after.end) == ([], Path(path).stat().st_size)


# /proc: the kernel writes the files, and user code chooses names in them.


def check_stat(data: bytes) -> None:
    """No command name changes the facts of the process."""
    fields = b"S 1 2 3 " + b" ".join(b"%d" % number for number in range(4, 24))
    found = process_tree.parse_stat(b"77 (" + data + b") " + fields + b"\n")
    assert (found.pid, found.state, found.parent, found.group, found.session) == (77, "S", 1, 2, 3)
    with contextlib.suppress(ValueError):
        process_tree.parse_stat(data)


def check_memory(data: bytes) -> None:
    """Each file says what a slow reader finds in the file."""
    for parse, parse_slowly in (
        (memory_meter.parse_meminfo, slow.meminfo),
        (
            memory_meter.parse_zoneinfo,
            lambda text: slow.zoneinfo(text, memory_meter.PAGE_BYTES),
        ),
        (
            lambda text: memory_meter.parse_cgroup(b"5000\n", text, None),
            lambda text: slow.cgroup(5000, text, None),
        ),
        (
            lambda text: memory_meter.parse_cgroup(b"5000\n", text, b"max\n"),
            lambda text: slow.cgroup(5000, text, memory_meter.UNLIMITED_BYTES),
        ),
    ):
        found = slow.answer(lambda: parse(data), ValueError)  # noqa: B023  # called at once
        assert found == slow.answer(lambda: parse_slowly(data), ValueError)  # noqa: B023


def check_cgroups(data: bytes) -> None:
    """A mount's name may hold anything. Each directory found is a mount point, or below one."""
    text = data.decode("utf-8", "surrogateescape")
    for cgroup, mountinfo in ((text, MOUNTINFO.decode()), ("0::/a/b\n", text)):
        with contextlib.suppress(ValueError):
            found = pod_memory.memory_cgroups(cgroup, mountinfo)
            tops = tuple(slow.mount_points(mountinfo))
            for directory in found:
                assert any(directory == top or directory.startswith(f"{top}/") for top in tops)


MOUNTINFO = (
    b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    b"31 23 0:27 /a /mnt/with\\040blank rw - cgroup2 cgroup2 rw,memory\n"
    b"32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
MEMINFO = (
    b"MemTotal:       24684084 kB\nMemFree:        20669464 kB\nMemAvailable:   21669400 kB\n"
    b"Active:            10908 kB\nInactive:           3700 kB\nActive(anon):       7208 kB\n"
    b"Inactive(anon):       12 kB\nUnevictable:          16 kB\nShmem:               300 kB\n"
)
ZONEINFO = (
    b"Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 300\n  pages free     2816\n"
    b"  pagesets\n    cpu: 0\n              count:    7\n              high:  9\n    cpu: 1\n"
    b"              count:    3\n              batch: 1\n"
)
STAT = (
    b"4711 (python3 -c) S 1 4711 4711 0 -1 4194560 1837 2 0 0 5 3 1 1 20 0 2 0 81273 17653760 2431 "
    b"18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
CGROUP_STAT = (
    b"anon 1000\nfile 2000\nshmem 30\ninactive_file 40\nactive_file 50\n"
    b"total_rss 1000\ntotal_shmem 30\ntotal_inactive_file 40\ntotal_active_file 50\n"
    b"hierarchical_memory_limit 100000\n"
)
TAR = tar_bytes()

TARGETS = {
    "tar": Target(
        [TAR, tar_bytes(tarfile.GNU_FORMAT), tar_bytes(tarfile.USTAR_FORMAT)], extraction("tar")
    ),
    "tar.gz": Target(
        [
            gzip.compress(TAR, mtime=0),
            gzip.compress(TAR[:1024], mtime=0) + gzip.compress(TAR[1024:], mtime=0),
        ],
        extraction("tar.gz"),
    ),
    "zip": Target(
        [zip_bytes(zipfile.ZIP_STORED), zip_bytes(zipfile.ZIP_DEFLATED)], extraction("zip")
    ),
    "multipart": Target([BODY], check_multipart),
    "content type": Target(
        [
            b'multipart/form-data; boundary="b"',
            b"multipart/form-data;boundary=b; x=y",
            b'Multipart/Form-Data ; x="a\\"b;c" ; BOUNDARY = "d\\e" ; boundary=f',
            b'multipart/form-data; boundary="b"c; x="y',
        ],
        check_boundary,
    ),
    "Last-Event-ID": Target([b"17", b" 4294967296 ", b"0"], check_last_event_id),
    "control message": Target(
        [
            b'{"type":"resize","cols":80,"rows":24}',
            b'{"type":"signal","signal":"SIGINT"}',
            b'{"type":"signal","signal":15}',
            b'{"type":"eof"}',
        ],
        check_control,
    ),
    "journal": Target([b"".join(map(journal.encode, RECORDS))], check_journal),
    "event index": Target(
        [zlib.decompress(event_index(*sizes).pack()) for sizes in ((100, 0), (100, 7), (4, 30))],
        check_event_index,
    ),
    "stat": Target([b"sh", b") S 9 9 9 (", STAT], check_stat),
    "memory files": Target([MEMINFO, ZONEINFO, CGROUP_STAT], check_memory),
    "cgroups": Target([b"0::/a/b\n", b"4:memory,cpu:/a\n0::/\n", MOUNTINFO], check_cgroups),
}
assert set(get_args(ArchiveFormat)) <= TARGETS.keys()
