"""After a reset every pollution is gone, or named. ``pollutions`` has the table, and ``world`` the
judge, who looks from outside and must see the pollution before the reset."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from .conftest import SHAPES
from .pollutions import ALWAYS, BY_NAME, TABLE, WITHOUT_NAMESPACES
from .reset_rounds import judge_reply
from .target import LAUNCHER, can_start
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .pollutions import Pollution

pytestmark = [
    pytest.mark.skipif(
        not can_start(),
        reason=(
            "the daemon runs elsewhere: a reset would end the other tests' commands "
            "(EXECD_CONFORMANCE_LAUNCHER)"
        ),
    ),
    # Each row takes seconds in gVisor, where ``test_reset_rounds`` draws from the same table.
    pytest.mark.any_kernel,
]


ON_TMPFS = (
    *("filled_disk", "mmap_write", "mmap_over_the_checkpoint_read", "truncated", "sparse"),
    *("mmap_over_the_checkpoint_dirty", "times_set_back", "same_size_in_the_same_tick"),
    *("hard_link_parted", "modes", "deleted_root", "hostile_names", "attributes", "touched"),
)
"""Writes whose traces depend on the file system."""


def is_refused(shape: str, row: Pollution) -> bool:
    """Where nobody can list POSIX queues, user code makes none: the test below shows that."""
    can_list = LAUNCHER or os.path.ismount("/dev/mqueue")
    return row.name == "posix_queue" and shape != "namespaces" and not can_list


Place = tuple[str, bool]
"""A shape of the daemon, and whether the base dir is a tmpfs."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Place], World]]:
    """One sandbox for all pollutions of a place: each begins where a reset has ended."""
    made: dict[Place, World] = {}

    def get(place: Place) -> World:
        if place not in made:
            shape, has_tmpfs = place
            folder = tmp_path_factory.mktemp("world")
            made[place] = World(folder, *SHAPES[shape], has_tmpfs=has_tmpfs)
        return made[place]

    yield get
    for world in made.values():
        world.close()


@pytest.fixture
def world(worlds: Callable[[Place], World], place: Place) -> World:
    return worlds(place)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pollution" not in metafunc.fixturenames:
        return
    cases = [
        pytest.param((shape, False), row, id=f"{shape}-{row.name}")
        for shape in SHAPES
        for row in TABLE
        if not row.needs_tmpfs and not is_refused(shape, row)
    ]
    if not LAUNCHER:  # a tmpfs is mounted in a namespace around the daemon
        cases += [
            pytest.param(
                ("namespaces", True), BY_NAME[name], id=f"tmpfs-{name}", marks=pytest.mark.root
            )
            for name in ON_TMPFS
        ]
    metafunc.parametrize(("place", "pollution"), cases)


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the suite, which would count what the module's sandbox holds."""


def test_table_has_at_least_forty_kinds_of_pollution() -> None:
    assert len(TABLE) >= 40


@pytest.mark.parametrize("place", [(shape, False) for shape in SHAPES], ids=list(SHAPES))
def test_where_nobody_can_list_posix_queues_no_program_makes_a_queue(world: World) -> None:
    code = (
        "import ctypes, os\nc = ctypes.CDLL('librt.so.1', use_errno=True)\n"
        "q = c.mq_open(b'/made', os.O_CREAT | os.O_RDWR, 0o600, None)\n"
        "q < 0 or c.mq_unlink(b'/made')\nprint(ctypes.get_errno())"
    )
    shape = "namespaces" if world.has_namespaces else "subreaper"
    refused = errno.EMFILE if is_refused(shape, BY_NAME["posix_queue"]) else 0
    assert world.python(code)["stdout"] == f"{refused}\n"


def test_after_a_reset_each_pollution_is_gone_or_named(world: World, pollution: Pollution) -> None:
    if pollution.prepare is not None:
        pollution.prepare(world)
    world.checkpoint()
    pollution.pollute(world)
    seen = world.judge(going_seconds=0)
    assert any(finding.kind == pollution.kind for finding in seen), (
        f"the judge must see the pollution before the reset: {seen}"
    )
    outside = world.see_outside()
    reply = world.reset()
    world.finish()
    try:
        findings = judge_reply(world, reply, outside)
        may_stay = pollution.stays == ALWAYS or (
            pollution.stays == WITHOUT_NAMESPACES and not world.has_namespaces
        )
        assert reply["clean"] or may_stay, reply["differences"]
        if may_stay:
            assert findings, "nothing is left, so the row must not say that it may stay"
    finally:
        world.end_round()
        if not reply["clean"]:
            world.put_right()
            world.renew()
            world.checkpoint()
            again = world.reset()
            world.renew()
    if not reply["clean"]:
        assert again["clean"], again
