"""The names of the processes of execd that user code sees beside its own.

User code ends its own programs by name: ``pkill python``, ``pkill -f execd``, ``killall python3``.
Such a pattern must not hit the warden, which gVisor does not protect as Linux protects an init, nor
the zygote and the sessions. So these processes give up the name of the interpreter and the command
line for a name that no ordinary pattern matches. ``killall`` and ``pkill`` look at the name of the
first thread (PR_SET_NAME), ``pkill -f`` looks at the bytes of the arguments (proc_pid_cmdline(5)).

Also runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

WARDEN, INTERPRETER = "xd0", "xd1"
"""INTERPRETER: the zygote and, as its forks, the workers of all sessions."""

_PR_SET_NAME = 15  # prctl(2)


def take_name(name: str) -> None:
    """Name this process, and the processes that it forks from now on.

    Without ctypes, or without the C library's pointer to the arguments, the process keeps its name.
    """
    try:
        import ctypes

        library = ctypes.CDLL(None)
        arguments = ctypes.c_void_p.in_dll(library, "program_invocation_name").value
        with open("/proc/self/cmdline", "rb") as file:
            shown = file.read()
    except (ImportError, OSError, ValueError):
        return
    own = name.encode()
    library.prctl(_PR_SET_NAME, own, 0, 0, 0)
    if arguments and len(own) < len(shown) and ctypes.string_at(arguments, len(shown)) == shown:
        ctypes.memmove(arguments, own.ljust(len(shown), b"\0"), len(shown))
