"""Send a directory up, run a command in the directory, and fetch the directory of the results.

python examples/directory.py SOURCE RESULTS [URL]     needs execd-client
"""

import sys

from execd_client import Execd

source, results, url = [*sys.argv[1:], "http://127.0.0.1:8888"][:3]
with Execd(url) as sandbox:
    sandbox.files.upload_dir(source, "job")
    result = sandbox.run("mkdir -p results && wc -w *.txt > results/words.txt", cwd="job")
    print("exit code", result.check().exit_code)
    sandbox.files.download_dir("job/results", results)
