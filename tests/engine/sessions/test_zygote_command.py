from __future__ import annotations

from execd.engine.sessions import zygote_process


def test_zygote_has_the_environment_of_a_session_without_what_loads_user_code() -> None:
    given = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/user",
        "PYTHONSTARTUP": "/user/x.py",
    }
    assert zygote_process.zygote_environment(given) == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "PYTHONUSERBASE": "/nonexistent",
        "GLIBC_TUNABLES": zygote_process.HUGE_PAGES,
    }


def test_tunables_of_the_user_stay() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    found = zygote_process.zygote_environment(given)["GLIBC_TUNABLES"]
    assert found == f"glibc.malloc.check=3:{zygote_process.HUGE_PAGES}"
