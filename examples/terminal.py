"""Type into a shell in the sandbox, and read its screen. For people there is `execctl sh`.

python examples/terminal.py [URL]     needs execd-client
"""

import sys

from execd_client import Execd

with Execd([*sys.argv, "http://127.0.0.1:8888"][1]) as sandbox:
    shell = sandbox.start(["/bin/sh", "-i"], pty=(80, 24))
    with shell.terminal() as terminal:
        terminal.resize(100, 30)
        terminal.write("stty size; echo $((6 * 7)); exit 7\n")
        while screen := terminal.read():
            print(screen.decode(), end="")
    sys.exit(terminal.result.exit_code)
