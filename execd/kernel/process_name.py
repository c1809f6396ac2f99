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
    if not arguments or len(own) >= len(shown):
        return
    # A loader that was called by name (ld.so(8), as the tree's launcher calls its own) shows its
    # words before the program's. The last place of the program's first word is the first guess
    # that cannot lead beyond the arguments.
    word = ctypes.string_at(arguments)
    at = (b"\0" + shown).rfind(b"\0" + word + b"\0")
    if at < 0 or ctypes.string_at(arguments, len(shown) - at) != shown[at:]:
        return
    if ctypes.string_at(arguments - at, len(shown)) == shown:
        ctypes.memmove(arguments - at, own.ljust(len(shown), b"\0"), len(shown))
