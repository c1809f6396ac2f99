"""Run cells that share their state, show an error, and save a plot.

python examples/notebook.py [URL]     needs execd-client, and matplotlib in the sandbox
"""

import sys

from execd_client import Execd

sandbox = Execd([*sys.argv, "http://127.0.0.1:8888"][1])
with sandbox, sandbox.sessions.create() as session:
    session.run("squares = [n * n for n in range(10)]")
    print("sum:", session.run("sum(squares)").text)
    print("error:", session.run("squares[10]").error.value)
    plot = session.run("import matplotlib.pyplot as plt\nplt.plot(squares);")
    plot.images[0].save("squares.png")
