"""Cells that attack the answers of a session and their foundations: displays, errors, output,
input, the loop, imports, time, place.

As for ``hostile_to_process``, the endings hold for any version, user and kernel.
"""

from __future__ import annotations

from .hostile_cell import ANYTHING, HostileCell, breaks, dies, lives, stops, unsure

_LOOP = "import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()\n"

CELLS: dict[str, dict[str, HostileCell]] = {
    "displays": {
        "a repr that raises": lives("class A:\n    def __repr__(self): 1 / 0\nA()", ANYTHING),
        "a repr that leaves the cell": unsure(
            "class A:\n    def __repr__(self): raise SystemExit(3)\nA()"
        ),
        "a repr that leaves the process": dies(
            "class A:\n    def __repr__(self): import os; os._exit(4)\nA()"
        ),
        "a repr that hangs": stops(
            "class A:\n    def __repr__(self):\n        while True: pass\nA()"
        ),
        "a repr that hangs and swallows": unsure(
            "class A:\n"
            "    def __repr__(self):\n"
            "        while True:\n"
            "            try:\n"
            "                while True: pass\n"
            "            except BaseException: pass\n"
            "A()"
        ),
        "a repr of no text": lives("class A:\n    def __repr__(self): return 5\nA()", ANYTHING),
        "a repr of bytes": lives("class A:\n    def _repr_html_(self): return b'\\xff'\nA()"),
        "a repr of a hundred megabytes": lives(
            "class A:\n    def __repr__(self): return 'x' * (100 << 20)\nA()"
        ),
        "a repr of half a character": lives(
            "class A:\n    def __repr__(self): return '\\ud800' * 10\nA()"
        ),
        "a repr that displays": lives(
            "class A:\n"
            "    n = 0\n"
            "    def __repr__(self):\n"
            "        A.n += 1\n"
            "        if A.n < 50: display(A())\n"
            "        return 'a'\n"
            "A()"
        ),
        "a repr that forks": unsure(
            "class A:\n    def __repr__(self): import os; os.fork(); return 'a'\nA()"
        ),
        "html that raises": lives(
            "class A:\n"
            "    def _repr_html_(self): raise ValueError\n"
            "    def __repr__(self): return 'a'\n"
            "A()",
            "ValueError",
        ),
        "html that interrupts": unsure(
            "class A:\n    def _repr_html_(self): raise KeyboardInterrupt\nA()"
        ),
        "html that hangs": stops(
            "import time\nclass A:\n    def _repr_html_(self): time.sleep(60)\nA()"
        ),
        "html of sixty megabytes": lives(
            "class A:\n    def _repr_html_(self): return 'x' * (60 << 20)\nA()"
        ),
        "a bundle of other things": lives(
            "class A:\n"
            "    def _repr_mimebundle_(self, **_): "
            "return {1: object(), None: b'x', 'text/plain': 5}\n"
            "A()",
            ANYTHING,
        ),
        "a bundle that is none": lives(
            "class A:\n    def _repr_mimebundle_(self, **_): return 'text'\nA()", ANYTHING
        ),
        "a bundle of a thousand types": lives(
            "display({f'application/x-{n}': 'x' * 100 for n in range(1000)}, raw=True)"
        ),
        "a bundle that raises": lives(
            "class D(dict):\n    def items(self): raise ValueError\ndisplay(D(a=1), raw=True)",
            ANYTHING,
        ),
        "a bundle that grows": unsure(
            "class D(dict):\n"
            "    def items(self):\n"
            "        while True: yield 'text/plain', 'x'\n"
            "display(D(a=1), raw=True)"
        ),
        "a bundle in itself": lives(
            "d = {'application/json': {}}; d['application/json']['x'] = d; display(d, raw=True)",
            ANYTHING,
        ),
        "a bundle of depth": lives(
            "x = {}\n"
            "for _ in range(5000): x = {'a': x}\n"
            "display({'application/json': x}, raw=True)",
            ANYTHING,
        ),
        "a bundle of numbers that are none": lives(
            "display({'application/json': [float('nan'), float('inf'), 10 ** 4000]}, raw=True)",
            ANYTHING,
        ),
        "a bundle of many small things": lives(
            "display({'application/json': [[]] * 200_000}, raw=True)", ANYTHING
        ),
        "a name that lies": lives(
            "class S(str):\n"
            "    def __str__(self): raise ValueError\n"
            "display({S('text/plain'): S('x')}, raw=True)",
            ANYTHING,
        ),
        "a picture that is none": lives(
            "from IPython.display import Image; Image(b'no picture', format='png')", ANYTHING
        ),
        "a picture of a tebibyte of pixels": lives(
            "import zlib\n"
            "from IPython.display import Image\n"
            "Image(zlib.compress(b'\\0' * 10**7), format='png')",
            ANYTHING,
        ),
        "thousands of displays": lives(
            "for _ in range(3000): display({'text/html': 'x' * 20000}, raw=True)"
        ),
        "more displays than a cell may send": lives("for n in range(12_000): display(n)"),
        "displays for ever": stops("while True: display('x' * 1000)"),
        "updates for ever": stops("h = display(1, display_id=True)\nwhile True: h.update(2)"),
        "clears for ever": stops(
            "from IPython.display import clear_output\nwhile True: clear_output()"
        ),
        "an update of nothing": lives(
            "from IPython.display import update_display; update_display(1, display_id='none such')"
        ),
        "an id of any kind": lives("display(1, display_id='x' * 10**6)"),
        "metadata that cannot be sent": lives(
            "display({'text/plain': 'x'}, metadata={'a': object(), 1: {2}}, raw=True)", ANYTHING
        ),
        "a value that is all things": unsure(
            "class A:\n"
            "    def __getattr__(self, name): return self\n"
            "    def __call__(self, *a, **k): return self\n"
            "A()"
        ),
        "a class that is its own": unsure(
            "class M(type):\n"
            "    def __getattribute__(cls, name): raise ValueError\n"
            "class A(metaclass=M): pass\n"
            "A()"
        ),
        "a formatter for all": unsure(
            "f = get_ipython().display_formatter.formatters['text/plain']\n"
            "f.for_type(object, lambda *_: 1 / 0)\n"
            "object()"
        ),
        "a formatter that leaves": unsure(
            "import os\n"
            "f = get_ipython().display_formatter.formatters['text/plain']\n"
            "f.for_type(int, lambda *_: os._exit(1))\n"
            "1"
        ),
    },
    "errors": {
        "a base exception of its own": lives("class Own(BaseException): pass\nraise Own", "Own"),
        "a generator's exit": lives("raise GeneratorExit", "GeneratorExit"),
        "an iteration's end": lives("raise StopIteration", "StopIteration"),
        "an awaited iteration's end": lives(
            "import asyncio\nawait asyncio.sleep(0)\nraise StopIteration", ANYTHING
        ),
        "a canceled task's": lives(
            "import asyncio\nraise asyncio.CancelledError", "CancelledError"
        ),
        "half a character": lives("raise BaseException(chr(0xd800))", "BaseException"),
        "a text that raises": lives(
            "class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E"
        ),
        "a text that leaves": dies(
            "class E(Exception):\n    def __str__(self): import os; os._exit(1)\nraise E"
        ),
        "a text that hangs": unsure(
            "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
        ),
        "a text that ends the cell": unsure(
            "class E(Exception):\n    def __str__(self): raise SystemExit(9)\nraise E"
        ),
        "a text of a hundred megabytes": lives("raise ValueError('x' * (100 << 20))", "ValueError"),
        "a text of no text": lives(
            "class E(Exception):\n    def __str__(self): return 5\nraise E", "E"
        ),
        "a name of no text": lives("raise type('', (Exception,), {})()", ANYTHING),
        "a name of a megabyte": lives("raise type('N' * 10**6, (Exception,), {})()", ANYTHING),
        "a class that lies": unsure(
            "class M(type):\n"
            "    @property\n"
            "    def __name__(cls): raise ValueError\n"
            "class E(Exception, metaclass=M): pass\n"
            "raise E"
        ),
        "notes of other things": unsure("e = ValueError('v'); e.__notes__ = 5; raise e"),
        "notes that raise": unsure(
            "class N:\n"
            "    def __str__(self): 1 / 0\n"
            "    __repr__ = __str__\n"
            "e = ValueError('v'); e.__notes__ = [N(), None]; raise e"
        ),
        "a ring of causes": lives(
            "a, b = ValueError(1), ValueError(2)\n"
            "a.__context__, b.__context__ = b, a\n"
            "a.__cause__ = b\n"
            "raise a",
            "ValueError",
        ),
        "a chain of ten thousand": unsure(
            "e = None\n"
            "for n in range(10_000):\n"
            "    f = ValueError(n); f.__context__ = e; e = f\n"
            "raise e"
        ),
        "a group of a thousand": unsure(
            "import sys\n"
            "if sys.version_info >= (3, 11): "
            "raise ExceptionGroup('g', [ValueError(n) for n in range(1000)])\n"
            "raise ValueError"
        ),
        "a group of depth": unsure(
            "import sys\n"
            "e = ValueError(1)\n"
            "if sys.version_info >= (3, 11):\n"
            "    for _ in range(1000): e = ExceptionGroup('g', [e])\n"
            "raise e"
        ),
        "a traceback of its own": lives(
            "import types\n"
            "try: 1 / 0\n"
            "except ZeroDivisionError as e: t = e.__traceback__\n"
            "for _ in range(1000): t = types.TracebackType(t, t.tb_frame, 0, 10**6)\n"
            "raise ValueError().with_traceback(t)",
            "ValueError",
        ),
        "a traceback of code from nowhere": lives(
            "exec(compile('1 / 0', '/nowhere\\0/x' * 1000, 'exec'))", ANYTHING
        ),
        "a traceback of code from a device": lives(
            "exec(compile('\\n' * 1000 + '1 / 0', '/dev/null', 'exec'))", "ZeroDivisionError"
        ),
        "a traceback of a line of a megabyte": lives(
            "exec(compile('x = ' + '1 + ' * 1000 + '1 / 0; ' + '#' * 10**6, 'long', 'exec'))",
            "ZeroDivisionError",
        ),
        "a syntax error of its own": lives(
            "raise SyntaxError('m', ('f', -5, 10**9, None))", "SyntaxError"
        ),
        "a syntax error of other things": unsure(
            "e = SyntaxError('m'); e.lineno = e.filename = e.text = object(); raise e"
        ),
        "a cell that is no Python": lives("this is not ) Python", "SyntaxError"),
        "a cell of bad indents": lives("  if 1:\n x\n    y", ANYTHING),
        "a cell with a zero byte": lives("x = 1\0", ANYTHING),
        "a cell of two hundred kilobytes": lives("x = [" + "1," * 100_000 + "]"),
        "a cell of ten thousand lines": lives("x = 1\n" * 10_000),
        "a cell that names encodings": lives("# -*- coding: utf-7 -*-\nx = '+AGE-'"),
        "warnings that are errors": lives("import warnings; warnings.simplefilter('error')"),
        "warnings that raise": unsure(
            "import warnings; warnings.showwarning = warnings.warn = None"
        ),
        "a traceback module that lies": unsure(
            "import traceback; traceback.format_exception = traceback.format_exception_only = "
            "lambda *a, **k: 1 / 0\n"
            "1 / 0"
        ),
        "a line cache that raises": unsure(
            "import linecache; linecache.getlines = linecache.checkcache = lambda *a, **k: 1 / 0\n"
            "1 / 0"
        ),
        "an inspect module that raises": unsure(
            "import inspect; inspect.getsourcelines = inspect.getmodule = None\n1 / 0"
        ),
        "an unraisable one": lives("import ctypes\nctypes.CFUNCTYPE(None)(lambda: 1 / 0)()"),
    },
    "output": {
        "lines without end": stops("while True: print('x' * 1000)"),
        "bytes without end": stops("import os\nwhile True: os.write(2, b'y' * 65536)"),
        "one character at a time": stops("import os\nwhile True: os.write(1, b'.')"),
        "both streams without end": stops(
            "import os\nwhile True: os.write(1, b'o' * 4096); os.write(2, b'e' * 4096)"
        ),
        "a program without end": stops("!yes"),
        "a program without end that stays": lives(
            "import subprocess\np = subprocess.Popen(['yes'])\nimport time; time.sleep(0.3)"
        ),
        "eighty megabytes": lives(
            "import os\nfor _ in range(80): os.write(1, b'x' * (1 << 20))", ANYTHING
        ),
        "one line of eighty megabytes": lives("print('x' * (80 << 20))"),
        "bytes of every kind": lives(
            "import os\nfor _ in range(1000): os.write(1, bytes(range(256)))"
        ),
        "half of each character": lives(
            "import os, time\nfor _ in range(50): os.write(1, b'\\xf0\\x9f'); os.write(2, b'\\x98')"
        ),
        "escapes and controls": lives("print('\\x1b[2J\\x1b]0;x\\x07\\x00\\r\\n\\x9b' * 10_000)"),
        "C's own output": lives(
            "import ctypes\nfor _ in range(100_000): ctypes.CDLL(None).puts(b'line')"
        ),
        "C's own output that is never flushed": lives(
            "import ctypes; ctypes.CDLL(None).printf(b'kept')"
        ),
        "what looks like our frames": lives("import os; os.write(1, b'\\0\\0\\0\\2{}' * 1000)"),
        "what looks like the end of an answer": lives(
            "print('HTTP/1.1 200 OK\\r\\n\\r\\n0\\r\\n\\r\\ndata: "
            '{"type": "exited"}\\n\\n\' * 100)'
        ),
    },
    "input": {
        "asks where nobody is": lives("input('?')", "StdinNotImplementedError"),
        "asks for a secret": lives("import getpass; getpass.getpass()", "StdinNotImplementedError"),
        "asks through the streams": unsure(
            "import sys; sys.stdin.readline(); sys.stdin.read(); open(0).read()"
        ),
        "asks a terminal": unsure("import os; os.system('stty -a; read x < /dev/tty')"),
        "asks by a program": lives("!cat; read x; python3 -c 'input()'"),
        "asks by an object": lives(
            "class A:\n    def __str__(self): raise KeyError\ninput(A())", ANYTHING
        ),
        "asks in a thread": lives(
            "import threading\nt = threading.Thread(target=input); t.start(); t.join()"
        ),
        "asks in a fork": lives("import os\npid = os.fork()\nif pid == 0: input()\nos.wait()"),
        "asks without end": stops("while True:\n    try: input()\n    except Exception: pass"),
        "stdin of its own": lives(
            "import sys, io; sys.stdin = io.StringIO('x'); sys.stdin.readline()"
        ),
        "no stdin": lives("import sys; sys.stdin.close(); del sys.stdin"),
        "the front end's own question": unsure(
            "get_ipython().front_end.read_line('x' * 10**7, True)"
        ),
    },
    "the event loop": {
        "closes it": unsure("import asyncio; asyncio.get_event_loop().close()"),
        "closes the one that runs": unsure(_LOOP + "loop.close()"),
        "stops it": unsure(_LOOP + "loop.stop(); await asyncio.sleep(0)"),
        "stops it in a moment": unsure(_LOOP + "loop.call_soon(loop.stop)"),
        "cancels its own task": lives(
            _LOOP + "asyncio.current_task().cancel(); await asyncio.sleep(20)", "CancelledError"
        ),
        "cancels all tasks": unsure(_LOOP + "for t in asyncio.all_tasks(): t.cancel()"),
        "awaits for ever": stops("import asyncio; await asyncio.Future()"),
        "awaits for ever and swallows": unsure(
            "import asyncio\n"
            "while True:\n"
            "    try: await asyncio.sleep(60)\n"
            "    except BaseException: pass"
        ),
        "blocks it": stops("import asyncio, time\nawait asyncio.sleep(0)\ntime.sleep(60)"),
        "spins in it": stops("import asyncio\nwhile True: await asyncio.sleep(0)"),
        "leaves a task that spins": lives(
            "import asyncio\n"
            "async def spin():\n"
            "    while True: await asyncio.sleep(0)\n"
            "t = asyncio.ensure_future(spin())\n"
            "await asyncio.sleep(0)"
        ),
        "leaves a task that raises": lives(
            "import asyncio\n"
            "async def bad(): raise SystemError\n"
            "t = asyncio.ensure_future(bad())\n"
            "await asyncio.sleep(0)"
        ),
        "leaves a task that ends the cell": unsure(
            "import asyncio\n"
            "async def bad(): raise SystemExit(4)\n"
            "t = asyncio.ensure_future(bad())\n"
            "await asyncio.sleep(0.01)"
        ),
        "leaves a task that refuses to be canceled": unsure(
            "import asyncio\n"
            "async def deaf():\n"
            "    while True:\n"
            "        try: await asyncio.sleep(60)\n"
            "        except BaseException: pass\n"
            "t = asyncio.ensure_future(deaf())\n"
            "await asyncio.sleep(0)"
        ),
        "a thousand tasks": lives(
            "import asyncio\n"
            "ts = [asyncio.ensure_future(asyncio.sleep(600)) for _ in range(1000)]\n"
            "await asyncio.sleep(0)"
        ),
        "another loop in its place": unsure(
            "import asyncio; asyncio.set_event_loop(None); "
            "asyncio.get_event_loop = asyncio.new_event_loop = None"
        ),
        "a policy that raises": unsure(
            "import asyncio\n"
            "class P:\n"
            "    def get_event_loop(self): raise RuntimeError\n"
            "asyncio.set_event_loop_policy(P())"
        ),
        "a policy of nothing": unsure(
            "import asyncio, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "asyncio.events._event_loop_policy = 5\n"
            "await asyncio.sleep(0)"
        ),
        "a loop of its own": lives(
            "import asyncio; asyncio.run(asyncio.sleep(0)); l = asyncio.new_event_loop(); "
            "asyncio.set_event_loop(l); l.close()"
        ),
        "a runner that lies": breaks("get_ipython().loop_runner = lambda c: c.close()"),
        "reads what the loop wakes by": unsure(_LOOP + "loop._ssock.close(); loop._csock.close()"),
        "handlers of signals in the loop": lives(
            _LOOP + "import signal\nloop.add_signal_handler(signal.SIGINT, lambda: None)"
        ),
        "handlers of signals in the loop, and waits": unsure(
            _LOOP + "import signal\n"
            "loop.add_signal_handler(signal.SIGINT, lambda: None)\n"
            "await asyncio.sleep(60)"
        ),
        "a coroutine that is never awaited": lives("import asyncio\nasyncio.sleep(1); None"),
        "a generator that goes on when closed": lives(
            "async def g():\n"
            "    while True:\n"
            "        try: yield\n"
            "        except GeneratorExit: yield\n"
            "a = g(); await a.asend(None); del a"
        ),
        "nested runs": lives(_LOOP + "loop.run_until_complete(asyncio.sleep(0))", "RuntimeError"),
    },
    "ways out": {
        "atexit": lives("import atexit; atexit.register(lambda: print('late'))"),
        "atexit that leaves": lives(
            "import atexit, os; atexit.register(os._exit, 9); raise SystemExit"
        ),
        "atexit run at once": unsure(
            "import atexit, os; atexit.register(os._exit, 9); atexit._run_exitfuncs()"
        ),
        "a finalization by hand": dies("import ctypes; ctypes.pythonapi.Py_FinalizeEx()"),
        "an exit by hand": dies("import ctypes; ctypes.pythonapi.Py_Exit(3)"),
        "a fatal error by hand": dies("import ctypes; ctypes.pythonapi.Py_FatalError(b'mine')"),
        "a finalizer of the process": lives(
            "import weakref, os; class_ = type('A', (), {}); a = class_(); "
            "weakref.finalize(a, os._exit, 3)"
        ),
        "a thread at the end": lives(
            "import threading, atexit; "
            "atexit.register(lambda: threading.Thread(target=print).start())"
        ),
        "an exit of sys in a thread": lives(
            "import sys, threading; t = threading.Thread(target=sys.exit); t.start(); t.join()"
        ),
        "an exit of the shell": lives("get_ipython().ask_exit()", ANYTHING),
        "an exit in a callback": unsure(
            "import ctypes, sys\nctypes.CFUNCTYPE(None)(lambda: sys.exit(3))()"
        ),
        "an exit that is no exit": lives(
            "import os, sys; sys.exit = os._exit = lambda *_: None; sys.exit(1)"
        ),
    },
    "modules": {
        "a json of its own": unsure(
            "open('json.py', 'w').write('raise SystemExit')\n"
            "import sys; sys.modules.pop('json'); import os"
        ),
        "an os of its own": unsure("import sys; sys.modules['os'] = type(sys)('os')"),
        "a signal of its own": unsure(
            "import sys, signal; signal.signal = signal.pthread_sigmask = signal.getsignal = None"
        ),
        "a socket of its own": unsure(
            "import socket; socket.socket.send = socket.socket.recvmsg = None"
        ),
        "a json that is nothing": unsure(
            "import json; json.dumps = json.JSONEncoder.encode = json.loads = None"
        ),
        "a json that lies": unsure(
            "import json; json.dumps = lambda *_, **__: '{}'; "
            "json.JSONEncoder.iterencode = lambda *_, **__: iter(['{}'])"
        ),
        "a getpid that lies": unsure("import os; os.getpid = lambda: 1"),
        "an os without files": unsure(
            "import os; os.fstat = os.dup = os.dup2 = os.close = os.read = os.write = None"
        ),
        "a select that lies": unsure(
            "import select; select.poll = select.select = select.epoll = None"
        ),
        "a threading that is nothing": unsure(
            "import threading; threading.current_thread = threading.main_thread = "
            "threading.RLock = None"
        ),
        "a collections that is nothing": unsure(
            "import collections; collections.deque = collections.OrderedDict = None"
        ),
        "a subprocess that is nothing": unsure(
            "import subprocess; subprocess.Popen = subprocess.run = None\n"
            "get_ipython().system('true')"
        ),
        "an importer that raises": unsure(
            "import sys\n"
            "class F:\n"
            "    def find_spec(self, *a): raise RuntimeError\n"
            "sys.meta_path.insert(0, F())"
        ),
        "an importer that leaves": unsure(
            "import sys, os\n"
            "class F:\n"
            "    def find_spec(self, name, *a): os._exit(1) if name == 'later' else None\n"
            "sys.meta_path.insert(0, F())\n"
            "import later"
        ),
        "an importer of other things": lives(
            "import sys\n"
            "sys.meta_path.insert(0, 5)\n"
            "try: import nothing_of_this_name\n"
            "except Exception: pass"
        ),
        "a lock of imports that is held": unsure(
            "import threading, imp_lock_of_nothing if False else sys\n"
            "import _imp; _imp.acquire_lock()"
        ),
        "a module that imports itself": lives(
            "open('ring_a.py', 'w').write('import ring_b'); "
            "open('ring_b.py', 'w').write('import ring_a; 1 / 0')\n"
            "import sys; sys.path.insert(0, '')\n"
            "import ring_a",
            "ZeroDivisionError",
        ),
        "a module that hangs": stops(
            "open('slow_import.py', 'w').write('while True: pass')\n"
            "import sys; sys.path.insert(0, '')\n"
            "import slow_import"
        ),
        "a module that leaves": dies(
            "open('leaves.py', 'w').write('import os; os._exit(6)')\n"
            "import sys; sys.path.insert(0, '')\n"
            "import leaves"
        ),
        "a module that is no Python": lives(
            "open('broken_module.py', 'wb').write(b'\\xff\\0')\n"
            "import sys; sys.path.insert(0, '')\n"
            "import broken_module",
            ANYTHING,
        ),
        "a library that is none": lives(
            "import ctypes; open('lib.so', 'wb').write(b'\\x7fELF' + b'\\0' * 100); "
            "ctypes.CDLL('./lib.so')",
            "OSError",
        ),
        "a start file of Python": lives(
            "import os; os.environ.update(PYTHONSTARTUP='/nowhere', PYTHONPATH='.', "
            "PYTHONHOME='/nowhere', PYTHONINSPECT='1')"
        ),
        "a library that is loaded first": lives(
            "import os; os.environ['LD_PRELOAD'] = '/nowhere.so'; os.system('true')"
        ),
        "an execd of its own": lives(
            "import sys\n"
            "try: import execd\n"
            "except ImportError: pass\n"
            "sys.modules['execd'] = sys.modules['execd.kernel'] = None"
        ),
        "a site that is its own": lives(
            "import site, sys; site.USER_SITE = site.getsitepackages = None; "
            "sys.prefix = '/nowhere'"
        ),
        "a warm cache that lies": lives(
            "import sys; sys.path_importer_cache.update({'/nowhere': None, '': 5, 7: None})",
            ANYTHING,
        ),
        "typing and traits": unsure(
            "import abc, enum, typing; abc.ABCMeta.__instancecheck__ = None"
        ),
    },
    "place and time": {
        "a directory that is gone": lives(
            "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)"
        ),
        "a directory without rights": lives(
            "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.chmod(d, 0)"
        ),
        "a directory of depth": lives(
            "import os, tempfile; os.chdir(tempfile.mkdtemp())\n"
            "for _ in range(200): os.mkdir('d' * 20); os.chdir('d' * 20)"
        ),
        "the root directory": lives("import os; os.chdir('/'); os.environ.clear()"),
        "no environment": lives("import os; os.environ.clear(); os.environ = None"),
        "an environment of other things": lives("import os; os.environ._data[b'x'] = 5", ANYTHING),
        "an environment of megabytes": lives(
            "import os\n"
            "os.environ.update({f'V{n}': 'x' * 100_000 for n in range(100)})\n"
            "os.system('true')",
            ANYTHING,
        ),
        "an environment cleared in C": lives("import ctypes; ctypes.CDLL(None).clearenv()"),
        "a mask of everything": lives("import os; os.umask(0o777)"),
        "a locale of its own": lives(
            "import locale\n"
            "for name in ('C', 'tr_TR.UTF-8', 'POSIX'):\n"
            "    try: locale.setlocale(locale.LC_ALL, name)\n"
            "    except locale.Error: pass"
        ),
        "an encoding that is nothing": lives(
            "import codecs; codecs.register(lambda name: "
            "1 / 0 if name == 'utf_8_mine' else None)\n"
            "try: 'x'.encode('utf-8-mine')\n"
            "except ZeroDivisionError: pass"
        ),
        "an encoding error that raises": lives(
            "import codecs; codecs.register_error('backslashreplace', lambda e: "
            "1 / 0); print('\\ud800')",
            ANYTHING,
        ),
        "an encoding error that hangs": unsure(
            "import codecs, time; codecs.register_error('replace', lambda e: "
            "time.sleep(60)); print('\\ud800')"
        ),
        "a clock that stands still": lives(
            "import time; time.time = time.monotonic = time.perf_counter = lambda: 0.0"
        ),
        "a clock that goes back": lives(
            "import itertools, time; n = itertools.count(); "
            "time.time = time.monotonic = lambda: -next(n)"
        ),
        "a clock that raises": unsure(
            "import time; time.time = time.monotonic = time.perf_counter = time.tzset = None"
        ),
        "a sleep that does not": lives("import time; time.sleep = lambda *_: None"),
        "a zone from nowhere": lives(
            "import os, time; os.environ['TZ'] = 'x' * 10_000; time.tzset()"
        ),
        "a random that is known": lives(
            "import random; random.seed(1); random.random = lambda: 4; import os; "
            "os.urandom = lambda n: b'0' * n"
        ),
        "a temporary directory from nowhere": lives(
            "import os, tempfile; os.environ['TMPDIR'] = '/nowhere'; tempfile.tempdir = '/nowhere'"
        ),
        "a home from nowhere": lives(
            "import os; os.environ['HOME'] = '/nowhere\\n'; os.environ['PATH'] = ''; "
            "os.path.expanduser('~')",
            ANYTHING,
        ),
        "hundreds of files": lives(
            "import os, tempfile; d = tempfile.mkdtemp()\n"
            "for n in range(500): open(f'{d}/{n}', 'w').close()"
        ),
        "names of bytes": lives(
            "import os, tempfile; d = os.fsencode(tempfile.mkdtemp()); "
            "open(d + b'/\\xff\\n', 'w').close(); os.listdir(d)"
        ),
    },
}
