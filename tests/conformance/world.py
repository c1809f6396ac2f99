"""A sandbox to be polluted and reset, with a judge who looks from outside (``eyes``).

The sandbox has four roots, a watched directory, and a directory outside of the checkpoint, all in
the base dir. Where the daemon runs on this machine, the judge looks at the machine's files and
processes. Where a launcher runs the daemon elsewhere, files are seen through the bound base dir,
and processes by what they go on doing: each writes to ``outside/beats`` (``BEATS``).
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.own_traces import kernel_for_one

from . import eyes
from .eyes import Finding
from .target import READ_SECONDS, Target, dialect_ports, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

INSIDE = (Path(__file__).parent / "inside.py").read_text()
ROOTS, WATCHED, OUTSIDE = ("work", "home", "tmp", "bin"), "watched", "outside"
GOING_SECONDS = 5.0
"""How long a process that is new since the reset may look like one of user code: the zygote renames
itself when it has started."""
PROGRAM_SECONDS = 10.0
"""How long a program of a pollution may take: it may wait for a writer to a FIFO."""
READY_LOOKS = 200
OWN_NAMES = ("xd0", "xd1")
ON_TMPFS = 'mount -t tmpfs -o size=64m,mode=777 none "$0" && exec "$@"'
FILL = r"""
import os
os.umask(0o022)
def write(path, data=b"kept\n", mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
for path in ("work/file", "work/sub/a", "work/sub/b", "work/sub/deep/c", "home/.bashrc",
             "home/.profile", "watched/passwd", "watched/sub/x", "outside/file",
             "outside/sub/a", "tmp/old", "work/two\nlines", b"work/\xff\xfe".decode(
             "utf-8", "surrogateescape"), "work/n\u00e4me", "work/" + "n" * 255):
    write(path)
write("work/data", bytes(range(256)) * 256)
write("work/page", b"p" * 8192)
write("work/run", b"#!/bin/sh\necho run\n", 0o755)
write("bin/tool", b"#!/bin/sh\necho tool\n", 0o755)
write("work/secret", b"secret\n", 0o600)
write("work/empty-file", b"")
with open("work/sparse", "wb") as file:
    file.truncate(1 << 20)
    file.seek(1 << 19)
    file.write(b"middle")
write("work/one")
os.link("work/one", "work/other")
os.link("work/one", "work/sub/third")
os.symlink("file", "work/link")
os.symlink("/nowhere/at/all", "work/dangling")
os.mkfifo("work/fifo", 0o622)
os.makedirs("work/empty", 0o750)
os.makedirs("work/shut", 0o500)
os.chmod("tmp", 0o1777)
try:
    os.setxattr("work/file", "user.note", b"first")
except OSError:
    pass
os.utime("work/sub/b", ns=(10**18, 10**18 + 123456789))
open("outside/beats", "w").close()
os.chmod("outside/beats", 0o666)
"""


def exists_in_kernel(key: int, queue: str) -> list[str]:
    """The objects of this key, and the queue of this name, in the IPC namespace of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = [kind for kind, call in CALLS.items() if getattr(libc, call[0])(key, *call[1]) >= 0]
    with contextlib.suppress(AttributeError, OSError):
        queues = ctypes.CDLL("librt.so.1", use_errno=True)
        if (number := queues.mq_open(queue.encode(), os.O_RDONLY)) >= 0:
            os.close(number)
            found.append("queue")
    return found


CALLS = {
    "segment": ("shmget", (0, 0)),
    "semaphore": ("semget", (0, 0)),
    "message": ("msgget", (0,)),
}
LOOK_IN_KERNEL = f"""
import contextlib, ctypes, json, os, sys
CALLS = {CALLS!r}
{inspect.getsource(exists_in_kernel)}
print(json.dumps(exists_in_kernel(int(sys.argv[1]), sys.argv[2])))
"""


class Seen:
    """Everything at one moment."""

    def __init__(self, files: dict[str, dict[bytes, eyes.Facts]], inside: dict[str, Any]) -> None:
        self.files = files
        self.inside = inside


class World:
    """``close`` ends the daemon."""

    def __init__(self, folder: Path, *flags: str, has_tmpfs: bool = False, **options: Any) -> None:
        """``has_tmpfs``: the base dir is a small tmpfs, in a mount namespace of the daemon. For
        root, and a daemon on this machine."""
        self.folder = folder
        self._held = contextlib.ExitStack()
        if "--namespaces=off" in flags:
            self._held.enter_context(kernel_for_one())
        self.mark = f"pollution-{os.urandom(6).hex()}"
        self.key = int.from_bytes(os.urandom(3), "big") + (1 << 24)
        self.base = folder / "base"
        self.base.mkdir(parents=True, exist_ok=True)
        self.base.chmod(0o777)
        ports = dialect_ports("opensandbox")
        self.bash_url = f"http://127.0.0.1:{ports['opensandbox']}"
        if has_tmpfs:
            options["below"] = ("unshare", "--mount", "sh", "-c", ON_TMPFS, str(self.base))
        self.has_tmpfs = has_tmpfs
        self.target: Target = start(
            folder,
            *flags,
            "--pass-env=HOME",
            "--pass-env=TMPDIR",
            "--pass-env=POLLUTION_*",
            f"--opensandbox-port={ports['opensandbox']}",
            environment={
                "HOME": f"{self.base}/home",
                "TMPDIR": f"{self.base}/tmp",
                "POLLUTION_MARK": self.mark,
                **options.pop("environment", {}),
            },
            **options,
        )
        self.is_local = self.target.pid is not None
        self.view = f"/proc/{self.target.pid}/root{self.base}" if has_tmpfs else str(self.base)
        """The base dir, as the judge reaches it."""
        self.client = httpx.Client(base_url=self.target.url, timeout=READ_SECONDS, trust_env=False)
        self.has_namespaces = self.target.claims_namespaces()
        self.probes: list[Callable[[], Iterable[Finding]]] = []
        self.closers: list[Callable[[], object]] = []
        self.finishers: list[Callable[[], object]] = []
        """What callers of the former episode do after the reset."""
        self.mapped = ""
        self.is_patient = True
        self.lived: set[tuple[int, int]] = set()
        self.wardens: dict[str, int] = {}
        """The PID namespaces of the round's wardens. The kernel gives the number of a namespace to
        another one, unless a descriptor holds it."""
        self._numbers = itertools.count()
        self._beats = 0
        self.python(FILL, check=True)
        self.before: Seen | None = None
        self.checkpoint_id = ""

    def close(self) -> None:
        self.end_round()
        self.client.close()
        self.target.stop()
        self._held.close()
        assert not self.target.log_errors(), self.target.log_errors()

    # Acts of user code.

    def run(self, *, check: bool = False, **fields: Any) -> dict[str, Any]:
        reply = self.client.post(
            "/v1/executions", json={"timeout_seconds": PROGRAM_SECONDS, **fields}
        )
        if check:
            assert reply.status_code in (200, 202), reply.text
            assert reply.json()["exit_code"] in (0, None), reply.text
        found: dict[str, Any] = reply.json()
        return found

    def shell(self, command: str, *, check: bool = False, **fields: Any) -> dict[str, Any]:
        return self.run(command=command, env=self.variables(), check=check, **fields)

    def python(self, code: str, *words: str, check: bool = False, **fields: Any) -> dict[str, Any]:
        argv = ["python3", "-c", code, *words]
        return self.run(argv=argv, env=self.variables(), check=check, **fields)

    def variables(self) -> dict[str, str]:
        return {"MARK": self.mark, "KEY": str(self.key), "BEATS": f"{self.base}/outside/beats"}

    def number(self) -> int:
        return next(self._numbers)

    # The life of a round.

    def checkpoint(self) -> None:
        """What is now is how it must be after each reset."""
        if self.checkpoint_id:
            self.client.delete(f"/v1/checkpoints/{self.checkpoint_id}").raise_for_status()
        self.before = self.see()
        self.checkpoint_id = f"c{self.number()}"
        body = {"id": self.checkpoint_id, "roots": list(ROOTS), "watched": [WATCHED]}
        reply = self.client.post("/v1/checkpoints", json=body)
        assert reply.status_code == 201, reply.text

    def reset(self, key: str | None = None, **fields: Any) -> dict[str, Any]:
        if self.is_local:
            processes = eyes.see_processes()
            assert self.target.pid is not None
            for pid in eyes.below(self.target.pid, processes):
                process = processes[pid]
                if not process.is_dead:
                    self.lived.add((pid, process.start))
                if process.parent == self.target.pid:
                    self._hold_namespace(pid)
        reply = self.client.post(
            "/v1/reset",
            json={"checkpoint": self.checkpoint_id, **fields},
            headers={"Idempotency-Key": key or f"{self.mark}-{self.number()}"},
        )
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def _hold_namespace(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name == os.readlink("/proc/self/ns/pid") or name in self.wardens:
                os.close(fd)
            else:
                self.wardens[name] = fd

    def finish(self) -> None:
        for finish in self.finishers:
            finish()
        self.finishers.clear()

    def end_round(self) -> None:
        """Leave what the test itself holds: connections and threads."""
        for close in self.closers:
            with contextlib.suppress(Exception):
                close()
        for fd in self.wardens.values():
            os.close(fd)
        self.wardens.clear()
        self.closers.clear()
        self.probes.clear()

    def put_right(self) -> None:
        """Remove what a reset named and left: what lies in `watched`, and the kernel's objects."""
        self.python(CLEAN_UP, self.mark, str(self.key))
        if self.is_local and not self.has_namespaces:
            for name in os.listdir("/dev/shm"):
                if self.mark in name:
                    with contextlib.suppress(OSError):
                        os.unlink(f"/dev/shm/{name}")
        assert self.before is not None

    def kill(self) -> None:
        """For planted faults: end the daemon, and the processes that were to be ended."""
        self.client.close()
        self.target.kill()
        self._held.close()
        for pid, began in self.lived:
            process = eyes.see_processes().get(pid)
            if process is not None and process.start == began:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def renew(self) -> None:
        """Make the tree anew after a pollution that stayed."""
        for name in (*ROOTS, WATCHED, OUTSIDE):
            self.shell(
                f"chattr -R -i -a {name} 2>/dev/null; chmod -R u+rwx {name} 2>/dev/null;"
                f" rm -rf {name}"
            )
            if self.is_local:
                shutil.rmtree(f"{self.view}/{name}", ignore_errors=True)
        self.python(FILL, check=True)
        self._beats = 0

    # The judge.

    def see(self) -> Seen:
        return Seen(self.see_files(), self.see_inside())

    def see_files(self) -> dict[str, dict[bytes, eyes.Facts]]:
        return {
            name: eyes.see_files(f"{self.view}/{name}", is_watched=name == WATCHED)
            for name in (*ROOTS, WATCHED)
        }

    def see_outside(self) -> dict[bytes, eyes.Facts]:
        """What no program of a pollution writes to by these names."""
        found = eyes.see_files(f"{self.view}/{OUTSIDE}")
        return {
            path: facts for path, facts in found.items() if path.split(b"/")[0] in (b"file", b"sub")
        }

    def judge_outside(
        self, before: dict[bytes, eyes.Facts], *, has_writers: bool = False
    ) -> list[Finding]:
        """What a reset has touched outside of the roots. ``has_writers``: programs lived on between
        the look ``before`` and the reset, and may have written to a file by another name of it."""
        shared = {path for path, facts in before.items() if has_writers and facts.n_links > 1}

        def without_links(files: dict[bytes, eyes.Facts]) -> dict[bytes, eyes.Facts]:
            # A file of a root may have had names outside, and has none after its restore.
            found = {path: facts._replace(n_links=0, links=()) for path, facts in files.items()}
            for path in shared & found.keys():
                found[path] = found[path]._replace(size=0, content=b"", modified_ns=0)
            return found

        return list(
            eyes.compare_files(
                f"{self.base}/{OUTSIDE}", without_links(before), without_links(self.see_outside())
            )
        )

    def see_inside(self) -> dict[str, Any]:
        """By a command. A program of user code may be `python3`, so the answer may be anything."""
        done = self.python(INSIDE, self.mark)
        kernel = self.python(LOOK_IN_KERNEL, str(self.key), f"/{self.mark}")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            seen: dict[str, Any] = json.loads(done["stdout"])
            # In a namespace of its own, /dev/shm has no names of others.
            seen["shm"] = [name for name in seen["shm"] if self.mark in name]
            seen.pop("system v")
            seen["kernel"] = json.loads(kernel["stdout"])
            return seen
        return {"words": f"{done} {kernel}"}

    def judge(self, going_seconds: float = GOING_SECONDS) -> list[Finding]:
        """Everything that is not as at the checkpoint."""
        assert self.before is not None, "there is no checkpoint"
        beats_before = self._count_beats()
        found = list(self._judge_processes(going_seconds))
        for name, files in self.see_files().items():
            found += eyes.compare_files(f"{self.base}/{name}", self.before.files[name], files)
        for probe in self.probes:
            found += probe()
        inside = self.see_inside()
        for name in sorted(inside.keys() | self.before.inside.keys()):
            was, now = self.before.inside.get(name), inside.get(name)
            if was != now:
                found += self._inside_findings(name, was, now)
        if self.is_local:
            found.extend(
                Finding("object", self._name_of(kind), "seen from outside")
                for kind in exists_in_kernel(self.key, f"/{self.mark}")
            )
        if self._count_beats() != beats_before:
            found.append(Finding("process", "0", "somebody goes on writing"))
        return found

    def _name_of(self, kind: str) -> str:
        return f"/{self.mark}" if kind == "queue" else f"{kind} {self.key:#x}"

    def _inside_findings(self, name: str, was: Any, now: Any) -> list[Finding]:
        words = f"{name}: {was!r} and now {now!r}"
        match name:
            case "shm":
                return [Finding("shm", f"/dev/shm/{each}", words) for each in now or []]
            case "kernel":
                return [Finding("object", self._name_of(kind), words) for kind in now or []]
            case "abstract":
                return [Finding("socket", each, words) for each in now or []]
            case "mounts":
                return [Finding("mount", each, words) for each in set(was or []) ^ set(now or [])]
        return [Finding("state", name, words)]

    def _judge_processes(self, going_seconds: float) -> list[Finding]:
        if not self.is_local:
            return []
        began, found = time.monotonic(), self._processes_now()
        # One that lived before the reset is found at once; a new one may be the zygote.
        while any(not is_old for _, is_old in found):
            if time.monotonic() - began > going_seconds:
                break
            time.sleep(0.05)
            found = [each for each in found if each[1]] + [
                each for each in self._processes_now() if not each[1]
            ]
        return [finding for finding, _ in found]

    def _processes_now(self) -> list[tuple[Finding, bool]]:
        assert self.target.pid is not None
        processes = eyes.see_processes()
        ours = eyes.below(self.target.pid, processes)
        marks = (self.mark.encode(), str(self.base).encode())
        found = []
        for process in processes.values():
            if process.is_dead or process.pid in (self.target.pid, os.getpid()):
                continue
            if (process.pid, process.start) in self.lived:
                finding = Finding("process", str(process.pid), f"{process}: lived before")
                found.append((finding, True))
            elif process.pid in ours:
                if process.name not in OWN_NAMES or _is_disguised(process.pid):
                    words = f"{process}: {_words_of(process.pid)}"
                    found.append((Finding("process", str(process.pid), words), False))
            elif sign := eyes.signs(process.pid, marks, self.wardens):
                finding = Finding("process", str(process.pid), f"{process}: {sign}")
                found.append((finding, True))
        return found

    def _count_beats(self) -> int:
        with contextlib.suppress(OSError):
            return os.stat(f"{self.view}/{OUTSIDE}/beats").st_size
        return 0

    def judge_records(self) -> list[Finding]:
        """What the daemon itself still remembers of the episode."""
        return [
            Finding("state", path, str(item)[:300])
            for path in ("/v1/executions", "/v1/sessions")
            for item in self.client.get(path).json()["items"]
        ]


def _words_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:300]
        )
    return ""


def _is_disguised(pid: int) -> bool:
    """A program of user code may have any name; execd's own have the name for a command line."""
    words = _words_of(pid).strip()
    return bool(words) and not words.startswith(OWN_NAMES)


CLEAN_UP = r"""
import ctypes, os, sys
mark, key = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
if (found := libc.shmget(key, 0, 0)) >= 0:
    libc.shmctl(found, 0, None)
if (found := libc.semget(key, 0, 0)) >= 0:
    libc.semctl(found, 0, 0)
if (found := libc.msgget(key, 0)) >= 0:
    libc.msgctl(found, 0, None)
try:
    ctypes.CDLL("librt.so.1").mq_unlink(f"/{mark}".encode())
except (OSError, AttributeError):
    pass
for name in os.listdir("/dev/shm"):
    if mark in name:
        os.unlink(f"/dev/shm/{name}")
"""


def is_named(finding: Finding, differences: Sequence[dict[str, Any]]) -> bool:
    """Whether the reply of a reset tells of the finding."""
    for difference in differences:
        kind, path = difference["kind"], difference.get("path")
        message = difference["message"]
        match finding.kind:
            case "file":
                shown = finding.what.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                named = path in (finding.what, shown) or "directories were moved" in message
                if kind == "file" and named:
                    return True
            case "process":
                if kind == "process" or "living" in message:
                    return True
            case "socket":
                port = str(difference.get("port"))
                if kind == "socket" and (finding.what in (port, path) or finding.what in message):
                    return True
            case "object":
                last = finding.what.rpartition(" ")[2]
                if kind == "object" and (last in message or "cannot be listed" in message):
                    return True
            case "shm" | "mount":
                if kind == finding.kind and finding.what == path:
                    return True
    return False


def connect_probe(port: int) -> Callable[[], Iterable[Finding]]:
    """Finds somebody who listens on the port of this machine."""

    def look() -> Iterable[Finding]:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            yield Finding("socket", str(port), "somebody accepts")

    return look


def in_thread(world: World, act: Callable[[], object]) -> None:
    """Do something that waits for the reset."""

    def run() -> None:
        with contextlib.suppress(httpx.HTTPError, OSError):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    world.closers.append(lambda: thread.join(READ_SECONDS))


def wait_for(world: World, path: str) -> None:
    """Wait for a file that a program makes when it is ready. In random sequences a program may wait
    for ever: for a writer to a FIFO that an earlier one has made."""
    place = f"{world.view}/{path}"
    if world.is_patient:
        wait_until(lambda: os.path.lexists(place), 20, f"{path} is there")
        return
    for _ in range(READY_LOOKS):
        if os.path.lexists(place):
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} is not there")
