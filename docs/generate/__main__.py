"""Write the generated sections of all pages, and llms.txt: `make reference`.

With `--check` nothing is written, and a stale file is a failure.
"""

from __future__ import annotations

import sys

from docs.generate.pages import DOCS, generated_files


def main() -> None:
    stale = {
        path: text
        for path, text in generated_files().items()
        if not path.exists() or path.read_text() != text
    }
    names = [str(path.relative_to(DOCS.parent)) for path in stale]
    if "--check" in sys.argv and stale:
        sys.exit(f"stale: {', '.join(names)}; run `make reference`")
    for name, (path, text) in zip(names, stale.items(), strict=True):
        path.write_text(text)
        print(f"{name}: written")


if __name__ == "__main__":
    main()
