#!/bin/sh
# The python-runtime routes with curl: put a script into the sandbox, run the script, read the file
# that the script made.
#     examples/python_runtime.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8888}

printf 'print(sum(range(10)), file=open("sum.txt", "w"))\n' |
    curl --fail --silent --form 'file=@-;filename=jobs/sum.py' "$url/upload"
echo
curl --fail --silent \
    --json '{"command": "python3 jobs/sum.py && cat sum.txt", "timeout_seconds": 5}' "$url/execute"
echo
curl --fail --silent "$url/download/sum.txt"
curl --fail --silent "$url/list/jobs"
echo
