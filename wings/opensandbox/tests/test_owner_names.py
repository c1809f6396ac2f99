from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from execd.errors import InvalidArgument
from execd_opensandbox.owner_names import AccountNames, read_owner_names

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def accounts(tmp_path: Path) -> AccountNames:
    (tmp_path / "passwd").write_text(
        "# a comment:x:9:9\nroot:x:0:0::/root:/bin/sh\nlate:x:0:0::/:/bin/sh\n"
        "app:x:1000:1000::/app:/bin/sh\nbad:x:no:1::/:\nshort:x\n"
    )
    (tmp_path / "group").write_text("wheel:x:0:root\nstaff:x:50:\n")
    return read_owner_names(str(tmp_path / "passwd"), str(tmp_path / "group"))


def test_first_name_of_a_number_counts_and_a_number_without_a_name_is_its_text(
    accounts: AccountNames,
) -> None:
    assert [accounts.user(uid) for uid in (0, 1000, 7)] == ["root", "app", "7"]
    assert [accounts.group(gid) for gid in (0, 50, 7)] == ["wheel", "staff", "7"]


def test_owner_is_a_name_or_a_number(accounts: AccountNames) -> None:
    assert (accounts.uid_of("app"), accounts.uid_of("77")) == (1000, 77)
    assert (accounts.gid_of("staff"), accounts.gid_of("0")) == (50, 0)
    with pytest.raises(InvalidArgument, match=r"owner: .*'nobody'"):
        accounts.uid_of("nobody")
    with pytest.raises(InvalidArgument, match=r"group: .*'app'"):
        accounts.gid_of("app")


def test_files_that_cannot_be_read_have_no_names(tmp_path: Path) -> None:
    assert read_owner_names(str(tmp_path / "no"), str(tmp_path)) == AccountNames({}, {})
