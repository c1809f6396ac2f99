from __future__ import annotations

from execd.engine.sessions import zygote_command


def test_zygote_has_the_environment_of_a_session_without_what_loads_user_code() -> None:
    given = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/user",
        "PYTHONSTARTUP": "/user/x.py",
    }
    assert zygote_command.environment(given) == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "PYTHONUSERBASE": "/nonexistent",
        "GLIBC_TUNABLES": zygote_command.HUGE_PAGES,
    }


def test_tunables_of_the_user_stay() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    found = zygote_command.environment(given)["GLIBC_TUNABLES"]
    assert found == f"glibc.malloc.check=3:{zygote_command.HUGE_PAGES}"
