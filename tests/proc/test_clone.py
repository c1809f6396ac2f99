"""``spawn.clone``, the start of the warden."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from execd.proc import spawn
from execd.proc.spawn import StepFailed
from tests.proc.conftest import PATH
from tests.proc.spawning import open_descriptors

if TYPE_CHECKING:
    from pathlib import Path


def clone(**options: Any) -> int:
    return spawn.clone(
        **(
            {
                "argv": ["/bin/sh", "-c", "true"],
                "env": PATH,
                "socket": 2,
                "clone_flags": 0,
                "id_maps": {},
                "unshare_mounts": False,
                "covers": [],
                "cover_dirs": [],
                "cover_links": [],
            }
            | options
        )
    )


def namespaces() -> dict[str, Any]:
    """Return flags and maps allowed for this user."""
    if os.geteuid() == 0:
        return {"clone_flags": spawn.CLONE_NEWPID, "unshare_mounts": True}
    maps = {
        "setgroups": "deny",
        "gid_map": f"{os.getegid()} {os.getegid()} 1",
        "uid_map": f"{os.geteuid()} {os.geteuid()} 1",
    }
    return {
        "clone_flags": spawn.CLONE_NEWUSER | spawn.CLONE_NEWPID,
        "id_maps": maps,
        "unshare_mounts": True,
    }


def said_by_clone(script: str, **options: Any) -> str:
    """Return the bytes written by the program to descriptor 3."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        pid = clone(
            argv=["/bin/sh", "-c", f"exec >&3 2>&1; {script}"], socket=theirs.fileno(), **options
        )
        theirs.close()
        text = b""
        while data := ours.recv(4096):
            text += data
        os.waitpid(pid, 0)
    return text.decode().strip()


def test_a_clone_keeps_its_standard_descriptors_and_the_socket_only() -> None:
    assert said_by_clone("ls /proc/$$/fd").split() == ["0", "1", "2", "3"]
    assert said_by_clone("readlink /proc/$$/fd/0").split() == ["/dev/null"]


def test_in_namespaces_it_is_the_first_process_and_sees_no_other() -> None:
    assert said_by_clone("echo $$; cd /proc; ls -d [0-9]*", **namespaces()).split()[:2] == [
        "1",
        "1",
    ]


def test_in_namespaces_it_is_still_the_same_user() -> None:
    assert said_by_clone("id -u; id -g", **namespaces()).split() == [
        str(os.geteuid()),
        str(os.getegid()),
    ]


def test_a_cover_hides_a_directory_and_shows_what_was_asked_for_read_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    script = (
        f"cd {tmp_path}; ls; readlink bin/python; touch x; rm bin/python; "
        f"umount {tmp_path}; cat secret"
    )
    text = said_by_clone(
        script,
        **namespaces(),
        covers=[str(tmp_path)],
        cover_dirs=[f"{tmp_path}/bin"],
        cover_links=[(f"{tmp_path}/bin/python", "/usr/bin/python3")],
    )
    assert text.splitlines()[:2] == ["bin", "/usr/bin/python3"]
    assert text.count("Read-only file system") == 2
    if os.geteuid() != 0:  # root may: the warden drops the capabilities of commands
        assert "cat: secret: No such file" in text
    assert os.listdir(tmp_path) == ["secret"], "outside, nothing has changed"


def test_a_directory_is_made_read_only_for_the_namespace_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    script = (
        f"cd {tmp_path}; cat file; echo after > file; mv {tmp_path} {tmp_path}.moved; touch new"
    )
    text = said_by_clone(script, **namespaces(), read_only=[str(tmp_path)])
    assert text.startswith("before")
    assert text.count("Read-only file system") == 2
    assert "busy" in text
    (tmp_path / "file").write_text("outside")
    assert os.listdir(tmp_path) == ["file"]


def test_a_pinned_directory_keeps_its_name_and_is_written_as_before(tmp_path: Path) -> None:
    (tmp_path / "above/pinned").mkdir(parents=True)
    script = (
        f"cd {tmp_path}/above; mv pinned moved; rmdir pinned; echo > pinned/new; mv pinned/new ."
    )
    text = said_by_clone(script, **namespaces(), pinned=[str(tmp_path / "above/pinned")])
    assert text.count("busy") == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["above", "new", "pinned"]


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"argv": ["/no/such/program"]}, "exec"),
        ({"socket": 987_654}, "descriptors"),
        ({**namespaces(), "pinned": ["/no/such/directory"]}, "pin"),
        ({**namespaces(), "read_only": ["/no/such/directory"]}, "read_only"),
        ({**namespaces(), "covers": ["/no/such/directory"]}, "cover"),
        ({**namespaces(), "covers": ["/tmp"], "cover_dirs": ["/tmp/a/b"]}, "cover_content"),
        ({**namespaces(), "covers": ["/tmp"], "cover_links": [("/tmp/a/b", "/")]}, "cover_content"),
        (
            {"clone_flags": spawn.CLONE_NEWUSER, "id_maps": {"gid_map": "not a map"}},
            "id_map",
        ),
        ({"clone_flags": 0x10000}, "fork"),  # CLONE_THREAD, alone: EINVAL
    ],
)  # fmt: skip
def test_a_clone_whose_set_up_fails_says_at_which_step_and_leaves_one_child_to_reap(
    options: dict[str, Any], step: str
) -> None:
    before = open_descriptors()
    with pytest.raises(StepFailed) as caught:
        clone(**options)
    assert caught.value.step == step
    if step == "fork":
        assert caught.value.pid is None
    else:
        assert caught.value.pid is not None
        assert os.waitstatus_to_exitcode(os.waitpid(caught.value.pid, 0)[1]) == 127
    assert open_descriptors() == before


@pytest.mark.not_root
def test_without_a_user_namespace_an_unprivileged_clone_fails() -> None:
    with pytest.raises(StepFailed) as caught:
        clone(clone_flags=spawn.CLONE_NEWPID)
    assert (caught.value.step, caught.value.errno) == ("fork", errno.EPERM)
    with pytest.raises(StepFailed) as caught:
        clone(unshare_mounts=True)
    assert (caught.value.step, caught.value.errno) == ("mount_namespace", errno.EPERM)
    assert caught.value.pid is not None
    os.waitpid(caught.value.pid, 0)
