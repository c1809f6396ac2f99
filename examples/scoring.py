"""Score one program against many inputs at the same time, as a reward for reinforcement learning.

python examples/scoring.py [URL]     needs execd-client
"""

import asyncio
import sys

from execd_client import AsyncExecd

PROGRAM = "n = int(input())\nprint(n * n if n != 13 else 'unlucky')\n"
CASES = {str(n): str(n * n) for n in range(40)}


async def main(url: str) -> None:
    async with AsyncExecd(url) as sandbox:
        await sandbox.files.write("program.py", PROGRAM)
        run = ["python3", "program.py"]
        limits = {"timeout_seconds": 10, "memory_bytes": 256 << 20}
        runs = [sandbox.run(run, stdin=case, **limits) for case in CASES]
        results = await asyncio.gather(*runs)
    right = [
        result.ok and result.stdout.strip() == expected
        for result, expected in zip(results, CASES.values(), strict=True)
    ]
    print(f"reward: {sum(right) / len(right):.3f}")


asyncio.run(main([*sys.argv, "http://127.0.0.1:8888"][1]))
