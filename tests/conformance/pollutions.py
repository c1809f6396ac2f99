"""What user code may leave behind: a table of pollutions for ``world.World``.

Each row is a program, or a caller, and the kind of finding that a judge must have before the reset.
After a reset the pollution is gone, or the reply names it; ``stays`` says where it may be named.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from ..free_port import free_port
from .eyes import Finding
from .target import READ_SECONDS, wait_until
from .world import connect_probe, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .world import World

NEVER, WITHOUT_NAMESPACES, ALWAYS = "never", "without namespaces", "always"


@dataclass(frozen=True)
class Pollution:
    name: str
    kind: str
    """Of the finding before the reset; empty: only the daemon's own records show the pollution."""
    pollute: Callable[[World], object]
    prepare: Callable[[World], object] | None = None
    """Before the checkpoint."""
    stays: str = NEVER
    """Where a reset may name the pollution instead of removing it."""
    is_drawn: bool = True
    """Whether random sequences have it."""
    needs_tmpfs: bool = False
    """Only where the base dir is a small file system of its own."""


TABLE: list[Pollution] = []


def row(name: str, kind: str, pollute: Callable[[World], object], **fields: object) -> None:
    TABLE.append(Pollution(name, kind, pollute, **fields))  # type: ignore[arg-type]


def sh(name: str, kind: str, script: str, **fields: object) -> None:
    row(name, kind, lambda world: world.shell(script), **fields)


def py(name: str, kind: str, code: str, **fields: object) -> None:
    row(name, kind, lambda world: world.python(code), **fields)


def loop(name: str, setup: str, body: str = "", **fields: object) -> None:
    """A daemon in Python: forks twice, says that it is ready, and writes beats."""
    code = DAEMON.replace("SETUP", repr(setup)).replace("BODY", repr(body))

    def pollute(world: World) -> None:
        ready = f"outside/ready-{world.number()}"
        world.python(code, ready)
        wait_for(world, ready)

    row(name, "process", pollute, **fields)


DAEMON = r"""
import os, sys, time
ready = os.path.abspath(sys.argv[1])
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
null = os.open("/dev/null", os.O_RDWR)
for fd in range(3):
    os.dup2(null, fd)
space = {}
exec(SETUP, space)
body = compile(BODY, "body", "exec")
open(ready, "w").close()
while True:
    try:
        exec(body, space)
        with open(os.environ.get("BEATS", "/dev/null"), "a") as file:
            file.write(".")
    except OSError:
        pass
    time.sleep(0.05)
"""

# --- processes

sh(
    "background_child",
    "process",
    "(while :; do echo . >> $BEATS; sleep 0.05; done) > /dev/null 2>&1 &",
)
sh("setsid", "process", "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
sh("nohup", "process", "nohup sleep 1000 > /dev/null 2>&1 < /dev/null & disown 2>/dev/null; true")
sh("empty_environment", "process", "setsid env -i /bin/sleep 1000 > /dev/null 2>&1 < /dev/null &")
loop("double_fork", "pass")
loop(
    "deaf_to_signals",
    "import signal\nfor n in range(1, 64):\n"
    "    if n not in (9, 19, 32, 33):\n        signal.signal(n, signal.SIG_IGN)",
)
loop("named_like_the_warden", "open('/proc/self/comm', 'w').write('xd0')")
loop(
    "subreaper",
    "import ctypes, os\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
    "for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        break",
)
loop("many_children", "import os\nfor _ in range(40):\n    if os.fork() == 0:\n        break")
loop(
    "hops_from_process_to_process",
    "import os",
    "import time\ntime.sleep(0.02)\nif os.fork():\n    os._exit(0)",
)
loop("not_dumpable", "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)")
loop(
    "cwd_removed",
    "import os\nos.makedirs('work/gone/x')\nos.chdir('work/gone/x')\nos.rmdir('../x')",
)
loop("holds_a_deleted_file", "f = open('work/held', 'w+')\nimport os\nos.unlink('work/held')")
loop(
    "file_locks",
    "import fcntl\nf = open('work/file', 'r+')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
    "g = open('work/data', 'r+')\nfcntl.lockf(g, fcntl.LOCK_EX)",
)
loop(
    "inotify_watcher",
    "import ctypes\nc = ctypes.CDLL(None)\nfd = c.inotify_init()\n"
    "assert c.inotify_add_watch(fd, b'work', 0xfff) > 0",
)
loop("oom_score", "open('/proc/self/oom_score_adj', 'w').write('1000')")
loop(
    "timer_rewrites_a_file",
    "import signal\ndef tick(*_):\n    open('work/file', 'w').write('tick')\n"
    "signal.signal(signal.SIGALRM, tick)\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
)
loop(
    "re_creates_files_as_fast_as_it_can",
    "import itertools",
    "import time\nend = time.monotonic() + 0.2\nfor n in itertools.count():\n"
    "    for path in (f'work/f-{n % 50}', 'work/file', 'home/.bashrc', f'tmp/{n % 7}'):\n"
    "        try:\n            open(path, 'a').write('x')\n        except OSError: pass\n"
    "    if time.monotonic() > end: break",
)
loop(
    "writes_through_an_open_directory",
    "import os\nfd = os.open('work', os.O_RDONLY)\nos.rename('work', f'outside/w-{os.getpid()}')",
    "os.close(os.open('planted', os.O_CREAT | os.O_WRONLY, dir_fd=fd))",
)
loop(
    "swaps_a_directory_for_a_link",
    "import os",
    "import time\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end:\n"
    "    try:\n        os.rename('work/sub', 'work/sub-kept')\n"
    "        os.symlink('../outside/sub', 'work/sub')\n"
    "        os.unlink('work/sub')\n        os.rename('work/sub-kept', 'work/sub')\n"
    "    except OSError: pass",
)
loop("stopped_process", "import os, signal", "os.kill(os.getpid(), signal.SIGSTOP)")
sh(
    "stops_the_warden",
    "process",
    "setsid sh -c 'while :; do kill -STOP '$PPID'; sleep 0.02; done' > /dev/null 2>&1 &",
    is_drawn=False,
)
sh(
    "kills_the_warden",
    "process",
    "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &"
    " setsid sh -c 'sleep 0.05; kill -9 '$PPID > /dev/null 2>&1 < /dev/null &",
    is_drawn=False,
)


def runs(world: World) -> None:
    wait_until(
        lambda: world.client.get("/v1/executions?state=RUNNING").json()["items"], 20, "it runs"
    )


def detached(world: World) -> None:
    world.shell("echo begun; sleep 1000", detach=True)
    runs(world)


row("detached_execution_with_kept_pipes", "process", detached)


def queued(world: World) -> None:
    """More commands than run at once."""
    for number in range(24):
        in_thread(
            world,
            lambda number=number: world.shell(f"sleep 1000; echo {number} > work/queued-{number}"),
        )
    items = "/v1/executions?limit=100"
    wait_until(
        lambda: len(world.client.get(items).json()["items"]) >= 24, 30, "all commands are known"
    )


row("pending_commands", "process", queued, is_drawn=False)

# --- sockets


def listener(world: World) -> None:
    port = free_port()
    world.shell(f"setsid python3 -m http.server -b 127.0.0.1 {port} > /dev/null 2>&1 &")
    probe = connect_probe(port)
    wait_until(lambda: list(probe()), 20, "somebody listens")
    world.probes.append(probe)


row("port_listener", "socket", listener)
loop(
    "port_of_udp",
    "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('127.0.0.1', 0))",
)
loop(
    "unix_socket",
    "import socket, os\ns = socket.socket(socket.AF_UNIX)\n"
    "p = f'tmp/socket-{os.getpid()}'\ns.bind(p)\ns.listen()",
)
sh(
    "unix_socket_that_nobody_holds",
    "file",
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"work/socket\")'",
)
loop(
    "abstract_socket",
    "import socket, os\ns = socket.socket(socket.AF_UNIX)\n"
    "s.bind(chr(0) + os.environ['MARK'])\ns.listen()",
)

# --- objects of the kernel

sh("dev_shm", "shm", "echo x > /dev/shm/$MARK", stays=WITHOUT_NAMESPACES)
py(
    "system_v",
    "object",
    "import ctypes, os\nc = ctypes.CDLL(None)\nkey = int(os.environ['KEY'])\n"
    "assert c.shmget(key, 4096, 0o1666) >= 0\nassert c.semget(key, 1, 0o1666) >= 0\n"
    "assert c.msgget(key, 0o1666) >= 0",
    stays=WITHOUT_NAMESPACES,
)
py(
    "posix_queue",
    "object",
    "import ctypes, os\nc = ctypes.CDLL('librt.so.1', use_errno=True)\n"
    "name = f\"/{os.environ['MARK']}\".encode()\n"
    "assert c.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0, ctypes.get_errno()",
    stays=WITHOUT_NAMESPACES,
)
loop(
    "mounts_in_a_namespace_of_its_own",
    "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\nuid = os.geteuid()\n"
    "if c.unshare(0x10020000) == 0:\n"
    "    try:\n"
    "        open('/proc/self/setgroups', 'w').write('deny')\n"
    "        open('/proc/self/uid_map', 'w').write(f'0 {uid} 1')\n"
    "    except OSError: pass\n"
    "    c.mount(b'none', b'work', b'tmpfs', 0, None)",
)

# --- files

sh("changed_dotfiles", "file", "echo 'alias ls=false' >> home/.bashrc; : > home/.profile")
sh(
    "pip_install_user",
    "file",
    r"""cd outside && python3 - <<'END'
import zipfile
with zipfile.ZipFile("polluting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("polluting.py", "x = 1\n")
    base = "polluting-1.0.dist-info/"
    wheel.writestr(base + "METADATA", "Metadata-Version: 2.1\nName: polluting\nVersion: 1.0\n")
    kind = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel.writestr(base + "WHEEL", kind)
    names = ["polluting.py", *(base + n for n in ("METADATA", "WHEEL", "RECORD"))]
    wheel.writestr(base + "RECORD", "".join(n + ",,\n" for n in names))
END
python3 -m pip install --user --no-index --no-deps --break-system-packages \
    --disable-pip-version-check ./polluting-1.0-py3-none-any.whl > pip.log 2>&1 || {
    site=$(python3 -m site --user-site); mkdir -p "$site"
    python3 -m zipfile -e polluting-1.0-py3-none-any.whl "$site"; }""",
)
SITE = 'site=$(python3 -m site --user-site); mkdir -p "$site"; '
sh("pth", "state", SITE + "echo 'import wave' > \"$site/evil.pth\"")
sh("usercustomize", "state", SITE + "echo 'import wave' > \"$site/usercustomize.py\"")
sh("sitecustomize", "file", SITE + "echo 'import wave' > \"$site/sitecustomize.py\"")
sh(
    "git_config_global",
    "file",
    "git config --global user.name evil || printf '[user]\\nname=evil\\n' > home/.gitconfig",
)
sh("environment_files", "file", "echo A=b > home/.env; echo A=b > home/.pam_environment")
sh("crontab", "file", "mkdir -p home/spool; echo '* * * * * evil' > home/spool/crontab")
sh("program_on_the_path", "file", "mkdir -p home/.local/bin; cp bin/tool home/.local/bin/ls")
sh(
    "python_replaced",
    "file",
    "cp bin/tool bin/python3; cp bin/tool home/python; cp bin/tool python; rm python",
)
sh("tool_replaced", "file", "printf '#!/bin/sh\\necho evil\\n' > bin/tool")
py(
    "mmap_write",
    "file",
    "import mmap, os\nfd = os.open('work/page', os.O_RDWR)\nwith mmap.mmap(fd, 8192) as m:\n"
    "    m[4096] = 1",
)

MAPPED = r"""
import mmap, os, sys, time
go, done = (os.path.abspath(f"outside/{name}-{sys.argv[1]}") for name in ("go", "done"))
fd = os.open("work/page", os.O_RDWR)
page = mmap.mmap(fd, 8192)
page[0], _ = page[0], page[4096]  # read
if sys.argv[2] == "dirty":
    page[4096] = 112
if os.fork():
    os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
open(done + "-ready", "w").close()
while not os.path.exists(go):
    time.sleep(0.001)
page[4096] = page[4096] ^ 255
open(done, "w").close()
time.sleep(1000)
"""


def map_before(how: str) -> Callable[[World], object]:
    def prepare(world: World) -> None:
        number = str(world.number())
        world.python(MAPPED, number, how)
        wait_for(world, f"outside/done-{number}-ready")
        world.mapped = number

    return prepare


def write_mapped(world: World) -> None:
    number = world.mapped
    Path(f"{world.view}/outside/go-{number}").touch()
    wait_for(world, f"outside/done-{number}")


row("mmap_over_the_checkpoint_read", "file", write_mapped, prepare=map_before("read"))
row("mmap_over_the_checkpoint_dirty", "file", write_mapped, prepare=map_before("dirty"))
py(
    "same_size_in_the_same_tick",
    "file",
    "import os\nfor path in ('work/file', 'work/sub/b', 'home/.bashrc'):\n"
    "    s = os.stat(path)\n    with open(path, 'r+b') as f:\n        f.write(b'K')\n"
    "    os.utime(path, ns=(s.st_atime_ns, s.st_mtime_ns))",
)
sh("sparse", "file", "truncate -s 1G work/file; truncate -s 2G tmp/huge")
py(
    "hole_punched",
    "file",
    "import ctypes, os\nfd = os.open('work/data', os.O_RDWR)\n"
    "if ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(4096), ctypes.c_long(8192)):\n"
    "    os.pwrite(fd, bytes(8192), 4096)  # gVisor punches no holes",
)
sh("hard_link_to_the_outside", "file", "mkdir -p outside/free; ln work/file outside/free/$$")
sh(
    "hard_link_from_the_outside",
    "file",
    "ln outside/file work/mine; ln -f outside/sub/a work/sub/a",
)
sh(
    "write_through_a_hard_link",
    "file",
    "mkdir -p outside/free; ln work/data outside/free/d$$; echo x >> outside/free/d$$",
)
sh("hard_link_parted", "file", "cp -p work/one work/copy; mv work/copy work/one")
sh("hard_link_to_another", "file", "ln -f work/file work/run; ln -f work/one home/.profile")
sh("symlink_to_outside", "file", "rm -rf work/sub; ln -s ../outside/sub work/sub")
sh("symlink_changed", "file", "ln -sfn data work/link; rm work/dangling")
sh("directory_swapped_for_a_link", "file", "mv work/sub work/elsewhere; ln -s elsewhere work/sub")
sh("directories_swapped", "file", "mv work/sub x; mv work/empty work/sub; mv x work/empty")
sh("fifo", "file", "rm -f work/file; mkfifo work/file; mkfifo tmp/more; rm -f work/fifo")
sh("deleted_directory", "file", "rm -rf work/sub")
sh("deleted_root", "file", "rm -rf work")
sh("root_is_a_link", "file", "rm -rf home; ln -s outside home", is_drawn=True)
sh("root_is_a_file", "file", "rm -rf bin; echo x > bin")
sh("emptied_root", "file", "rm -rf work/* work/.[!.]*")
sh(
    "file_for_directory",
    "file",
    "rm -rf work/sub; echo x > work/sub; rm work/file; mkdir work/file",
)
sh("mode_000_file", "file", "chmod 000 work/file work/data")
sh("mode_000_directory", "file", "echo x > work/sub/new; chmod 000 work/sub/deep work/sub")
sh("mode_000_root", "file", "echo x > work/new; chmod 000 work")
sh("modes", "file", "chmod 777 work/secret work; chmod 1777 home; chmod 644 work/run work/empty")
sh("setuid", "file", "chmod u+s work/run; cp bin/tool tmp/s; chmod 6755 tmp/s; chmod g+s work/sub")
py(
    "owner",
    "file",
    "import os\ntry: os.chown('work/file', 1234, 1234)\n"
    "except OSError: os.chmod('work/file', 0o646)",
)
py(
    "times_set_back",
    "file",
    "import os\ns = os.stat('work/data')\nwith open('work/data', 'r+b') as f: f.write(b'Z')\n"
    "os.utime('work/data', ns=(s.st_atime_ns, s.st_mtime_ns))",
)
sh(
    "touched",
    "file",
    "touch -d 2001-02-03 work/file work/sub work; touch -h -d 2001-01-01 work/link",
)
py(
    "attributes",
    "file",
    "import os\ntry:\n    os.setxattr('work/file', 'user.note', b'other')\n"
    "    os.setxattr('work/sub', 'user.new', b'x' * 100)\n"
    "except OSError: os.chmod('work/file', 0o600)",
)
py(
    "access_list",
    "file",
    "import os, struct\nentry = lambda t, p, i: struct.pack('<HHI', t, p, i)\nno = 0xffffffff\n"
    "acl = struct.pack('<I', 2) + entry(1, 6, no) + entry(2, 7, 1234) + entry(4, 4, no)"
    " + entry(16, 7, no) + entry(32, 4, no)\n"
    "try: os.setxattr('work/file', 'system.posix_acl_access', acl)\n"
    "except OSError: os.chmod('work/file', 0o600)",
)
sh(
    "immutable",
    "file",
    "echo x >> work/data; echo x > work/sub/new; chattr +i work/data work/sub/new work/sub"
    " || chmod 0 work/data",
)
sh("append_only", "file", "echo x >> work/file; chattr +a work/file work || chmod 0 work/file")
sh("files_in_tmp", "file", "mkdir -p tmp/a/b; echo x > tmp/a/b/c; rm -f tmp/old; chmod 755 tmp")
sh(
    "watched_directory",
    "file",
    "echo root2 >> watched/passwd; rm -f watched/sub/x; echo new > watched/new",
    stays=ALWAYS,
)
py(
    "watched_hostile_names",
    "file",
    "for name in (b'watched/\\xff\\xfe', b'watched/new\\nline', b'watched/\\xed\\xa0\\x80'):\n"
    "    open(name, 'w').close()",
    stays=ALWAYS,
)
sh("watched_mode", "file", "chmod 600 watched/passwd; chmod 700 watched/sub", stays=ALWAYS)
py(
    "deep_directories",
    "file",
    "import os\nos.chdir('work')\nfor _ in range(700):\n    os.mkdir('d' * 40)\n"
    "    os.chdir('d' * 40)\nopen('leaf', 'w').close()",
)
py(
    "hostile_names",
    "file",
    "for name in (b'a' * 255, b'\\xff' * 255, b'\\n', b' ', b'-rf', b'\\x01\\x1b[2J', b'%2e%2e',"
    " b'\"', b'\\\\', b'.execd-tmp', b'.execd-deleted'):\n"
    "    open(b'work/' + name, 'w').close()\n    import os\n"
    "    os.makedirs(b'home/' + name, exist_ok=True)",
)
py(
    "five_thousand_files",
    "file",
    "import os\nfor d in range(50):\n    os.mkdir(f'work/m{d}')\n    for f in range(100):\n"
    "        open(f'work/m{d}/{f}', 'w').close()",
    is_drawn=False,
)
sh("much_data", "file", "head -c 64M /dev/zero > tmp/fill; head -c 8M /dev/urandom > work/data")
sh(
    "temporary_names_of_execd",
    "file",
    "for n in 1 2; do echo x > work/.execd-$n; done; "
    "echo x > work/.execd-tmp-0123456789abcdef; mkdir work/.execd-d",
)
sh(
    "filled_disk",
    "file",
    ": > work/data; cat /dev/zero > work/fill 2>/dev/null; echo x > tmp/more; rm -f work/file",
    is_drawn=False,
    needs_tmpfs=True,
)
sh("truncated", "file", ": > work/file; : > work/data; echo -n x >> work/empty-file")
sh("names_swapped", "file", "cd work; mv file x; mv run file; mv x run")

# --- the state of sessions and callers


def python_session(world: World) -> None:
    body = {"id": "kept"}
    world.client.post("/v1/sessions", json=body)
    code = (
        "import os, sys, subprocess; x = 1; os.environ['EVIL'] = '1'; os.umask(0); os.chdir('/')\n"
        f"open('{world.base}/work/by-session', 'w').close()\n"
        "subprocess.Popen(['sleep', '1000'])"
    )
    world.client.post("/v1/sessions/kept/execute", json={"code": code})
    world.client.post("/v1/code", json={"code": "import builtins; builtins.print = None"})


row("session_state", "file", python_session)


def bash_session(world: World) -> None:
    made = httpx.post(f"{world.bash_url}/session", json={}, timeout=READ_SECONDS, trust_env=False)
    session = made.json()["session_id"]
    command = f"cd {world.base}; export EVIL=1; umask 000; alias ls=false; echo x > work/by-bash; "
    url = f"{world.bash_url}/session/{session}/run"
    body = {"command": command + "sleep 1000 > /dev/null 2>&1 &"}
    httpx.post(url, json=body, timeout=READ_SECONDS, trust_env=False)

    def look() -> list[Finding]:
        reply = httpx.post(url, json={"command": "true"}, timeout=READ_SECONDS, trust_env=False)
        lives = reply.status_code == 200
        return [Finding("state", "bash session", reply.text[:200])] if lives else []

    world.probes.append(look)


row("bash_session", "state", bash_session)


def terminal(world: World) -> None:
    world.run(
        argv=["/bin/sh", "-c", "sleep 1000; exec sh"], pty=True, detach=True, env=world.variables()
    )
    runs(world)


row("terminal", "process", terminal)


def upload(world: World) -> None:
    connection = world.target.connect()
    world.closers.append(connection.close)
    connection.sendall(
        b"PUT /v1/files/work/uploaded HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        + b"x" * 5000
    )
    wait_until(
        lambda: any(b".execd" in path for path in world.see_files()["work"]), 20, "it has begun"
    )


row("open_upload", "file", upload)


def used_key(world: World) -> None:
    """The key must be free again: else the next episode would get this episode's answer."""
    body = {"id": "used", "command": "echo used >> work/used-key"}
    headers = {"Idempotency-Key": "used"}
    world.client.post("/v1/executions", json=body, headers=headers)


row("used_key", "file", used_key)


def watcher(world: World) -> None:
    def follow() -> None:
        with httpx.stream(
            "GET", f"{world.target.url}/v1/watch/work", timeout=READ_SECONDS, trust_env=False
        ) as reply:
            for _ in reply.iter_lines():
                pass

    in_thread(world, follow)
    world.shell("echo x > work/for-the-watcher")


row("watch_stream", "file", watcher)


def follower(world: World) -> None:
    """A caller who reads a stream when the reset comes."""

    def follow() -> None:
        body = {"command": "while :; do echo x; sleep 0.02; done"}
        with httpx.stream(
            "POST",
            f"{world.target.url}/v1/executions",
            json=body,
            headers={"Accept": "text/event-stream"},
            timeout=READ_SECONDS,
            trust_env=False,
        ) as reply:
            for _ in reply.iter_lines():
                pass

    in_thread(world, follow)
    runs(world)


row("streamed_execution", "process", follower)


def half_a_request(world: World) -> None:
    body = json.dumps({"command": "echo late > work/late"}).encode()
    connection = world.target.connect()
    world.closers.append(connection.close)
    head = (
        "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[:8])
    world.shell("echo x > work/beside")

    def finish() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(body[8:])

    world.finishers.append(finish)


row("request_whose_body_comes_after_the_reset", "file", half_a_request)

BY_NAME = {pollution.name: pollution for pollution in TABLE}
assert len(BY_NAME) == len(TABLE), "a name is used twice"
