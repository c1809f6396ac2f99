"""Write execd/api/docs/openapi.json.gz, or look whether the file is that of the route table.

python -m tools.openapi [--check]
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import msgspec

from execd.api.routes import routes
from tools.openapi.document import document

FILE = Path(__file__).parents[2] / "execd" / "api" / "docs" / "openapi.json.gz"


def main() -> int:
    body = msgspec.json.encode(document(routes()))
    # Not the compressed bytes: another zlib may compress otherwise.
    is_current = FILE.exists() and gzip.decompress(FILE.read_bytes()) == body
    if sys.argv[1:] == ["--check"]:
        if not is_current:
            print(f"{FILE}: stale; run `make reference`", file=sys.stderr)
        return 0 if is_current else 1
    if not is_current:
        FILE.write_bytes(gzip.compress(body, mtime=0))
        print(f"{FILE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
