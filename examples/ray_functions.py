"""RayAI's sandbox functions on a local Ray, and a pod that runs execd.

pip install './clients/python[rayai]'
python3 examples/ray_functions.py [URL]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from execd_client.adapters.rayai import (
    URL,
    cleanup_session,
    execute_code,
    execute_shell,
    get_session_stats,
    upload_file,
)


def main(url: str) -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        session, path = "ray-example", "ray-example/data.csv"

        def shown(what: str, reference: Any) -> None:
            print(f"{what}: {json.dumps(ray.get(reference))}")

        definition = "def total(rows):\n    return sum(int(row) for row in rows)"
        shown("code", execute_code.remote(definition, session, url=url))
        ray.get(upload_file.remote(path, b"n\n20\n22\n", url=url))
        shown("shell", execute_shell.remote(f"wc -l < {path}", session, url=url))
        code = f"print(total(open('{path}').readlines()[1:]))"
        shown("total", execute_code.remote(code, session, url=url))
        shown("error", execute_code.remote("total(['x'])", session, url=url))
        shown("alone", execute_code.remote("print('total' in globals())", url=url))
        shown("timeout", execute_code.remote("while True: pass", session, timeout=1, url=url))
        shown("still there", execute_code.remote("print(total([1]))", session, url=url))
        shown("stats", get_session_stats.remote(session, url=url))
        shown("cleanup", cleanup_session.remote(session, url=url))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else URL)
