"""Users by name: the passwd file is read as libc reads the file, and cannot hold up the daemon."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from execd.engine.executions import passwd
from execd.errors import InvalidArgument

CONTENT = """\
# ada:x:1:1::/:/bin/sh
root:x:0:0:root:/root:/bin/bash
short:x:5:5
ada:x:none:1000:::
ada:x:1000:1001:Ada,,,:/home/ada:/bin/sh
ada:x:7:7::/:/bin/sh
huge:x:4294967295:1::/:
long:x:00000000001:1::/:
negative:x:-1:1::/:
digits:x:\u0661:1::/:
"""


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("root", "0:0"),
        ("ada", "1000:1001"),
        ("short", None),
        ("huge", None),
        ("long", None),
        ("negative", None),
        ("digits", None),
        ("nobody", None),
    ],
)
def test_the_first_whole_entry_of_a_name_counts(name: str, numbers: str | None) -> None:
    found = passwd.find(CONTENT, name)
    assert (found and f"{found.uid}:{found.gid}") == numbers


@pytest.mark.parametrize(
    ("uid", "name"), [(0, "root"), (1000, "ada"), (7, "ada"), (1, None), (5, None), (9, None)]
)
def test_the_first_whole_entry_of_a_number_gives_the_name(uid: int, name: str | None) -> None:
    found = passwd.find_number(CONTENT, uid)
    assert (found and found.name) == name


def test_the_file_of_this_machine_is_read_as_libc_reads_it() -> None:
    assert passwd.name_of(os.geteuid()) == pwd.getpwuid(os.geteuid()).pw_name
    for line in Path(passwd.PATH).read_text().splitlines():
        name = line.partition(":")[0]
        entry = pwd.getpwnam(name)
        expected = {"USER": name, "LOGNAME": name, "HOME": entry.pw_dir}
        assert passwd.resolve(name) == (f"{entry.pw_uid}:{entry.pw_gid}", expected)


def test_an_unknown_name_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(CONTENT)
    with pytest.raises(InvalidArgument, match=r"^user: .* has no user 'eve'; give the number"):
        passwd.resolve("eve", str(path))


def test_a_file_that_cannot_be_read_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "fifo", "not a regular file"),
    ):
        with pytest.raises(InvalidArgument, match=rf"^user: .* cannot be read: {reason}"):
            passwd.resolve("root", str(path))
        assert passwd.name_of(0, str(path)) is None
        expected = {"USER": "0", "LOGNAME": "0", "HOME": "/"}
        assert passwd.resolve("0:5", str(path)) == ("0:5", expected)


@pytest.mark.parametrize(
    ("user", "name", "home"),
    [
        ("1000", "ada", "/home/ada"),
        ("1000:5", "ada", "/home/ada"),
        ("01000", "ada", "/home/ada"),
        ("4242", "4242", "/"),
        ("7", "ada", "/"),
    ],
)
def test_number_has_the_names_and_the_home_of_its_first_entry(
    tmp_path: Path, user: str, name: str, home: str
) -> None:
    path = tmp_path / "passwd"
    path.write_text(CONTENT)
    expected = {"USER": name, "LOGNAME": name, "HOME": home}
    assert passwd.resolve(user, str(path)) == (user, expected)


@pytest.mark.parametrize("home", [b"", b"relative", b"/\0", b"/\xff"])
def test_home_that_no_environment_should_have_is_the_root(tmp_path: Path, home: bytes) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(b"ada:x:5:5::" + home + b":/bin/sh\n")
    assert passwd.resolve("ada", str(path))[1]["HOME"] == "/"


def test_user_behind_the_part_that_is_read_is_refused_with_the_length(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    line = "#" + "\u00e9" * 40 + "\n"
    path.write_text(line * (passwd.MAX_BYTES // len(line.encode()) + 1) + CONTENT)
    with pytest.raises(InvalidArgument, match=r"^user: .* is too long to be searched: .*'ada'"):
        passwd.resolve("ada", str(path))
    path.write_text(CONTENT)
    os.truncate(path, passwd.MAX_BYTES)
    with pytest.raises(InvalidArgument, match=r"^user: .* has no user 'eve'"):
        passwd.resolve("eve", str(path))


def test_names_of_numbers_are_the_first_of_each_and_broken_lines_are_skipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "group"
    path.write_bytes(
        b"tty:x:5:ada\nother:x:5:\n#no\nbad:x:y:\n:x:6:\n\xff:x:7:\nshort:x\nlast:x:8:"
    )
    assert passwd.names_by_number(str(path)) == {5: "tty", 8: "last"}
    assert passwd.names_by_number(str(tmp_path / "nothing")) == {}
