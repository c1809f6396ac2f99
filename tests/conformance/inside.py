"""What a command of the sandbox sees of the sandbox, as one line of JSON: of the state that no
walk of files shows. Runs in the sandbox, by `python3 -c`."""

import contextlib
import json
import os
import resource
import subprocess
import sys

mask = os.umask(0)
os.umask(mask)


def names(directory):
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def rows(path):
    try:
        with open(path, errors="replace") as file:
            return [line.split() for line in file][1:]
    except OSError:
        return []


def run(*words):
    try:
        done = subprocess.run(words, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace")


def text(path):
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""


OWN_LIMITS = (resource.RLIMIT_RSS, resource.RLIMIT_NPROC)  # execd gives each program others
HIDDEN = ("EXECD_EXECUTION_ID", "TRACEPARENT", "_", "SHLVL")
print(
    json.dumps(
        {
            "umask": mask,
            "cwd": os.getcwd(),
            "environment": {k: v for k, v in sorted(os.environ.items()) if k not in HIDDEN},
            "limits": [resource.getrlimit(each) for each in range(10) if each not in OWN_LIMITS],
            "nice": os.nice(0),
            "oom": text("/proc/self/oom_score_adj"),
            "shm": names("/dev/shm"),
            "system v": {
                kind: sorted(row[0] + " " + row[1] for row in rows(f"/proc/sysvipc/{kind}"))
                for kind in ("shm", "msg", "sem")
            },
            "mounts": sorted(row[4] for row in rows("/proc/self/mountinfo")),
            "abstract": sorted(
                row[7] for row in rows("/proc/net/unix") if len(row) > 7 and sys.argv[1] in row[7]
            ),
            "git": run("git", "config", "--global", "--list"),
            "modules": run(
                "python3", "-c", "import sys; print(sorted(sys.modules), [*map(str, sys.path)])"
            ),
        }
    )
)
