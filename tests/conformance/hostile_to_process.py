"""Cells that reach below Python: descriptors, the protocol, the process itself, children, signals,
memory.

No cell looks for processes of another session: without namespaces a cell would find the processes
of this machine. The codes are for an interpreter of any version from 3.9 on, run by root or by
nobody, on Linux or in gVisor. Where the permissions of these systems differ, the ending is ANY. The
ending is also ANY where a process stops: while the warden ends a bomb, the warden stops all
processes and then lets them go on. A process that has just stopped itself goes on too.
"""

from __future__ import annotations

import os

from .hostile_cell import (
    ANYTHING,
    Ending,
    HostileCell,
    breaks,
    dies,
    killed,
    lives,
    stops,
    unsure,
)

LEFT = f"interrupts-a-session-of-{os.getpid()}"
_EACH_FD = "import os\nfor fd in map(int, os.listdir('/proc/self/fd')):\n"
_SOCKETS = (
    "import os, socket\n"
    "ends = []\n"
    "for fd in range(3, 5000):\n"
    "    try:\n"
    "        if os.readlink(f'/proc/self/fd/{fd}').startswith('socket:'): ends.append(fd)\n"
    "    except OSError: pass\n"
)
_FORGE = (
    _SOCKETS + "import json\n"
    "def forge(**frame): forge_all([frame])\n"
    "def forge_all(frames):\n"
    "    datas = [json.dumps(frame).encode() for frame in frames]\n"
    "    data = b''.join(len(data).to_bytes(4, 'big') + data for data in datas)\n"
    "    for fd in ends: os.write(fd, data)\n"
)
# At once: a later frame would answer the next cell, if that cell had begun.
_SAY_DONE = (
    _FORGE + "forge_all(dict(type='done', id=n, status='success', execution_count=n, exit=None)"
    " for n in range(50))\n"
)
_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_LOOP = "import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()\n"

CELLS: dict[str, dict[str, HostileCell]] = {
    "descriptors": {
        "closes all of them": dies("import os; os.closerange(0, 100_000)"),
        "closes the standard ones": lives("import os; os.closerange(0, 3)"),
        "closes the low ones": lives("import os; os.closerange(0, 256)"),
        "closes all but the standard ones": dies("import os; os.closerange(3, 100_000)"),
        "closes the high ones": dies("import os; os.closerange(256, 100_000)"),
        "closes its stdin": lives("import os; os.close(0)"),
        "closes them again and again": dies(
            "import os\nfor _ in range(20): os.closerange(0, 8192)"
        ),
        "writes to every one": dies(
            _EACH_FD + "    if fd > 2:\n"
            "        try: os.write(fd, b'stray')\n"
            "        except OSError: pass\n"
            "import time; time.sleep(20)"
        ),
        "reads from every one": unsure(
            _EACH_FD
            + "    try: os.set_blocking(fd, False); os.read(fd, 1 << 20)\n    except OSError: pass"
        ),
        "seeks and truncates every one": lives(
            _EACH_FD + "    for act in (lambda: os.lseek(fd, 0, 0), lambda: os.ftruncate(fd, 0)):\n"
            "        try: act()\n"
            "        except OSError: pass"
        ),
        "shuts down every socket": dies(
            _SOCKETS
            + "for fd in ends: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)\n"
            "import time; time.sleep(20)"
        ),
        "shuts down every socket's writing": dies(
            _SOCKETS + "for fd in ends: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_WR)"
        ),
        "shuts down every socket's reading": unsure(
            _SOCKETS + "for fd in ends: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RD)"
        ),
        "puts a file on every number": dies(
            "import os\n"
            "fd = os.open('/dev/null', os.O_RDWR)\n"
            "for n in range(5000):\n"
            "    try: os.dup2(fd, n)\n"
            "    except OSError: pass"
        ),
        "puts a socket on every number": dies(
            "import os, socket\n"
            "a, b = socket.socketpair()\n"
            "for n in range(3, 5000):\n"
            "    try: os.dup2(a.fileno(), n)\n"
            "    except OSError: pass"
        ),
        "puts stdout on every number": dies(
            "import os\nfor n in range(3, 5000):\n    try: os.dup2(1, n)\n    except OSError: pass"
        ),
        "puts stdin over the low ones": lives(
            "import os; [os.dup2(0, fd) for fd in range(1, 300)]"
        ),
        "puts stdout on the null device": lives(
            "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)"
        ),
        "puts stdout onto stderr": lives("import os; os.dup2(1, 2)"),
        "swaps stdout and stderr": lives("import os; k = os.dup(1); os.dup2(2, 1); os.dup2(k, 2)"),
        "puts a pipe that nobody reads on stdout": lives(
            "import os; r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('lost')",
            ANYTHING,
        ),
        "puts a full pipe on stdout": unsure(
            "import os; r, w = os.pipe(); os.dup2(w, 1); os.write(1, b'x' * 10_000_000)"
        ),
        "puts the full device on stdout": lives(
            "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x' * 100_000)",
            ANYTHING,
        ),
        "makes every one non-blocking": lives(
            _EACH_FD + "    try: os.set_blocking(fd, False)\n    except OSError: pass"
        ),
        "makes stdout non-blocking and floods it": lives(
            "import os\n"
            "os.set_blocking(1, False)\n"
            "n = 0\n"
            "while n < 1000:\n"
            "    try: os.write(1, b'x' * 4096)\n"
            "    except BlockingIOError: pass\n"
            "    n += 1"
        ),
        "makes every one inheritable": lives(
            _EACH_FD + "    try: os.set_inheritable(fd, True)\n"
            "    except OSError: pass\n"
            "import subprocess; subprocess.run(['true'], close_fds=False)"
        ),
        "fills the table": lives(
            "import os\nheld = []\nwhile True: held.append(os.open('/dev/null', os.O_RDONLY))",
            "OSError",
        ),
        "fills the table and keeps it full": lives(
            "import os, resource\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, "
            "(200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
            "held = []\n"
            "try:\n"
            "    while True: held.append(os.dup(0))\n"
            "except OSError: pass"
        ),
        # The kernel sends no signal while somebody waits in recv(2) (sock_wake_async), so any later
        # cell may be the cell that dies.
        "asks for a signal at every input": breaks(
            "import fcntl, os, signal\n" + _SOCKETS + "for fd in ends:\n"
            "    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()); "
            "fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)"
        ),
        "locks and seals what it finds": lives(
            "import fcntl\n"
            + _EACH_FD
            + "    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except OSError: pass"
        ),
        "shrinks the pipes": lives(
            "import fcntl\n"
            "for fd in (1, 2):\n"
            "    try: fcntl.fcntl(fd, 1031, 4096)\n"
            "    except OSError: pass\n"
            "print('x' * 100_000)"
        ),
        "opens the pipes anew and keeps them": lives(
            "import os\n"
            "held = []\n"
            "for fd in (1, 2):\n"
            "    try: held.append(os.open(f'/proc/self/fd/{fd}', os.O_RDWR | os.O_NONBLOCK))\n"
            "    except OSError: pass"
        ),
        "drinks its own output": unsure(
            "import os\n"
            "fd = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\n"
            "for _ in range(100):\n"
            "    print('mine')\n"
            "    try: os.read(fd, 4096)\n"
            "    except BlockingIOError: pass"
        ),
    },
    "frames": {
        "says that it is done before it is": unsure(
            _FORGE + "forge(type='done', id=1, status='success', execution_count=1, exit=None)"
        ),
        "says done for every number": unsure(_SAY_DONE),
        "says done and goes on for ever": unsure(_SAY_DONE + "while True: pass"),
        "says done and dies": unsure(_SAY_DONE + "os._exit(3)"),
        "says that others are done": lives(
            _FORGE + "for n in (10**6, 0, 2**60): "
            "forge(type='done', id=n, status='error', execution_count=n, exit={'code': 7})"
        ),
        "results of cells to come": lives(
            _FORGE + "for n in range(1000, 1010): "
            "forge(type='result', id=n, execution_count=n, data={'text/plain': "
            "'forged'}, metadata={})"
        ),
        "answers to no question": lives(
            _FORGE + "forge(type='reply', id=1, warnings=['forged']); forge(type='configured'); "
            "forge(type='ready', python='9', ipython='9', warnings=[])"
        ),
        "says that it failed": lives(_FORGE + "forge(type='failed', message='forged')"),
        "asks for input that nobody allowed": lives(
            _FORGE
            + "for n in range(50): forge(type='input_request', id=n, prompt='?', password=True)"
        ),
        "exit codes of any size": dies(
            _FORGE + "for n in range(50): forge(type='done', id=n, status='error', "
            "execution_count=-2**62, exit={'code': 2**62})\n"
            "import time; time.sleep(20)"
        ),
        "numbers beyond all types": dies(
            _FORGE
            + "forge(type='done', id=10**400, status='success', execution_count=1, exit=None)\n"
            "import time; time.sleep(20)"
        ),
        "numbers that are none": dies(
            _FORGE + "forge(type='result', id=1, execution_count=1, data={'x': float('nan')}, "
            "metadata={'y': float('inf')})\n"
            "import time; time.sleep(20)"
        ),
        "a type that is not there": dies(
            _FORGE + "forge(type='kill', id=1)\nimport time; time.sleep(20)"
        ),
        "the daemon's own words": dies(
            _FORGE
            + "forge(type='execute', id=1, code='1', allow_input=False, store_history=True)\n"
            "import time; time.sleep(20)"
        ),
        "a list for a frame": dies(
            _SOCKETS
            + "for fd in ends: os.write(fd, b'\\0\\0\\0\\2[]')\nimport time; time.sleep(20)"
        ),
        "an empty frame": dies(
            _SOCKETS + "for fd in ends: os.write(fd, b'\\0\\0\\0\\0')\nimport time; time.sleep(20)"
        ),
        "half a frame": unsure(_SOCKETS + "for fd in ends: os.write(fd, b'\\0\\0\\1')"),
        "the head of a frame that never comes": unsure(
            _SOCKETS + "for fd in ends: os.write(fd, b'\\0\\0\\xff\\xff')"
        ),
        "the largest length there is": dies(
            _SOCKETS
            + "for fd in ends: os.write(fd, b'\\xff\\xff\\xff\\xff')\nimport time; time.sleep(20)"
        ),
        "nests too deep": dies(
            _SOCKETS
            + 'data = b\'{"type":"result","id":1,"execution_count":1,"metadata":{},"data":\' + '
            "b'{\"a\":' * 50_000 + b'1' + b'}' * 50_001\n"
            "for fd in ends: "
            "socket.socket(fileno=os.dup(fd)).sendall(len(data).to_bytes(4, 'big') + data)\n"
            "import time; time.sleep(20)"
        ),
        "bytes that are no text": dies(
            _SOCKETS + 'data = b\'{"type":"failed","message":"\\xff\\xfe"}\'\n'
            "for fd in ends: os.write(fd, len(data).to_bytes(4, 'big') + data)\n"
            "import time; time.sleep(20)"
        ),
        # No byte below 3: one header in a hundred would be the length of an allowed frame, and the
        # daemon would wait for the rest of the frame.
        "noise": dies(
            "import random\n" + _SOCKETS + "for fd in ends:\n"
            "    for _ in range(100): "
            "os.write(fd, bytes(random.randrange(3, 256) for _ in range(64)))\n"
            "import time; time.sleep(20)"
        ),
        "descriptors that nobody asked for": lives(
            _SOCKETS + "for fd in ends: socket.send_fds(socket.socket(fileno=os.dup(fd)), "
            "[b''], [0, 1, 2] * 20)",
            ANYTHING,
        ),
        "a descriptor in the midst of a frame": dies(
            _SOCKETS + "for fd in ends: socket.send_fds(socket.socket(fileno=os.dup(fd)), "
            "[b'\\0\\0\\0\\1x'], [0])\n"
            "import time; time.sleep(20)"
        ),
        "displays of other cells, without end": unsure(
            _FORGE + "while True: forge(type='display', id=99, data={'text/plain': 'x' * 1000}, "
            "metadata={}, display_id=None, update=False)"
        ),
        "two threads that both speak": unsure(
            _FORGE + "import threading\n"
            "def go():\n"
            "    for n in range(200): "
            "forge(type='display', id=99, data={}, metadata={}, "
            "display_id=None, update=False)\n"
            "threads = [threading.Thread(target=go) for _ in range(4)]\n"
            "for t in threads: t.start()\n"
            "for n in range(200): display(n)\n"
            "for t in threads: t.join()"
        ),
    },
    "its own process": {
        "exits": dies("import os; os._exit(0)"),
        "exits with a code": dies("import os; os._exit(7)"),
        "aborts": dies("import os; os.abort()"),
        "reads address zero": dies("import ctypes; ctypes.string_at(0)"),
        "overwrites None": dies("import ctypes; ctypes.memset(id(None), 0, 64)"),
        "overwrites its shell": unsure("import ctypes; ctypes.memset(id(get_ipython()), 0, 64)"),
        "overwrites a type": unsure("import ctypes; ctypes.memset(id(dict), 0, 400)"),
        "faults": dies("import faulthandler; faulthandler._sigsegv()"),
        "jumps into nothing": dies("import ctypes; ctypes.CFUNCTYPE(None)(1)()"),
        "code that is no code": unsure(
            "f = lambda: 1\n"
            "f.__code__ = f.__code__.replace(co_code=b'\\xff' * len(f.__code__.co_code))\n"
            "f()"
        ),
        "kills itself": dies("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        "terminates itself": dies("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
        "kills its group": dies("import os, signal; os.killpg(0, signal.SIGKILL)"),
        "terminates its group and stays": lives(
            "import os, signal; signal.signal(15, signal.SIG_IGN); os.killpg(0, 15)"
        ),
        "stops itself": unsure("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
        "terminates its parent, which does not mind, and stops": unsure(
            "import os, signal; os.kill(os.getppid(), signal.SIGTERM); "
            "os.kill(os.getpid(), signal.SIGSTOP)"
        ),
        "stops its group": unsure("import os, signal; os.killpg(0, signal.SIGSTOP)"),
        "stops itself for a moment": unsure(
            "import os, signal, subprocess\n"
            "subprocess.Popen(['sh', '-c', f'sleep 0.2; kill -CONT {os.getpid()}'])\n"
            "os.kill(os.getpid(), signal.SIGSTOP)"
        ),
        "becomes another program": dies("import os; os.execv('/bin/true', ['true'])"),
        "becomes one that goes on": dies(
            "import os; os.execv('/bin/sh', ['sh', '-c', 'trap \"\" INT; echo replaced; sleep 60'])"
        ),
        "becomes itself": unsure(
            "import os, sys; os.execv(sys.executable, "
            "[sys.executable, '-c', 'import time; time.sleep(60)'])"
        ),
        "takes another group": unsure("import os; os.setpgid(0, 0)"),
        "takes another session": unsure("import os; os.setsid()"),
        "takes another name": lives(_LIBC + "libc.prctl(15, b'kworker/0:0', 0, 0, 0)"),
        "dies with its parent": lives(_LIBC + "libc.prctl(1, 9, 0, 0, 0)"),
        "adopts orphans": lives(
            _LIBC + "libc.prctl(36, 1, 0, 0, 0)\n"
            "import subprocess; subprocess.run(['sh', '-c', '(sleep 30 &)'])"
        ),
        "cannot be dumped": unsure(_LIBC + "libc.prctl(4, 0, 0, 0, 0)"),
        "asks to be traced": unsure(_LIBC + "libc.ptrace(0, 0, 0, 0)"),
        "asks to be traced and stops": unsure(
            _LIBC + "import signal\nlibc.ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), signal.SIGTRAP)"
        ),
        "forbids itself all system calls": unsure(
            _LIBC + "libc.prctl(22, 1, 0, 0, 0)\nos.getppid()"
        ),
        "forbids itself to send": unsure(
            _LIBC + "import struct\n"
            "libc.prctl(38, 1, 0, 0, 0)\n"
            "code = b''.join(struct.pack('HBBI', *i) for i in [(0x20, 0, 0, 0), "
            "(0x15, 0, 1, 44), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)])\n"
            "buf = ctypes.create_string_buffer(code)\n"
            "class P(ctypes.Structure): "
            "_fields_ = [('n', ctypes.c_ushort), ('f', ctypes.c_void_p)]\n"
            "libc.prctl(22, 2, ctypes.byref(P(4, ctypes.addressof(buf))), 0, 0)"
        ),
        "changes its personality": lives(_LIBC + "libc.personality(0x0040000)"),
        "is nice": lives("import os; os.nice(19)"),
        "takes another identity": unsure("import os; os.setuid(65534)"),
        "takes another root": unsure("import os, tempfile; os.chroot(tempfile.mkdtemp())"),
        "takes namespaces of its own": unsure(_LIBC + "libc.unshare(0x10000000)"),
        "is the first to be killed": lives(
            "try: open('/proc/self/oom_score_adj', 'w').write('1000')\nexcept OSError: pass"
        ),
        "unmaps what it stands on": unsure(
            _LIBC
            + "libc.munmap(ctypes.c_void_p(ctypes.addressof(ctypes.c_int()) & ~4095), 1 << 20)"
        ),
        "takes its memory's rights": dies(
            _LIBC + "libc.mprotect(ctypes.c_void_p(id([0] * 100_000) & ~4095), 1 << 24, 0)\n"
            "[[0] * 1000 for _ in range(10_000)]"
        ),
        "returns from its main thread": dies(_LIBC + "libc.pthread_exit(0)"),
        "ends by C's own exit": dies(_LIBC + "libc.exit(0)"),
        "ends by C's own exit with handlers": dies(
            _LIBC + "f = ctypes.CFUNCTYPE(None)(lambda: print('late'))\n"
            "libc.__cxa_atexit(f, None, None)\n"
            "libc.exit(0)"
        ),
        "jumps out of Python": unsure(_LIBC + "libc.longjmp(ctypes.create_string_buffer(1000), 1)"),
    },
    "forks": {
        "forks, and both go on": lives("import os; pid = os.fork()"),
        "forks, and the child stays": lives("import os, time\nif os.fork() == 0: time.sleep(60)"),
        "forks, and the child spins": lives("import os\nif os.fork() == 0:\n    while True: pass"),
        "forks, and the child leaves": lives("import os\nif os.fork() == 0: os._exit(0)"),
        "forks, and the parent leaves": dies(
            "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(1)"
        ),
        "forks, and the child fails": lives("import os\nif os.fork() == 0: 1 / 0\nos.wait()"),
        "forks, and the child displays": lives(
            "import os\npid = os.fork()\ndisplay('shown')\nif pid: os.wait()"
        ),
        "forks a line": lives(
            "import os\nfor _ in range(20):\n    if os.fork() == 0: print('child'); break"
        ),
        "forks a tree": lives("import os; [os.fork() for _ in range(3)]"),
        "forks through C": lives(_LIBC + "pid = libc.fork()\nif pid: os.waitpid(pid, 0)"),
        "forks by vfork": unsure(_LIBC + "pid = libc.vfork()\nif pid == 0: libc._exit(0)"),
        "forks by a system call": lives(
            _LIBC + "pid = libc.syscall(57)\nif pid: os.waitpid(pid, 0)", ANYTHING
        ),
        "clones what it is made of": unsure(_LIBC + "libc.syscall(56, 0x400 | 17, 0, 0, 0, 0)"),
        "forks from a thread": lives(
            "import os, threading\n"
            "def go():\n"
            "    if os.fork() == 0: os._exit(0)\n"
            "t = threading.Thread(target=go); t.start(); t.join()"
        ),
        "forks from a thread, and the child returns": lives(
            "import os, threading\nt = threading.Thread(target=os.fork); t.start(); t.join()"
        ),
        "forks in a handler of forks": lives(
            "import os\n"
            "done = []\n"
            "def again():\n"
            "    if not done: done.append(1); os._exit(0) if os.fork() == 0 else None\n"
            "os.register_at_fork(before=again)\n"
            "if os.fork() == 0: os._exit(0)"
        ),
        "forks a child that speaks as the worker": lives(
            _SOCKETS + "if os.fork() == 0:\n"
            "    for fd in range(3, 5000):\n"
            "        try: os.write(fd, b'\\xff' * 64)\n"
            "        except OSError: pass\n"
            "    os._exit(0)\n"
            "os.wait()"
        ),
        "forks in silence, and the child speaks": dies(
            _SOCKETS + _LIBC + "if libc.fork() == 0:\n"
            "    for fd in ends: os.write(fd, b'\\xff' * 64)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "import time; time.sleep(20)"
        ),
        "daemonises": lives(
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0: time.sleep(60)\n"
            "    os._exit(0)\n"
            "os.wait()"
        ),
        "a bomb of programs": unsure(
            "import subprocess\n"
            "held = []\n"
            "while True: held.append(subprocess.Popen(['sleep', '60']))"
        ),
        "zombies": lives("import os\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)"),
        "a shell that kills its parent": dies("%%bash\nkill -9 $PPID"),
        "a shell that stops its parent": unsure("!kill -STOP $PPID"),
        "a shell that leaves something": lives("!(sleep 60 &)"),
        "a shell that holds the output": lives("!sleep 60 &"),
        "a shell that ignores interrupts": stops("!trap '' INT TERM; sleep 60; sleep 60"),
        "a pool of processes that are never joined": lives(
            "import multiprocessing as m, time\n"
            "m.get_context('fork').Pool(2).apply_async(time.sleep, (60,))"
        ),
        "a process that kills the one above": dies(
            "import multiprocessing as m, os, signal\n"
            "def f(): os.kill(os.getppid(), signal.SIGKILL)\n"
            "p = m.get_context('fork').Process(target=f); p.start(); p.join()"
        ),
        "processes and signals in a ring": lives(
            "import os, signal\n"
            "signal.signal(signal.SIGCHLD, lambda *_: None)\n"
            "for _ in range(30):\n"
            "    if os.fork() == 0: os._exit(0)"
        ),
        "waits for all": unsure(
            "import os\nwhile True:\n    try: os.wait()\n    except ChildProcessError: break"
        ),
        "ignores its children's ends": lives(
            "import signal, subprocess; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
            "subprocess.run(['true'])"
        ),
    },
    "signals and timers": {
        "ignores those it can": lives(
            "import signal\n"
            "for n in range(1, 65):\n"
            "    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass"
        ),
        "ignores those it can and spins": killed(
            "import signal\n"
            "for n in range(1, 65):\n"
            "    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\n"
            "while True: pass"
        ),
        "resets all of them": lives(
            "import signal\n"
            "for n in range(1, 65):\n"
            "    try: signal.signal(n, signal.SIG_DFL)\n"
            "    except (OSError, ValueError): pass"
        ),
        "resets the interrupt and spins": killed(
            "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\nwhile True: pass"
        ),
        "blocks all of them": lives(
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"
        ),
        "blocks all of them and spins": killed(
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
            "while True: pass"
        ),
        "handles the interrupt and sleeps on": killed(
            "import signal, time; signal.signal(signal.SIGINT, lambda *_: None)\n"
            "while True: time.sleep(1)"
        ),
        "handlers that raise": breaks(
            "import signal\n"
            "def h(*_): raise RuntimeError\n"
            "for n in (10, 12, 14, 15): signal.signal(n, h)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
            "for _ in range(10**6): pass"
        ),
        "handlers that raise between cells": breaks(
            "import signal\n"
            "def h(*_): raise RuntimeError\n"
            "signal.signal(signal.SIGALRM, h)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.01)"
        ),
        "handlers that raise SystemExit in any line": breaks(
            "import signal\n"
            "def h(*_): raise SystemExit(9)\n"
            "signal.signal(signal.SIGALRM, h)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
            "for n in range(10**6): print(end='')"
        ),
        "a handler that raises the interrupt": lives(
            "import os, signal\n"
            "def h(*_): raise KeyboardInterrupt\n"
            "signal.signal(signal.SIGUSR1, h)\n"
            "os.kill(os.getpid(), signal.SIGUSR1)\n"
            "for _ in range(10**6): pass",
            "KeyboardInterrupt",
        ),
        "a handler for a fault": unsure(
            "import ctypes, signal\n"
            "signal.signal(signal.SIGSEGV, lambda *_: None)\n"
            "ctypes.string_at(0)"
        ),
        "a handler in C that does nothing": unsure(
            "import ctypes, os, signal\n"
            "ctypes.CDLL(None).signal(2, ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda n: None))\n"
            "os.kill(os.getpid(), 2)"
        ),
        "an alarm without a handler": unsure(
            "import signal; signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)"
        ),
        "an alarm without a handler, and waits for it": dies(
            "import signal, time; signal.alarm(1); time.sleep(20)"
        ),
        "a timer of processor time": dies(
            "import signal; signal.setitimer(signal.ITIMER_PROF, 0.05)\nwhile True: pass"
        ),
        "signals itself without end": stops(
            "import os, signal\n"
            "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
            "while True: os.kill(os.getpid(), signal.SIGUSR1)"
        ),
        "interrupts itself": lives(
            "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(20)",
            "KeyboardInterrupt",
        ),
        "interrupts itself a moment after its end": HostileCell(
            "import subprocess, os; subprocess.Popen(['sh', '-c', "
            f"f'sleep 0.5; kill -INT {{os.getpid()}}; : {LEFT}'])",
            Ending.LIVES,
            left=LEFT,
        ),
        "raises the interrupt by hand": lives("raise KeyboardInterrupt", "KeyboardInterrupt"),
        "raises the interrupt in the main thread": lives(
            "import _thread, time\n_thread.interrupt_main(); time.sleep(20)", "KeyboardInterrupt"
        ),
        "swallows one interrupt": killed(
            "import time\nwhile True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass"
        ),
        "swallows everything": killed(
            "import time\n"
            "while True:\n"
            "    try:\n"
            "        while True: time.sleep(0.01)\n"
            "    except BaseException: pass"
        ),
        "sleeps in its finally": stops(
            "import time\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(60)"
        ),
        "sleeps in C": stops("import ctypes; ctypes.CDLL(None).sleep(60)"),
        "loops in C": killed("sum(range(10 ** 13))"),
        "matches for ever": stops("import re; re.match(r'(a+)+$', 'a' * 60 + 'b')"),
        "waits for a lock": stops(
            "import threading; l = threading.Lock(); l.acquire(); l.acquire()"
        ),
        "waits for a signal that it has blocked": killed(
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); "
            "signal.sigwait([signal.SIGUSR1])"
        ),
        "takes the interrupt by waiting for it": unsure(
            "import signal\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
            "while True: signal.sigwait([signal.SIGINT])"
        ),
        "a descriptor that wakes": lives(
            "import os, signal; r, w = os.pipe(); os.set_blocking(w, False); "
            "signal.set_wakeup_fd(w); os.close(r)"
        ),
        "an alternative stack": lives(
            "import ctypes; ctypes.CDLL(None).siginterrupt(2, 0)\n"
            "import faulthandler; faulthandler.enable(); "
            "faulthandler.dump_traceback_later(0.05, repeat=True)"
        ),
        "a watchdog that exits": dies(
            "import faulthandler, time; "
            "faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(20)"
        ),
    },
    "memory and limits": {
        "a string of a gibibyte": lives("x = 'x' * (1 << 30)\nlen(x)"),
        "a result of a hundred megabytes": lives("'x' * (100 << 20)"),
        "more than there is": lives("x = bytearray(1 << 50)", "MemoryError"),
        "a list of more than there is": lives("[0] * (1 << 60)", "MemoryError"),
        "a number of a billion bits": unsure("2 ** 10**9"),
        "a number as text": lives("str(10 ** 5000)", ANYTHING),
        "a mapping of a tebibyte": unsure("import mmap; m = mmap.mmap(-1, 1 << 40)"),
        "no more address space": unsure(
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, -1)); "
            "x = bytearray(1 << 28)"
        ),
        "no more address space for ever": unsure(
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20)); "
            "x = bytearray(1 << 28)"
        ),
        "no more data": unsure(
            "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, 1 << 20)); "
            "x = [0] * 10**7"
        ),
        "no more stack": unsure(
            "import resource; resource.setrlimit(resource.RLIMIT_STACK, (8192, 8192))\n"
            "def f(): f()\n"
            "f()"
        ),
        "no more descriptors": lives(
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
        ),
        "no descriptors at all": lives(
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))"
        ),
        "no more processes": lives(
            "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))"
        ),
        "no more processor time": dies(
            "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass"
        ),
        "no more file size": unsure(
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
            "open('limited', 'w').write('x')"
        ),
        "no more signals": lives(
            "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))", ANYTHING
        ),
        "threads until none more can be made": unsure(
            "import threading, time\n"
            "held = []\n"
            "while len(held) < 3000:\n"
            "    t = threading.Thread(target=time.sleep, args=(60,), daemon=True); "
            "t.start(); held.append(t)"
        ),
        "thread stacks of a gibibyte": lives(
            "import threading\n"
            "threading.stack_size(1 << 30)\n"
            "for _ in range(4):\n"
            "    t = threading.Thread(target=int); t.start(); t.join()",
            ANYTHING,
        ),
        "a file without a name that grows": lives(
            "import os\nfd = os.memfd_create('x'); os.ftruncate(fd, 1 << 40)", ANYTHING
        ),
        "a file of a tebibyte": lives(
            "import os\n"
            "with open('sparse', 'wb') as f:\n"
            "    try: os.ftruncate(f.fileno(), 1 << 40)\n"
            "    except OSError: pass\n"
            "os.remove('sparse')"
        ),
        "locks its memory": lives("import ctypes; ctypes.CDLL(None).mlockall(3)"),
        "shared memory that it forgets": lives(
            "import mmap; held = [mmap.mmap(-1, 1 << 24) for _ in range(20)]"
        ),
    },
    "terminals and devices": {
        "a terminal of its own": unsure(
            "import os, pty\n"
            "pid, fd = pty.fork()\n"
            "if pid == 0: os.execv('/bin/sh', ['sh', '-c', 'echo hi; sleep 60'])\n"
            "os.read(fd, 100)"
        ),
        "makes a terminal its own": unsure(
            "import fcntl, os, termios\n"
            "m, s = os.openpty()\n"
            "try: os.setsid()\n"
            "except OSError: pass\n"
            "fcntl.ioctl(s, termios.TIOCSCTTY, 0)\n"
            "os.close(m)"
        ),
        "types at its terminal": lives(
            "import fcntl, termios\n"
            "for fd in range(3):\n"
            "    try: fcntl.ioctl(fd, termios.TIOCSTI, b'x')\n"
            "    except OSError: pass"
        ),
        "a terminal under stdout": unsure(
            "import os\nm, s = os.openpty(); os.dup2(s, 1); print('x' * 100_000)"
        ),
        "controls every descriptor": unsure(
            "import fcntl, termios\n"
            + _EACH_FD
            + "    for what in (termios.FIOCLEX, termios.FIONCLEX, termios.TIOCNOTTY, "
            "termios.FIONREAD):\n"
            "        try: fcntl.ioctl(fd, what, b'\\0' * 64)\n"
            "        except (OSError, ValueError): pass"
        ),
        "reads from /dev/tty": unsure("open('/dev/tty').read()"),
        "reads zeros without end": stops(
            "with open('/dev/zero', 'rb') as f:\n    while f.read(1 << 20): pass"
        ),
        "a fifo with nobody at its end": stops(
            "import os\nos.path.exists('fifo') or os.mkfifo('fifo')\nopen('fifo')"
        ),
        "its own memory as a file": unsure(
            "with open('/proc/self/mem', 'r+b', 0) as f:\n"
            "    f.seek(id(None)); f.write(b'\\0' * 64)"
        ),
        "its own limits and names": lives(
            "for name in ('comm', 'oom_score_adj', 'coredump_filter', 'autogroup', 'clear_refs', "
            "'loginuid', 'setgroups', 'uid_map'):\n"
            "    try: open(f'/proc/self/{name}', 'w').write('1')\n"
            "    except OSError: pass"
        ),
    },
}

_OTHERS = (
    "import os, signal, time\n"
    "assert os.getppid() == 1  # or it is this machine's\n"
    "others = [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and "
    "int(pid) != os.getpid()]\n"
)
AT_LARGE: dict[str, str] = {
    "kills all that it sees, init last": _OTHERS + "for pid in sorted(others, reverse=True):\n"
    "    try: os.kill(pid, signal.SIGKILL)\n"
    "    except OSError: pass\n"
    "time.sleep(20)",
    "kills all that it sees, init first": _OTHERS + "for pid in sorted(others):\n"
    "    try: os.kill(pid, signal.SIGKILL)\n"
    "    except OSError: pass\n"
    "time.sleep(20)",
    "kills all that it sees, and goes on": _OTHERS + "for pid in others:\n"
    "    try: pid == 1 or os.kill(pid, signal.SIGKILL)\n"
    "    except OSError: pass",
    "kills all at once": _OTHERS + "os.kill(-1, signal.SIGKILL)",
    "kills all at once, again and again": _OTHERS
    + "for _ in range(50): os.kill(-1, signal.SIGKILL); time.sleep(0.01)",
    "kills init": _OTHERS + "os.kill(1, signal.SIGKILL); time.sleep(20)",
    "terminates init": _OTHERS + "for n in (15, 1, 2, 3, 6, 11): os.kill(1, n)",
    "stops init": _OTHERS + "os.kill(1, signal.SIGSTOP)",
    "stops all that it sees": _OTHERS
    + "for pid in others:\n    try: os.kill(pid, signal.SIGSTOP)\n    except OSError: pass",
    "stops all at once": _OTHERS + "os.kill(-1, signal.SIGSTOP)",
    "terminates all at once": _OTHERS + "os.kill(-1, signal.SIGTERM)",
    "interrupts all at once": _OTHERS + "for _ in range(20): os.kill(-1, signal.SIGINT)",
    "every signal to all": _OTHERS
    + "for n in range(1, 65):\n    try: os.kill(-1, n)\n    except OSError: pass\ntime.sleep(0.1)",
    "kills the groups of all": _OTHERS + "for pid in others:\n"
    "    try: pid == 1 or os.killpg(os.getpgid(pid), signal.SIGKILL)\n"
    "    except OSError: pass\n"
    "time.sleep(1)",
    "opens the descriptors of all": _OTHERS + "for pid in others:\n"
    "    try: fds = os.listdir(f'/proc/{pid}/fd')\n"
    "    except OSError: continue\n"
    "    for fd in fds:\n"
    "        try: os.write(os.open(f'/proc/{pid}/fd/{fd}', "
    "os.O_RDWR | os.O_NONBLOCK), b'\\xff' * 64)\n"
    "        except OSError: pass",
    "writes into the memory of all": _OTHERS + "for pid in others:\n"
    "    try:\n"
    "        with open(f'/proc/{pid}/mem', 'r+b', 0) as f: f.seek(id(None)); "
    "f.write(b'\\0' * 64)\n"
    "    except OSError: pass",
    "traces all": _OTHERS
    + "import ctypes\nlibc = ctypes.CDLL(None)\nfor pid in others: libc.ptrace(16, pid, 0, 0)",
    "limits all": _OTHERS + "import resource\n"
    "for pid in others:\n"
    "    try: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)); "
    "resource.prlimit(pid, resource.RLIMIT_AS, (0, 0))\n"
    "    except OSError: pass",
    "slows all": _OTHERS + "for pid in others:\n"
    "    try: os.setpriority(os.PRIO_PROCESS, pid, 19)\n"
    "    except OSError: pass",
}
"""Codes that reach for every visible process; only for a daemon that keeps user code in a PID
namespace."""
