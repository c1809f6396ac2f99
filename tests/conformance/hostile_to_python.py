"""Cells that turn the parts of Python and IPython against the session: threads, modules, hooks,
displays, errors, output.

As for ``hostile_to_process``, the endings hold for any version, user and kernel.
"""

from __future__ import annotations

from .hostile_cell import ANYTHING, HostileCell, breaks, dies, forgets, killed, lives, stops, unsure

_LOOP = "import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()\n"

CELLS: dict[str, dict[str, HostileCell]] = {
    "threads": {
        "one that spins": lives(
            "import threading\n"
            "def spin():\n"
            "    while True: pass\n"
            "threading.Thread(target=spin, daemon=True).start()"
        ),
        "four that spin": lives(
            "import threading\n"
            "def spin():\n"
            "    while True: pass\n"
            "[threading.Thread(target=spin, daemon=True).start() for _ in range(4)]"
        ),
        "one that prints after its cell": lives(
            "import threading, time; threading.Thread(target=lambda: "
            "[time.sleep(0.01) or print('late') for _ in range(50)]).start()"
        ),
        "one that prints for ever": lives(
            "import threading, time\n"
            "def go():\n"
            "    while True: print(end=''); time.sleep(0.001)\n"
            "threading.Thread(target=go, daemon=True).start()"
        ),
        "one that floods between cells": lives(
            "import threading\n"
            "def go():\n"
            "    for _ in range(200): print('y' * 10_000)\n"
            "threading.Thread(target=go, daemon=True).start()"
        ),
        "one that displays between cells": lives(
            "import threading, time\n"
            "def go():\n"
            "    while True: display(1); time.sleep(0.001)\n"
            "threading.Thread(target=go, daemon=True).start()\n"
            "time.sleep(0.05)"
        ),
        "one that raises": lives(
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"
        ),
        "one that raises into the main one": unsure(
            "import threading, ctypes\n"
            "main = threading.main_thread().ident\n"
            "ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), "
            "ctypes.py_object(SystemError))"
        ),
        "one that raises into the main one, again and again": unsure(
            "import threading, ctypes, time\n"
            "main = threading.main_thread().ident\n"
            "def go():\n"
            "    while True: ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), "
            "ctypes.py_object(SystemError)); time.sleep(0.001)\n"
            "threading.Thread(target=go, daemon=True).start()\n"
            "time.sleep(0.1)"
        ),
        "one that leaves the process": dies(
            "import os, threading, time; "
            "threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(20)"
        ),
        "one that leaves the process, later": breaks(
            "import os, threading; threading.Timer(0.05, os._exit, (5,)).start()"
        ),
        "one that takes the lock of output": unsure(
            "import sys, threading, time\n"
            "def go():\n"
            "    while True: sys.stdout.flush(); sys.stderr.write('')\n"
            "for _ in range(8): threading.Thread(target=go, daemon=True).start()"
        ),
        "one that holds the interpreter": unsure(
            "import ctypes, threading; "
            "threading.Thread(target=ctypes.PyDLL(None).sleep, args=(2,), daemon=True).start()"
        ),
        "one that swaps stdout": lives(
            "import io, sys, threading, time\n"
            "def go():\n"
            "    while True: sys.stdout = io.StringIO(); time.sleep(0.0005)\n"
            "threading.Thread(target=go, daemon=True).start()"
        ),
        "one that changes directory": lives(
            "import os, threading, time\n"
            "def go():\n"
            "    while True: os.chdir('/'); os.chdir('/tmp'); time.sleep(0.0005)\n"
            "threading.Thread(target=go, daemon=True).start()"
        ),
        "one that runs cells": unsure(
            "import threading\n"
            "threading.Thread(target=lambda: get_ipython().run_cell('1 + 1')).start()"
        ),
        "one that closes what it finds": unsure(
            "import os, threading, time\n"
            "def go():\n"
            "    while True: os.closerange(3, 5000); time.sleep(0.001)\n"
            "threading.Thread(target=go, daemon=True).start()\n"
            "time.sleep(0.1)"
        ),
        "one that is not a daemon and never ends": lives(
            "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
        ),
        "an executor that is never shut down": lives(
            "from concurrent.futures import ThreadPoolExecutor as E; import time; "
            "[E(8).submit(time.sleep, 60) for _ in range(4)]; None"
        ),
        "a switch interval of nothing": lives("import sys; sys.setswitchinterval(1e-9)"),
        "a switch interval of a day": lives("import sys; sys.setswitchinterval(86400)"),
        "a name that lies": lives(
            "import threading\n"
            "class N(str):\n"
            "    def __str__(self): raise ValueError\n"
            "threading.main_thread().name = N('x')\n"
            "threading.current_thread = lambda: None",
            ANYTHING,
        ),
        "hooks of threads": lives(
            "import threading\n"
            "threading.excepthook = None; threading.settrace(lambda *_: 1 / 0); "
            "threading.setprofile(lambda *_: 1 / 0)\n"
            "t = threading.Thread(target=int); t.start(); t.join()",
            ANYTHING,
        ),
        "joins itself": lives(
            "import threading; threading.current_thread().join()", "RuntimeError"
        ),
    },
    "recursion and depth": {
        "without end": lives("def f(): f()\nf()", "RecursionError"),
        "without end, in repr": unsure("class R:\n    def __repr__(self): return repr(self)\nR()"),
        "without a limit": unsure("import sys; sys.setrecursionlimit(10**7)\ndef f(): f()\nf()"),
        "without a limit, counted": unsure(
            "import sys; sys.setrecursionlimit(50_000)\ndef f(n): return f(n + 1)\nf(0)"
        ),
        "a limit of almost nothing": breaks(
            "import sys\n"
            "for n in range(1, 200):\n"
            "    try: sys.setrecursionlimit(n); break\n"
            "    except RecursionError: pass"
        ),
        "a nested list": unsure("x = []\nfor _ in range(100_000): x = [x]\nx"),
        "a nested list that is let go": lives("x = []\nfor _ in range(1_000_000): x = [x]\ndel x"),
        "a nested expression": lives("eval('(' * 5000 + ')' * 5000)", ANYTHING),
        "a sum of a hundred thousand": unsure("eval('+'.join(['1'] * 100_000))"),
        "a tuple in itself": lives("x = []; x.append((x,)); x"),
        "getattr in itself": lives(
            "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
            "RecursionError",
        ),
        "a property of repr": unsure(
            "class A:\n    __repr__ = property(lambda self: repr(self))\nA()"
        ),
        "eq and hash in themselves": lives(
            "class A:\n    def __hash__(self): return hash(self)\n{A(): 1}", "RecursionError"
        ),
        "in a handler of its own error": unsure(
            "def f():\n"
            "    try: f()\n"
            "    except RecursionError: f()\n"
            "import sys; sys.setrecursionlimit(60)\n"
            "f()"
        ),
        "in __del__": unsure("class A:\n    def __del__(self): A()\na = A(); del a"),
        "a hundred thousand frames of generators": unsure(
            "def g(n): yield from g(n + 1)\nlist(g(0))"
        ),
        "a pickle of itself": lives(
            "import pickle\n"
            "class A:\n"
            "    def __reduce__(self): return (A, (self,))\n"
            "pickle.dumps(A())",
            ANYTHING,
        ),
        "json of itself": lives("import json; x = []; x.append(x); json.dumps(x)", "ValueError"),
    },
    "interpreter state": {
        "clears the namespace": forgets("get_ipython().user_ns.clear()"),
        "resets": forgets("%reset -f"),
        "resets in and out": lives("%reset -f in out"),
        "deletes all that it sees": forgets(
            "for name in list(globals()):\n    if name != 'name': del globals()[name]"
        ),
        "replaces In and Out": lives("In = Out = _ = __ = _i = None"),
        "hides get_ipython": lives("get_ipython = None; exit = quit = display = None"),
        "a namespace that raises": breaks(
            "class D(dict):\n"
            "    def __setitem__(self, *a): raise ValueError\n"
            "    def __getitem__(self, *a): raise ValueError\n"
            "get_ipython().user_ns = D(get_ipython().user_ns)"
        ),
        "a namespace of numbers": lives("globals().update({1: 2, (3,): 4, None: 5})"),
        "a name of a hundred kilobytes": lives("globals()['n' * 100_000] = 1"),
        "a hundred thousand names": lives("globals().update({f'n{i}': i for i in range(100_000)})"),
        "__name__ and __file__": lives("__name__ = None; __file__ = 5; __builtins__ = {}"),
        "no builtins in sight": unsure("globals()['__builtins__'] = {}\nprint"),
        "a main module of another kind": unsure("import sys; sys.modules['__main__'] = None"),
        "takes the frame apart": lives("import sys\nf = sys._getframe()\nwhile f: f = f.f_back"),
        "clears the frames above": lives(
            "import sys\n"
            "f = sys._getframe().f_back\n"
            "while f:\n"
            "    try: f.clear()\n"
            "    except RuntimeError: pass\n"
            "    f = f.f_back"
        ),
        "traces the frames above": unsure(
            "import sys\n"
            "def t(*_): raise ValueError\n"
            "f = sys._getframe()\n"
            "sys.settrace(t)\n"
            "while f: f.f_trace = t; f = f.f_back"
        ),
        "changes the locals above": unsure(
            "import ctypes, sys\n"
            "f = sys._getframe().f_back\n"
            "while f:\n"
            "    for name in list(f.f_locals):\n"
            "        if name in ('frame', 'code', 'result', 'self'): f.f_locals[name] = None; "
            "ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(f), ctypes.c_int(0))\n"
            "    f = f.f_back"
        ),
        "finds the worker and breaks it": dies(
            "import gc\n"
            "for o in gc.get_objects():\n"
            "    if type(o).__name__ == 'Worker': o._pid = -1"
        ),
        "finds the worker and forges its cell": unsure(
            "import gc\n"
            "for o in gc.get_objects():\n"
            "    if type(o).__name__ == 'Worker': o._cell = 999; o._room = 1 << 60"
        ),
        "finds the worker and takes its methods": dies(
            "import gc\n"
            "for o in gc.get_objects():\n"
            "    if type(o).__name__ == 'Worker': type(o)._execute = type(o)._send = None"
        ),
        "finds the worker and runs it again": unsure(
            "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Worker': o.run()"
        ),
        "finds the channel and closes it": dies(
            "import gc, socket\n"
            "for o in gc.get_objects():\n"
            "    if type(o) is socket.socket: o.close()\n"
            "import time; time.sleep(20)"
        ),
        "finds the channel and holds its lock": killed(
            "import gc, threading\n"
            "for o in gc.get_objects():\n"
            "    if type(o).__name__ == 'Channel': "
            "threading.Thread(target=o._lock.acquire).start()\n"
            "while True:\n"
            "    try: display(1)\n"
            "    except BaseException: pass"
        ),
        "finds the streams and closes them": unsure(
            "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Streams': o.close()"
        ),
        "finds every list and empties it": unsure(
            "import gc\nfor o in gc.get_objects():\n    if type(o) is list: o.clear()"
        ),
        "finds every dict of a module and empties it": unsure(
            "import gc, types\n"
            "for o in gc.get_objects():\n"
            "    if isinstance(o, types.ModuleType) and o.__name__.startswith('execd'): "
            "vars(o).clear()"
        ),
        "finds every function and empties it": unsure(
            "import gc, types\n"
            "nothing = (lambda *a, **k: None).__code__\n"
            "for o in gc.get_objects():\n"
            "    if isinstance(o, types.FunctionType) and 'sessions' in o.__code__.co_filename "
            "and not o.__closure__: o.__code__ = nothing"
        ),
    },
    "garbage": {
        "no collection": lives("import gc; gc.disable(); gc.unfreeze(); gc.collect()"),
        "collection at every object": lives(
            "import gc; gc.set_threshold(1, 1, 1); [[] for _ in range(10_000)]; None"
        ),
        "callbacks that raise": lives(
            "import gc; gc.callbacks.append(lambda *_: 1 / 0); gc.collect()"
        ),
        "callbacks that leave": dies(
            "import gc, os; gc.callbacks.append(lambda *_: os._exit(1)); gc.collect()"
        ),
        "debugging of all": lives(
            "import gc; gc.set_debug(gc.DEBUG_SAVEALL); "
            "[[] for _ in range(1000)]; gc.collect(); None"
        ),
        "a finalizer that raises": lives(
            "class A:\n    def __del__(self): raise SystemExit(3)\nA(); None"
        ),
        "a finalizer that leaves": dies(
            "class A:\n    def __del__(self): import os; os._exit(3)\na = A(); del a"
        ),
        "a finalizer that comes back": lives(
            "class A:\n    def __del__(self): globals()['a'] = self\na = A(); del a"
        ),
        "a finalizer that waits for the next cell": unsure(
            "class A:\n    def __del__(self):\n        while True: pass\nA()"
        ),
        "a weak reference that raises": lives(
            "import weakref\nclass A: pass\na = A(); r = weakref.ref(a, lambda _: 1 / 0); del a"
        ),
        "an object with too few references": unsure(
            "import ctypes\n"
            "x = [object()]\n"
            "ctypes.pythonapi.Py_DecRef(ctypes.py_object(x)); "
            "ctypes.pythonapi.Py_DecRef(ctypes.py_object(x))\n"
            "del x"
        ),
        "None with too few references": unsure(
            "import ctypes\n"
            "for _ in range(1_000_000): ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))"
        ),
        "an integer of another value": breaks(
            "import ctypes, sys; ctypes.memmove(id(7) + sys.getsizeof(0), "
            "id(8) + sys.getsizeof(0), 4)"
        ),
        "a tuple that changes": lives(
            "import ctypes\n"
            "t = (1, 2); ctypes.pythonapi.Py_IncRef(ctypes.py_object(t)); "
            "ctypes.memset(id(t) + 16, 1, 1)",
            ANYTHING,
        ),
        "traces all memory": lives("import tracemalloc; tracemalloc.start(50)"),
    },
    "builtins": {
        "deletes some": unsure(
            "import builtins; del builtins.print, builtins.len, builtins.isinstance"
        ),
        "makes some nothing": unsure(
            "import builtins; builtins.print = builtins.len = builtins.isinstance = None"
        ),
        "makes all nothing": unsure(
            "import builtins\n"
            "for name in dir(builtins):\n"
            "    if not name.startswith('_'): setattr(builtins, name, None)"
        ),
        "clears them": unsure("import builtins; vars(builtins).clear()"),
        "an open that raises": lives(
            "import builtins, io, os\n"
            "def no(*_, **__): raise OSError\n"
            "builtins.open = io.open = os.open = no"
        ),
        "a print that lies": lives("import builtins; builtins.print = lambda *_, **__: None"),
        "a print that leaves": lives(
            "import builtins, os; builtins.print = lambda *_, **__: os._exit(1)"
        ),
        "a type that lies": unsure(
            "import builtins; builtins.type = builtins.id = builtins.hash = lambda *_: 0"
        ),
        "a str that raises": unsure(
            "import builtins\n"
            "class S(str):\n"
            "    def __new__(cls, *a): raise ValueError\n"
            "builtins.str = S"
        ),
        "an exec that does not": breaks(
            "import builtins; builtins.exec = builtins.eval = builtins.compile = "
            "lambda *_, **__: None"
        ),
        "exceptions that are none": unsure(
            "import builtins; builtins.KeyboardInterrupt = builtins.Exception = "
            "builtins.BaseException = int"
        ),
        "an import that raises": breaks(
            "import builtins\ndef no(*_, **__): raise RuntimeError\nbuiltins.__import__ = no"
        ),
        "an import that hangs": lives(
            "import builtins, time\n"
            "old = builtins.__import__\n"
            "builtins.__import__ = lambda name, *a, **k: "
            "time.sleep(60) if name == 'later' else old(name, *a, **k)"
        ),
        "a class builder that raises": lives("import builtins\nbuiltins.__build_class__ = None"),
        "an input of its own": lives(
            "import builtins; builtins.input = lambda *_: 'mine'; input()"
        ),
    },
    "sys": {
        "stdout of strings": lives("import sys, io; sys.stdout = io.StringIO(); sys.stderr = None"),
        "no stdout": lives("import sys; sys.stdout = sys.stderr = None"),
        "stdout deleted": lives("import sys; del sys.stdout, sys.stderr, sys.__stdout__", ANYTHING),
        "stdout closed": lives("import sys; sys.stdout.close(); sys.stderr.close()"),
        "stdout detached": lives("import sys; sys.stdout.detach()"),
        "stdout detached and its buffer closed": unsure(
            "import sys; sys.stdout.detach().detach().close()"
        ),
        "stdout that raises": lives(
            "import sys\n"
            "class Bad:\n"
            "    def write(self, *_): raise ValueError\n"
            "    def flush(self): raise SystemExit\n"
            "sys.stdout = sys.stderr = Bad()"
        ),
        "stdout that hangs when flushed": killed(
            "import sys\n"
            "class Bad:\n"
            "    def write(self, *_): pass\n"
            "    def flush(self):\n"
            "        while True:\n"
            "            try:\n"
            "                while True: pass\n"
            "            except BaseException: pass\n"
            "sys.stdout = Bad()"
        ),
        "stdout that leaves": dies(
            "import sys, os\n"
            "class Bad:\n"
            "    def write(self, *_): os._exit(1)\n"
            "    def flush(self): os._exit(1)\n"
            "sys.stdout = sys.stderr = Bad()\n"
            "print(1)"
        ),
        "stdout that prints": lives(
            "import sys\n"
            "class Bad:\n"
            "    def write(self, text): print(text)\n"
            "    def flush(self): pass\n"
            "sys.stdout = Bad()\n"
            "print(1)",
            "RecursionError",
        ),
        "stdout into the display": unsure(
            "import sys\n"
            "class D:\n"
            "    def write(self, text): display(text)\n"
            "    def flush(self): display('flush')\n"
            "sys.stdout = D()\n"
            "print(1)"
        ),
        "the display hook": lives("import sys; sys.displayhook = lambda *_: None"),
        "no display hook": lives("import sys; del sys.displayhook"),
        "no exception hook": lives(
            "import sys; sys.excepthook = sys.unraisablehook = None; 1 / 0", "ZeroDivisionError"
        ),
        "a tracer": lives(
            "import sys\ndef t(*a): return t\nsys.settrace(t); sys.setprofile(lambda *a: None)"
        ),
        "a tracer that raises": unsure("import sys\ndef t(*a): raise ValueError\nsys.settrace(t)"),
        "a tracer that raises later": unsure(
            "import sys\n"
            "n = 0\n"
            "def t(*a):\n"
            "    global n; n += 1\n"
            "    if n > 500: raise SystemExit\n"
            "    return t\n"
            "sys.settrace(t)"
        ),
        "a profiler that raises": unsure(
            "import sys\ndef p(*a): raise KeyboardInterrupt\nsys.setprofile(p)"
        ),
        "an audit hook that raises": breaks(
            "import sys\n"
            "def a(event, args):\n"
            "    if event in ('open', 'exec', 'compile'): raise RuntimeError\n"
            "sys.addaudithook(a)"
        ),
        "an audit hook that leaves": unsure(
            "import sys, os\n"
            "def a(event, args):\n"
            "    if event == 'socket.__new__': os._exit(1)\n"
            "sys.addaudithook(a)"
        ),
        "no modules": breaks("import sys; sys.modules.clear()"),
        "no path": lives("import sys; sys.path[:] = []; del sys.modules['os']"),
        "a path of other things": lives("import sys; sys.path[:] = [None, 5, b'x', object()]"),
        "no path at all": unsure("import sys; sys.path = sys.meta_path = sys.path_hooks = None"),
        "no caches of the path": unsure("import sys; sys.path_importer_cache = None"),
        "a cache of the path that raises": unsure(
            "import sys\n"
            "class D(dict):\n"
            "    def items(self): raise ValueError\n"
            "sys.path_importer_cache = D()"
        ),
        "no arguments": lives("import sys; del sys.argv; sys.executable = None; sys.flags = None"),
        "another platform": unsure(
            "import sys, os; sys.platform = 'win32'; os.name = 'nt'; sys.version_info = (2, 7)"
        ),
        "integers of any length": lives(
            "import sys\n"
            "hasattr(sys, 'set_int_max_str_digits') and sys.set_int_max_str_digits(640)\n"
            "10 ** 5000",
            ANYTHING,
        ),
        "an encoding of wide characters": lives(
            "import sys; sys.stdout.reconfigure(encoding='utf-16'); print('wide')"
        ),
        "SystemExit in an odd form": lives(
            "class X:\n    def __str__(self): raise ValueError\nraise SystemExit(X())", ANYTHING
        ),
        "an exit code of any size": lives("raise SystemExit(2 ** 100 + 3)", "SystemExit"),
        "an exit code that lies": lives(
            "class I(int):\n    def __and__(self, other): return 10 ** 100\nraise SystemExit(I(5))",
            ANYTHING,
        ),
        "quits": lives("quit()"),
        "exits with nothing": lives("raise SystemExit"),
    },
    "IPython": {
        "run_cell is nothing": breaks(
            "get_ipython().run_cell = None; get_ipython().run_cell_async = None"
        ),
        "run_cell does nothing": breaks("get_ipython().run_cell = lambda *a, **k: None"),
        "run_cell of the class lies": breaks(
            "type(get_ipython()).run_cell = lambda *a, **k: 'mine'"
        ),
        "run_cell_async raises": breaks(
            "import IPython.core.interactiveshell as i; "
            "i.InteractiveShell.run_cell_async = lambda *a, **k: 1 / 0"
        ),
        "run of the shell is nothing": breaks("type(get_ipython()).run = None"),
        "run of the shell lies": breaks("type(get_ipython()).run = lambda *_: (1, None, None)"),
        "run of the shell lies in type": breaks(
            "type(get_ipython()).run = lambda *_: ('x', {}, 'y')"
        ),
        "run of the shell lies in size": breaks(
            "type(get_ipython()).run = lambda *_: (10 ** 100, None, 10 ** 100)"
        ),
        "run of the shell speaks as IPython": breaks(
            "class E(str): pass\ntype(get_ipython()).run = lambda *_: (1, None, -1)"
        ),
        "the display publisher is nothing": breaks(
            "get_ipython().display_pub.publish = None; display(1)"
        ),
        "the display formatter is nothing": breaks(
            "get_ipython().display_formatter.format = None\n1"
        ),
        "the formatters are nothing": breaks("get_ipython().display_formatter.formatters = {}"),
        "the results go nowhere": breaks(
            "type(get_ipython().displayhook).write_format_data = lambda *a, **k: None"
        ),
        "the front end is nothing": breaks("get_ipython().front_end = None"),
        "the front end is taken": breaks(
            "get_ipython().front_end.result = lambda *a: None; "
            "type(get_ipython().front_end).display = lambda *a, **k: 1 / 0"
        ),
        "showtraceback raises": breaks(
            "type(get_ipython()).showtraceback = lambda *a, **k: 1 / 0\n1 / 0"
        ),
        "the traceback's handler raises": unsure(
            "get_ipython().set_custom_exc((Exception,), lambda *a: 1 / 0)\n1 / 0"
        ),
        "the traceback's handler hangs": stops(
            "import time\n"
            "get_ipython().set_custom_exc((Exception,), lambda *a, **k: time.sleep(60))\n"
            "1 / 0"
        ),
        "an event that raises": lives(
            "get_ipython().events.register('post_run_cell', lambda *a: 1 / 0)"
        ),
        "an event that raises before": lives(
            "get_ipython().events.register('pre_run_cell', lambda *a: 1 / 0)"
        ),
        "an event that leaves": dies(
            "import os; get_ipython().events.register('post_run_cell', lambda *a: os._exit(1))"
        ),
        "an event that interrupts": unsure(
            "def e(*_): raise KeyboardInterrupt\nget_ipython().events.register('post_execute', e)"
        ),
        "an event that hangs": breaks(
            "import time; get_ipython().events.register('post_run_cell', lambda *a: time.sleep(60))"
        ),
        "a transformer that raises": breaks(
            "get_ipython().input_transformers_cleanup.append(lambda lines: 1 / 0)"
        ),
        "a transformer that lies": breaks(
            "get_ipython().input_transformers_cleanup.append(lambda lines: ['1 + 1\\n'])"
        ),
        "a transformer that hangs": unsure(
            "import time; get_ipython().input_transformers_post.append(lambda lines: "
            "time.sleep(0.2) or lines)"
        ),
        "a transformer of trees that raises": unsure(
            "class T:\n"
            "    def visit(self, node): raise ValueError\n"
            "get_ipython().ast_transformers.append(T())"
        ),
        "a transformer of trees that returns nothing": breaks(
            "class T:\n"
            "    def visit(self, node): return None\n"
            "get_ipython().ast_transformers.append(T())"
        ),
        "a compiler that lies": breaks("get_ipython().compile.ast_parse = lambda *a, **k: None"),
        "a count that is none": unsure("get_ipython().execution_count = -10 ** 30"),
        "a history that raises": breaks(
            "get_ipython().history_manager.store_inputs = lambda *a, **k: 1 / 0"
        ),
        "no history": breaks("get_ipython().history_manager = None"),
        "no magics": breaks(
            "get_ipython().magics_manager.magics.clear(); get_ipython().magics_manager = None"
        ),
        "a second shell": unsure(
            "from IPython.core.interactiveshell import InteractiveShell as I; I.clear_instance(); "
            "I.instance().run_cell('1')"
        ),
        "a shell in the shell": lives("import IPython; IPython.embed()", ANYTHING),
        "a terminal in the shell": lives(
            "import IPython; IPython.start_ipython(argv=[])", ANYTHING
        ),
        "no instance": breaks(
            "type(get_ipython()).clear_instance(); del get_ipython().user_module"
        ),
        "cells in cells": lives(
            "def again(n): get_ipython().run_cell(f'again({n - 1})') if n else None\nagain(20)"
        ),
        "cells in cells without end": unsure(
            "def again(): get_ipython().run_cell('again()')\nagain()"
        ),
        "an autocall of everything": lives("%autocall 2"),
        "verbose tracebacks": lives("%xmode Verbose\nx = 'x' * 10**6\n1 / 0", "ZeroDivisionError"),
        "minimal tracebacks": lives("%xmode Minimal\n1 / 0", "ZeroDivisionError"),
        "a debugger": unsure("%pdb on\n1 / 0"),
        "a breakpoint": lives("breakpoint()", ANYTHING),
        "a breakpoint of its own": lives(
            "import sys, os; sys.breakpointhook = lambda: None; breakpoint()"
        ),
        "a magic that shadows": lives(
            "get_ipython().register_magic_function(lambda *_: 1 / 0, 'line', 'timeit')\n%timeit 1",
            "ZeroDivisionError",
        ),
        "a magic that hangs": stops("%timeit -n1 -r1 __import__('time').sleep(60)"),
        "logs all it says": lives("%logstart -o log.py global\n1"),
        "a window system": lives("%gui qt", ANYTHING),
        "an extension that is none": lives("%load_ext nothing_of_this_name", ANYTHING),
        "reloads what it is made of": breaks(
            "import importlib, sys\n"
            "for name in list(sys.modules):\n"
            "    if name.startswith('IPython.core'):\n"
            "        try: importlib.reload(sys.modules[name])\n"
            "        except Exception: pass"
        ),
        "traits that refuse": breaks(
            "from traitlets import HasTraits\nHasTraits.__setattr__ = None"
        ),
        "a prompt that lies": unsure(
            "get_ipython().displayhook.prompt_count; "
            "get_ipython().displayhook.__class__.prompt_count = property(lambda s: 'x')\n"
            "1"
        ),
    },
}
