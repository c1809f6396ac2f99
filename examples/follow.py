"""Stream the output of a command, lose the connection, and go on where the stream broke off.

python examples/follow.py [URL]     needs execd-client
"""

import sys
from itertools import islice

from execd_client import Execd

with Execd([*sys.argv, "http://127.0.0.1:8888"][1]) as sandbox:
    handle = sandbox.start("for i in 1 2 3 4 5; do echo step $i; sleep 0.1; done")
    for seen in islice(handle.events(), 3):  # then this reader is gone
        print(seen.text, end="")
    for event in handle.events(after=seen.sequence):
        print(event.text, end="")
    print("exit code", event.result.exit_code)
