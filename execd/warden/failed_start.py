"""The cause of a program's failed start, in words for the caller: the field, the rule, the remedy.

The warden looks, because the warden sees the file system as the program would. The look comes after
the failure: user code may have changed a file meanwhile, so a missing cause is no contradiction.
"""

from __future__ import annotations

import errno
import os
import stat

from execd.proc import program_block

FIRST_LINE_BYTES = 256
"""The kernel reads so many bytes of a script's first line (execve(2))."""
PATH_MAX_BYTES, NAME_MAX_BYTES = 4096, 255
"""The longest path, with the NUL, and the longest name of a file: path_resolution(7)."""
MISSING = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))


def judge(step: str, error: int, block: bytes) -> tuple[int, str]:
    """Return the errno of a failed step as Linux would tell the errno, and the message.

    ``step``: of ``spawn.STEP_NAMES``. ``block``: see ``program_block``.
    """
    if (step, error) == ("exec", errno.ENAMETOOLONG) and not _has_long_path(block):
        error = errno.E2BIG  # gVisor has one number for a long name and for long arguments
    return error, _explain(step, error, block)


def _has_long_path(block: bytes) -> bool:
    """Whether the kernel refuses one of the program's paths as too long."""
    return any(
        len(path) >= PATH_MAX_BYTES or max(map(len, path.split(b"/"))) > NAME_MAX_BYTES
        for path in map(os.fsencode, program_block.unpack(block).paths)
    )


def _explain(step: str, error: int, block: bytes) -> str:
    reason = os.strerror(error)
    if step not in ("cwd", "exec"):
        return f"{step}: {reason}"
    argv, env, cwd, _ = program_block.unpack(block)
    program = argv[0]
    if step == "cwd":
        return f"cwd: {cwd!r}: {reason}; name a directory that exists and may be entered"
    if error in MISSING:
        return _explain_missing(reason, program, cwd, env.get("PATH", program_block.DEFAULT_PATH))
    match error:
        case errno.EACCES:
            remedy = "must be a file, and it and its interpreter executable (chmod +x)"
        case errno.ENOEXEC:
            remedy = "must be a program for this machine, or a script that begins with #!"
        case errno.E2BIG:
            return f"argv, env: {reason}; pass large values by stdin or by a file"
        case _:
            return f"program: {program!r}: {reason}"
    return f"program: {program!r}: {reason}; {remedy}"


def _explain_missing(reason: str, program: str, cwd: str, path: str) -> str:
    """The program, the interpreter of its first line, or the loader of a binary is missing."""
    for candidate in program_block.search(program, path):
        head = _first_bytes(os.path.join(cwd, candidate))
        if head is None:
            continue
        if not head.startswith(b"#!"):
            return (
                f"program: {candidate!r}: {reason}: its dynamic loader or a part of it is missing"
            )
        words = head[2:].split(b"\n", 1)[0].strip(b" \t").split(b" ", 1)
        interpreter = os.fsdecode(words[0])
        remedy = "end the line in LF, not in CR LF" if "\r" in interpreter else "install it"
        return (
            f"program: {candidate!r}: {reason}: its interpreter {interpreter!r}, named in its "
            f"first line, is missing; {remedy}, or name another"
        )
    if "/" in program:
        return f"program: {program!r}: {reason}; give the path of an existing program"
    return (
        f"program: {program!r}: {reason} in any directory of PATH ({path}); give the path of the "
        "program, or set PATH in env"
    )


def _first_bytes(path: str) -> bytes | None:
    """Return the beginning of a regular file, or None. Never waits, as a FIFO would make it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, FIRST_LINE_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
