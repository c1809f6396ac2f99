"""Ask this kernel for each fact of docs/gvisor.md, and print `NAME: VALUE`.

    .ci/in-gvisor --init --uid 1000 -- python3 $PWD/benchmarks/gvisor_facts.py [NAME...]

RUNSC names the release. Without .ci/in-gvisor the values are Linux's. Each probe is a process of
its own. Without a name, all probes run but those of times, which need a quiet machine: `times` runs
these alone.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pty
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
VM, VFORK = 0x100, 0x4000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
SET_DUMPABLE, SUBREAPER, NO_NEW_PRIVS = 4, 36, 38
PROBE_SECONDS = 60
UID, GID = os.getuid(), os.getgid()
libc = ctypes.CDLL(None, use_errno=True)
probes: dict[str, Callable[[], object]] = {}
times: dict[str, Callable[[], object]] = {}


def probe(function: Callable[[], object]) -> Callable[[], object]:
    probes[function.__name__.replace("_", " ")] = function
    return function


def timing(function: Callable[[], object]) -> Callable[[], object]:
    times[function.__name__.replace("_", " ")] = function
    return function


def answer(result: int) -> str:
    """The answer of a call of libc."""
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "works"


def attempt(call: Callable[..., object], *arguments: object) -> str:
    """The answer of a function of Python."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "works"


def child(run: Callable[[], object], answers: int | None = None) -> int:
    """Fork. The child sends what ``run`` returns to the descriptor ``answers``."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            try:
                text = str(run())
            except Exception as error:
                text = repr(error)
            if answers is not None:
                os.write(answers, text.encode())
        os._exit(0)
    return pid


def asked(run: Callable[[], object]) -> str:
    """What ``run`` returns in a process of its own."""
    reader, writer = os.pipe()
    pid = child(run, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read().decode()
    os.waitpid(pid, 0)
    return text or "the process died"


def state(pid: int | str) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def state_soon(pid: int) -> str:
    time.sleep(0.3)
    return state(pid)


def status_lines(pid: int | str = "self") -> dict[str, str]:
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":", 1) for line in file if ":" in line)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> str:
    texts = [text.encode() or None for text in (source, target, kind)]
    return answer(libc.mount(*texts, flags, data.encode() or None))


def map_ids() -> None:
    with contextlib.suppress(OSError), open("/proc/self/setgroups", "w") as file:
        file.write("deny")
    for name, value in ("uid_map", UID), ("gid_map", GID):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"{value} {value} 1")


def own_mounts() -> str:
    """A user and a mount namespace with a tmpfs; the path of the tmpfs."""
    place = tempfile.mkdtemp()
    assert libc.unshare(NEWUSER | NEWNS) == 0
    map_ids()
    assert mount("tmpfs", place, "tmpfs") == "works"
    return place


# System calls


@probe
def system_calls() -> str:
    numbers = {"pidfd_open": 434, "openat2": 437, "io_uring_setup": 425, "close_range": 436}
    numbers |= {"rseq": 334, "setfsuid": 122, "copy_file_range": 326, "clone3": 435}
    lacking = []
    for name, number in numbers.items():
        done = libc.syscall(number, *([-1] * 5))
        if done < 0 and ctypes.get_errno() == errno.ENOSYS:
            lacking.append(name)
    return f"lacks {', '.join(lacking) or 'none of them'}"


@probe
def link_at_O_DIRECTORY_with_O_NOFOLLOW() -> str:
    place = tempfile.mkdtemp()
    os.symlink("/proc", f"{place}/link")
    return attempt(os.open, f"{place}/link", os.O_DIRECTORY | os.O_NOFOLLOW)


@probe
def program_with_an_overlong_argument() -> str:
    return attempt(os.execv, "/bin/true", ["true", "x" * (1 << 18)])


@probe
def signals_a_user_may_queue() -> str:
    os.environ.clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, {40})
    info = (ctypes.c_int * 32)(40, 0, -1)
    for n in range(200):
        if libc.syscall(129, os.getpid(), 40, info) < 0:
            return f"{n}, limit {resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]}"
    return f"over 200, limit {resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]}"


# Sockets and pipes


@probe
def messages_with_descriptors() -> str:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    size = 1 << 17
    with contextlib.suppress(OSError):
        while size < 1 << 20:
            one.send(bytes(size + 32), socket.MSG_DONTWAIT)
            two.recv(1)
            size += 32

    def send(n: int) -> None:
        fds = array.array("i", [1] * n)
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

    most = next(n for n in range(260, 0, -1) if attempt(send, n) == "works")
    two.recv(1)
    send(8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.suppress(OSError):
        while True:
            last = os.dup(1)
    os.close(last)
    os.close(last - 1)
    _, parts, flags, _ = two.recvmsg(1, 4096)
    n = sum(len(data) // 4 for _, _, data in parts)
    told = "told" if flags & socket.MSG_CTRUNC else "not told"
    return f"{size} bytes, {most} descriptors; without room for 8: {n} arrive, {told}"


@probe
def pipe_with_room_for_a_byte() -> str:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.read(reader, 1)

    ready = bool(select.select([], [writer], [], 0)[1])
    return f"{'ready' if ready else 'not ready'}; two bytes: {attempt(os.write, writer, b'xx')}"


@probe
def terminals() -> str:
    reader, writer = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        for number in signal.SIGWINCH, signal.SIGHUP:
            signal.signal(number, lambda number, _: os.write(writer, b"%d " % number))
        os.write(writer, b"ready ")
        while True:
            time.sleep(1)
    assert os.read(reader, 6) == b"ready "
    with contextlib.suppress(OSError):
        name = os.readlink(f"/proc/{pid}/fd/0")
    fcntl.ioctl(terminal, 0x5414, b"\x28\0\x78\0\0\0\0\0")  # TIOCSWINSZ
    time.sleep(0.2)
    os.close(terminal)
    time.sleep(0.2)
    os.write(writer, b".")
    got = os.read(reader, 99).decode()
    os.kill(pid, signal.SIGKILL)
    words = [f"resize {'sends' if '28' in got else 'sends no'} SIGWINCH"]
    words.append(f"hang-up {'sends' if '1 ' in got.replace('28 ', '') else 'sends no'} SIGHUP")
    return f"{', '.join(words)}; name of the terminal {name}"


# /proc


@probe
def files_of_proc() -> str:
    names = ["self/task/self/children", "self/smaps_rollup", "self/io", "self/setgroups"]
    names += ["pressure/memory", "zoneinfo", "gvisor/checkpoint", "gvisor/spec_environ"]
    names[0] = f"self/task/{os.getpid()}/children"
    there = [os.path.basename(name) for name in names if os.path.exists(f"/proc/{name}")]
    return f"has {', '.join(there)}"


@probe
def context_switches() -> str:
    def switches() -> int:
        return int(status_lines().get("voluntary_ctxt_switches", "0"))

    before = switches()
    for _ in range(10):
        time.sleep(0.001)
    slept, before = switches() - before, switches()
    for _ in range(10):
        os.sched_yield()
    return f"{slept} of 10 sleeps count, {switches() - before} of 10 yields"


@probe
def secrets_of_an_undumpable_process() -> str:
    def sleep() -> None:
        libc.prctl(SET_DUMPABLE, 0)
        time.sleep(9)

    pid = child(sleep)
    time.sleep(0.2)
    done = {
        name: attempt(os.open, f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("environ", "mem")
    }
    done["fd"] = attempt(os.listdir, f"/proc/{pid}/fd")
    os.kill(pid, signal.SIGKILL)
    return ", ".join(f"{name} {value}" for name, value in done.items())


@probe
def state_when_only_the_first_thread_has_ended() -> str:
    script = (
        "import ctypes, threading as t; t.Thread(target=t.Event().wait).start();"
        "print('ready', flush=True); ctypes.CDLL(None).syscall(60, 0)"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.readline()
    time.sleep(0.3)
    states = state(run.pid)
    try:
        tids = os.listdir(f"/proc/{run.pid}/task")
        threads = ", ".join(sorted(state(f"{run.pid}/task/{tid}") for tid in tids))
    except FileNotFoundError:
        threads = "not listed"
    run.kill()
    return f"{states}; threads: {threads}"


# Memory


def _meminfo() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) for line in file}


@probe
def age_of_proc_meminfo() -> str:
    """How long touched pages are not shown; then beside many untouched pages."""
    kept = []

    def age() -> str:
        ages = []
        for _ in range(9):
            before, began = _meminfo()["MemFree"], time.monotonic()
            kept.append(mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE))
            kept[-1].write(bytes(4 << 20))
            while before - _meminfo()["MemFree"] < 2 << 10 and time.monotonic() - began < 2:
                pass
            ages.append(1000 * (time.monotonic() - began))
        return f"{statistics.median(ages):.0f} to {max(ages):.0f} ms"

    first = age()
    kept.append(mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE))
    for offset in range(0, 1 << 30, 1 << 16):
        kept[-1][offset] = 1
    return f"{first}; with a sparse GiB {age()}"


@probe
def memory_that_comes_back() -> str:
    fd = os.memfd_create("x")
    for _ in range(64):
        os.write(fd, bytes(1 << 20))
    time.sleep(0.5)
    full = _meminfo()
    os.close(fd)
    began, lags = time.monotonic(), {}
    while len(lags) < 2 and time.monotonic() - began < 3:
        now = _meminfo()
        for name, sign in ("Shmem", 1), ("MemAvailable", -1):
            if sign * (full[name] - now[name]) > 48 << 10:
                lags.setdefault(name, 1000 * (time.monotonic() - began))
    return ", ".join(f"{name} after {ms:.0f} ms" for name, ms in sorted(lags.items())) or "never"


# Processes and signals


@probe
def tasks_of_sysinfo() -> str:
    """Whether sysinfo(2) counts the tasks of the PID namespace."""

    def count() -> int:
        area = ctypes.create_string_buffer(512)
        libc.sysinfo(area)
        return int.from_bytes(area.raw[80:82], "little")

    before = count()
    pids = [child(lambda: time.sleep(9)) for _ in range(5)]
    grown = count() - before
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return f"{'few' if before < 50 else 'many'}, and {grown} more for 5 more"


@probe
def kill_for_the_init_of_a_namespace() -> str:
    results = []
    for number in signal.SIGKILL, signal.SIGSTOP:

        def init(number: int = number) -> None:
            assert libc.unshare(NEWUSER | NEWPID) == 0
            map_ids()
            pid = child(lambda: (child(lambda: os.kill(1, number)), time.sleep(0.6)))
            time.sleep(0.3)
            after = state(pid)
            os.kill(pid, signal.SIGKILL)
            return {"Z": "dies", "T": "stops"}.get(after, "ignored")

        results.append(f"{number.name}: {asked(init)}")
    return ", ".join(results)


def _in_vfork(fifo: str) -> None:
    actions = [(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
    time.sleep(9)


@probe
def stop_for_a_process_in_vfork() -> str:
    fifo = os.path.join(tempfile.mkdtemp(), "fifo")
    os.mkfifo(fifo)
    states = {}
    pid = child(lambda: _in_vfork(fifo))
    time.sleep(0.2)
    os.kill(pid, signal.SIGSTOP)
    states["in vfork"] = state_soon(pid)
    os.kill(pid, signal.SIGTSTP)
    states["after SIGTSTP"] = state_soon(pid)
    open(fifo, "w").close()
    states["after exec"] = state_soon(pid)
    os.kill(pid, signal.SIGKILL)
    return ", ".join(f"{name} {value}" for name, value in states.items())


@probe
def end_of_orphans_beside_a_stopped_process() -> str:
    """After how many reaped orphans a group of a living parent is hung up."""
    libc.prctl(SUBREAPER, 1)
    reader, writer = os.pipe()
    go_reader, go = os.pipe()

    def leader() -> None:
        os.setpgid(0, 0)
        for _ in range(3):
            middle = child(lambda: child(lambda: os.read(go_reader, 1)))
            os.waitpid(middle, 0)
        os.write(writer, b"x")
        time.sleep(20)

    pid = child(leader)
    os.read(reader, 1)
    os.kill(pid, signal.SIGSTOP)
    for n in range(1, 4):
        os.write(go, b"x")
        while os.waitpid(-1, 0)[0] == pid:
            return f"SIGHUP after {n - 1}"
        time.sleep(0.2)
        if os.waitpid(pid, os.WNOHANG)[0]:
            return f"SIGHUP after {n}"
    os.kill(pid, signal.SIGKILL)
    return "no SIGHUP"


@probe
def end_of_a_session_leader() -> str:
    """Whether the group in the foreground of the leader's terminal gets SIGHUP."""
    reader, writer = os.pipe()
    pid, _terminal = pty.fork()
    if pid == 0:
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGHUP, lambda *_: os.write(writer, b"HUP"))
            os.write(writer, b"on")
            time.sleep(0.5)
            os._exit(0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        time.sleep(0.1)
        os.tcsetpgrp(0, job)
        time.sleep(0.1)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.2)
    return "SIGHUP" if b"HUP" in os.read(reader, 99) else "no SIGHUP"


# Namespaces and mounts


@probe
def namespaces_and_mounts_by_unshare() -> str:
    assert libc.unshare(NEWUSER | NEWPID | NEWNS) == 0
    map_ids()

    def inside() -> str:
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        place = tempfile.mkdtemp()
        done = {"proc": mount("proc", "/proc", "proc"), "tmpfs": mount("tmpfs", place, "tmpfs")}
        seen = sum(name.isdigit() for name in os.listdir("/proc"))
        cap = 'grep -q "^CapEff:.*0000000000000000" /proc/self/status'
        kept = subprocess.run(["sh", "-c", cap], check=False).returncode
        words = ", ".join(f"{name} {value}" for name, value in done.items())
        return f"{words}; {seen} process seen; capabilities after exec {'kept' if kept else 'gone'}"

    return asked(inside)


@probe
def unshare_with_threads() -> str:

    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    return answer(libc.unshare(NEWUSER))


@probe
def mounts_after_clone_with_all_namespaces() -> str:
    pid = libc.syscall(56, NEWUSER | NEWPID | NEWNS | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0 if mount("tmpfs", "/tmp", "tmpfs") == "works" else 1)
    return "works" if os.waitpid(pid, 0)[1] == 0 else "refused"


@probe
def read_only_mount_in_a_further_namespace() -> str:
    """Whether a user namespace locks the mounts of the namespace before."""
    place = own_mounts()
    mount("none", place, flags=MS_REMOUNT | MS_RDONLY)
    mount(place, place, flags=MS_BIND)
    mount("none", place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)

    def inside() -> str:
        assert libc.unshare(NEWUSER | NEWNS) == 0
        flags = {"bind": MS_REMOUNT | MS_BIND, "file system": MS_REMOUNT}
        done = {
            f"writable {name}": mount("none", place, flags=flag) for name, flag in flags.items()
        }
        done["unmount"] = answer(libc.umount2(place.encode(), 2))
        return ", ".join(f"{name} {value}" for name, value in done.items())

    return asked(inside)


@probe
def user_namespace_below_a_changed_root() -> str:
    own_mounts()
    mount("/", "/proc", flags=MS_BIND | MS_REC)
    os.chroot("/proc")
    return answer(libc.unshare(NEWUSER))


# Times: on a quiet machine only


def _p50(run: Callable[[], object], n: int = 50) -> float:
    taken = []
    for _ in range(n):
        began = time.perf_counter()
        run()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _true() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


@timing
def start_and_end_of_true() -> str:
    return f"{_p50(_true):.1f} ms"


@timing
def true_in_a_crowd_of_16() -> str:
    def crowd() -> None:
        began, pids = time.perf_counter(), set()
        for _ in range(16):
            pids.add(os.posix_spawn("/bin/true", ["true"], {}))
        while pids:
            pids.discard(os.wait()[0])
            lives.append(1000 * (time.perf_counter() - began))

    lives: list[float] = []
    whole = _p50(crowd, 10)
    return f"{whole:.0f} ms for all, half are over after {statistics.median(lives):.0f} ms"


@timing
def fork_of_40_MB() -> str:
    kept = b"x" * (30 << 20)
    return (
        f"{_p50(lambda: os.waitpid(child(lambda: None), 0), 20):.1f} ms for {len(kept) >> 20} MiB"
    )


@timing
def count_of_tasks() -> str:
    area = ctypes.create_string_buffer(512)
    return f"{1000 * _p50(lambda: libc.sysinfo(area), 500):.1f} us"


@timing
def pass_over_proc_with_60_processes() -> str:
    pids = [child(lambda: time.sleep(60)) for _ in range(60)]

    def look() -> None:
        for name in os.listdir("/proc"):
            if name.isdigit():
                state(int(name))

    done = f"{_p50(look, 10):.1f} ms"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return done


@timing
def kill_and_reap_of_300() -> str:
    pids = [child(lambda: time.sleep(60)) for _ in range(300)]
    began = time.perf_counter()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    return f"{1000 * (time.perf_counter() - began):.0f} ms"


@timing
def making_of_namespaces() -> str:
    def make() -> None:
        def run() -> None:
            libc.unshare(NEWUSER | NEWPID | NEWNS)
            map_ids()
            os.waitpid(child(lambda: mount("proc", "/proc", "proc")), 0)

        os.waitpid(child(run), 0)

    return f"{_p50(make, 10):.0f} ms"


@timing
def pipe_to_a_reader() -> str:
    run = subprocess.Popen(["head", "-c", "64M", "/dev/zero"], stdout=subprocess.PIPE)
    assert run.stdout is not None
    began = time.perf_counter()
    n = 0
    while os.read(run.stdout.fileno(), 1 << 16):
        n += 1
    run.wait()
    return (
        f"{64 / 1024 / (time.perf_counter() - began):.2f} GiB/s in reads of {(64 << 20) // n} bytes"
    )


def main(names: list[str]) -> None:
    chosen = (
        times if names == ["times"] else {n: p for n, p in (probes | times).items() if n in names}
    )
    for name, run in (chosen or probes).items():

        def limited(run: Callable[[], object] = run) -> object:
            signal.alarm(PROBE_SECONDS)
            return run()

        print(f"{name}: {asked(limited)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
