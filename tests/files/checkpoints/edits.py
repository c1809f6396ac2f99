"""A project, and edits that programs make in it: editors, formatters, git, and the tools of every
shell. Each edit is a line for ``/bin/sh``, run in the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.files.checkpoints.trees import GIT

if TYPE_CHECKING:
    from collections.abc import Mapping

MAIN = '''import sys,os
def main( a,b ):
  """Twice the sum."""
  return {  "sum":(a+b)*2 , 'name' : "x" }


if __name__=="__main__":
    print(main( int(sys.argv[1]),2 ))
'''
DIFF = """--- notes.txt
+++ notes.txt
@@ -1,3 +1,3 @@
 one
-two
+zwei
 three
"""
ENVIRONMENT = {
    **GIT,
    **{f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
}

EDITS = {
    "sed -i": "sed -i s/two/zwei/ notes.txt",
    "sed deletes lines": "sed -i 2,4d numbers.txt",
    "sed on many files": "sed -i 's/1/one/' *.txt *.csv",
    "sed -i.bak": "sed -i.bak 's/^/> /' notes.txt",
    "sed --follow-symlinks": "sed -i --follow-symlinks s/one/eins/ link",
    "sed on a link": "sed -i s/one/eins/ link",
    "perl -i": "perl -pi -e 's/e/E/g' notes.txt 'with blank.txt'",
    "ed": "printf '%s\\n' '2a' 'two and a half' . w q | ed -s notes.txt",
    "ex": "ex -s -c '%s/three/drei/' -c 'x' notes.txt",
    "vim": "vim -es -u NONE -c 'normal Goend' -c 'wq' notes.txt",
    "patch": "patch -s notes.txt notes.diff",
    "awk and mv": "awk '{print NR, $0}' notes.txt > new && mv new notes.txt",
    "python": 'python3 -c \'open("made.py", "w").write("x = 1\\n" * 50)\'',
    "python appends": 'python3 -c \'open("notes.txt", "a").write("no newline at the end")\'',
    "python -m compileall": "python3 -m compileall -q package main.py",
    "ruff format": "ruff format -q --isolated --no-cache main.py",
    "ruff check --fix": "ruff check -q --isolated --no-cache --fix --exit-zero main.py",
    "black": "black -q main.py package",
    "isort": "isort -q main.py",
    "sort -o": "sort -o unsorted.txt unsorted.txt",
    "sort -u": "sort -u numbers.txt unsorted.txt -o all.txt",
    "tr": "tr a-z A-Z < notes.txt > upper.txt",
    "split": "split -l 100 numbers.txt part.",
    "tee -a": "echo one more | tee -a notes.txt no-newline.txt",
    "truncate to nothing": "truncate -s 0 notes.txt",
    "truncate in a line": "truncate -s 100 numbers.txt",
    "truncate makes holes": "truncate -s +5000 notes.txt",
    "dd in the middle": "printf XYZ | dd of=numbers.txt bs=1 seek=200 conv=notrunc status=none",
    "dd of zeros": "dd if=/dev/zero of=zeros bs=1000 count=20 status=none",
    "dd in a binary": "printf '\\0\\1' | dd of=binary bs=1 seek=999 conv=notrunc status=none",
    "install": "install -m 755 notes.txt package/program",
    "install -D": "install -D -m 600 binary deep/er/est/copy",
    "ln": "ln notes.txt 'hard link'",
    "ln -s": "ln -s ../nowhere 'soft link'",
    "ln -sfn": "ln -sfn package link",
    "chmod +x": "chmod +x notes.txt",
    "chmod -x": "chmod -x tool.sh",
    "chmod and edit": "chmod 755 notes.txt && echo more >> notes.txt",
    "mv": "mv notes.txt renamed.txt",
    "mv of a folder": "mv package 'a package'",
    "mv swaps": "mv notes.txt x && mv numbers.txt notes.txt && mv x numbers.txt",
    "cp -a": "cp -a package copy",
    "rm": "rm notes.txt binary empty link",
    "rm -r": "rm -r package",
    "rm and a folder of the name": "rm notes.txt && mkdir notes.txt && echo x > notes.txt/inner",
    "a file of a folder's name": "rm -r package && echo 'no package' > package",
    "a link of a folder's name": "mv package p && ln -s p package",
    "a folder of a link's name": "rm link && mkdir link && cp notes.txt link/",
    "unix2dos": "sed -i 's/$/\\r/' notes.txt",
    "dos2unix": "sed -i 's/\\r$//' table.csv",
    "a newline at the end": "echo >> no-newline.txt",
    "newlines in a name": "echo x > 'two\nlines' && printf y > 'tab\tand \"quotes\" \\'",
    "bytes in a name": "echo x > \"$(printf 'latin-\\344')\"",
    "iconv": "iconv -f latin1 -t utf8 latin1.txt > x && mv x latin1.txt",
    "gzip": "gzip -n numbers.txt",
    "tar": "tar -cf all.tar --exclude=all.tar *.txt && tar -xf all.tar -C package",
    "git mv": "git mv notes.txt moved.txt",
    "git rm": "git rm -q binary table.csv",
    "git apply": "git apply notes.diff -p0",
    "git commit": "echo x >> notes.txt && git add -A && git commit -qm second",
    "git stash": "echo x >> notes.txt && git stash -q && git stash pop -q",
    "git checkout": "git checkout -qb other && echo x > other.txt && git add other.txt",
    "git init elsewhere": "git init -q vendor && echo x > vendor/file",
    "heredoc": "cat > 'with blank.txt' <<'END'\nall\nnew\nEND",
    "sqlite": "python3 -c \"import sqlite3; sqlite3.connect('a.db').execute('create table x(y)')\"",
    "pip's RECORD": "printf 'a,sha256=x,1\\r\\nb,,\\r\\n' > package/RECORD && touch package/MARK",
    "umask": "umask 077 && cp notes.txt private.txt && mkdir d && cp tool.sh d/",
    "nothing": "touch notes.txt && cp numbers.txt x && mv x numbers.txt",
}
PROGRAMS = ("ed", "ex", "vim", "patch", "perl", "ruff", "black", "isort")
"""Programs that a machine may lack. All others are of Debian's base system."""


def possible() -> Mapping[str, str]:
    """The edits whose programs are here."""
    missing = {name for name in PROGRAMS if not shutil.which(name, path=ENVIRONMENT["PATH"])}
    return {name: line for name, line in EDITS.items() if name.split()[0] not in missing}


def make_project(folder: Path) -> None:
    """A project under git, with an empty commit's worth of every kind of file."""
    (folder / "package/data").mkdir(parents=True)
    contents = {
        "main.py": MAIN.encode(),
        "notes.txt": b"one\ntwo\nthree\n",
        "notes.diff": DIFF.encode(),
        "numbers.txt": b"".join(b"%d\n" % number for number in range(1000)),
        "unsorted.txt": b"pear\napple\nfig\napple\n",
        "table.csv": b"name,size\r\na,1\r\nb,2\r\n",
        "no-newline.txt": b"first\nlast",
        "with blank.txt": b"blank\n",
        "latin1.txt": "Grüße\n".encode("latin1"),
        "binary": bytes(range(256)) * 8,
        "empty": b"",
        "tool.sh": b"#!/bin/sh\necho tool\n",
        "package/__init__.py": b"",
        "package/code.py": b"x=1\ny  =2\n",
        "package/data/table": b"\0\1\2",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "tool.sh").chmod(0o755)
    (folder / "link").symlink_to("notes.txt")
    (folder / "dangling").symlink_to("/nowhere")
    edit(folder, "git init -q . && git add -A && git commit -qm first")


def edit(folder: Path, line: str) -> None:
    """Run a line of EDITS."""
    ended = subprocess.run(
        ["sh", "-ec", line], cwd=folder, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert ended.returncode == 0, (line, ended.stderr.decode())
