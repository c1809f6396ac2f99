"""Open a shell in the sandbox. The program ends with the shell, with the shell's exit code.

python examples/terminal.py [URL]     needs httpx and websockets
"""

import json
import os
import sys
import termios
import threading
import tty

import httpx
from websockets.sync.client import connect

url = [*sys.argv, "http://127.0.0.1:8888"][1]
cols, rows = os.get_terminal_size(0)
run = {"argv": ["/bin/sh", "-i"], "pty": {"cols": cols, "rows": rows}, "detach": True}
execution = httpx.post(f"{url}/v1/executions", json=run).json()
address = f"{url.replace('http', 'ws', 1)}/v1/executions/{execution['id']}/attach"
before = termios.tcgetattr(0)
tty.setraw(0)  # the terminal in the sandbox echoes, and makes signals of keys
try:
    with connect(address, subprotocols=["execd.v1"]) as terminal:
        keys = iter(lambda: os.read(0, 1024), b"")
        threading.Thread(target=lambda: [*map(terminal.send, keys)], daemon=True).start()
        for message in terminal:
            if isinstance(message, bytes):
                os.write(1, message)
            elif (event := json.loads(message))["type"] == "exited":
                exit_code = event["exit_code"]
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, before)
sys.exit(exit_code)
