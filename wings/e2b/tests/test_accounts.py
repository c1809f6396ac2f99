"""Users and paths as E2B's clients name them."""

from __future__ import annotations

import base64
import os
import pwd
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidArgument, PermissionDenied
from execd_e2b.accounts import (
    RequestAccount,
    UnknownUser,
    basic_user,
    expand,
    find_account,
    find_own_account,
)

if TYPE_CHECKING:
    from wings.e2b.tests.conftest import Box

HOME = RequestAccount(None, "/home/me", {})


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "user"),
    [
        (None, None),
        ("Bearer token", None),
        (basic("bob:"), "bob"),
        (basic("bob"), "bob"),
        (basic("bob:any:password"), "bob"),
        (basic(":"), None),
        ("basic  " + basic("é:").partition(" ")[2], "é"),
    ],
)
def test_user_comes_from_basic_authorization(header: str | None, user: str | None) -> None:
    assert basic_user(header) == user


@pytest.mark.parametrize("header", ["Basic !", "Basic /w==", "Basic é"])
def test_authorization_that_is_not_base64_is_refused(header: str) -> None:
    with pytest.raises(InvalidArgument, match="Authorization"):
        basic_user(header)


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("", "/home/me"),
        ("~", "/home/me"),
        ("~/x", "/home/me/x"),
        ("x/../y", "/home/me/y"),
        ("../../../x", "/x"),
        ("/x//y/", "/x/y"),
        ("//x", "/x"),
        ("/", "/"),
        (" ", "/home/me/ "),
        ("x~", "/home/me/x~"),
    ],
)
def test_path_is_expanded_as_envd_expands_it(path: str, absolute: str) -> None:
    assert expand(path, HOME) == absolute


def test_empty_path_is_the_workdir_and_a_relative_path_is_not_below_it() -> None:
    assert expand("", HOME, "/work") == "/work"
    assert expand("x", HOME, "/work") == "/home/me/x"


def test_home_of_another_user_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="another user's home"):
        expand("~bob/x", HOME)


@given(path=st.text(st.characters(exclude_characters="\0")).filter(lambda p: p[:1] != "~"))
def test_expanded_path_is_absolute_and_expands_to_itself(path: str) -> None:
    absolute = expand(path, HOME)
    assert absolute.startswith("/")
    assert not absolute.startswith("//")
    assert expand(absolute, HOME) == absolute


async def test_own_names_and_no_name_are_the_daemon_s_user(box: Box) -> None:
    engine = box.wire.engine
    own = RequestAccount(None, engine.config.base_dir, {})
    name = pwd.getpwuid(os.geteuid()).pw_name
    for user in (None, name, str(os.geteuid())):
        assert await find_account(engine, user) == own
        assert await find_own_account(engine, user) == own


async def test_unknown_name_is_unauthenticated(box: Box) -> None:
    for user in ("no-such-user", "4000000", "1"):
        with pytest.raises(UnknownUser, match=user):
            await find_account(box.wire.engine, user)


@pytest.mark.not_root
@pytest.mark.skipif(os.geteuid() == 0, reason="about a daemon that is not root")
async def test_default_names_stand_for_a_user_that_is_not_root(box: Box) -> None:
    for user in ("root", "user"):
        assert (await find_account(box.wire.engine, user)).user is None
    with pytest.raises(PermissionDenied, match="cannot become 'daemon'"):
        await find_account(box.wire.engine, "daemon")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="about a root daemon, and this user is not")
async def test_root_daemon_becomes_a_user_for_commands_and_not_for_files(box: Box) -> None:
    engine, entry = box.wire.engine, pwd.getpwnam("daemon")
    account = await find_account(engine, "daemon")
    assert (account.user, account.home) == (f"{entry.pw_uid}:{entry.pw_gid}", entry.pw_dir)
    with pytest.raises(PermissionDenied, match="daemon's own user"):
        await find_own_account(engine, "daemon")
