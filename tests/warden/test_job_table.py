"""The lowest limit of processes that the table keeps, against a search of all jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execd.proc.memory import Account
from execd.proc.messages import Spawn
from execd.proc.program_block import pack
from execd.warden.job import Job, JobTable

LIMITS = st.sampled_from([0, 5, 512, 4096])


def job(tag: int, limit: int, *, is_idle: bool) -> Job:
    request = Spawn(
        tag, pack(["sh"], {}, "/"), [], False, [], limit, "A=b", None, None, None, is_idle=is_idle
    )
    return Job(request, 10, 0, frozenset(), Account(tag, 0, None), spawned_at=0.0, session=10)


def searched(table: JobTable) -> int:
    return min(
        (job.max_processes for job in table.values() if job.max_processes and not job.is_idle),
        default=0,
    )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), LIMITS, st.booleans()),
            st.tuples(st.sampled_from(["activate", "drop"]), st.integers(0, 9), st.none()),
        )
    )
)
def test_the_lowest_limit_is_that_of_the_jobs_that_run_user_code(
    steps: list[tuple[str, int, bool | None]],
) -> None:
    table = JobTable()
    for tag, (what, number, is_idle) in enumerate(steps):
        jobs = list(table.values())
        if what == "add":
            table.add(job(tag, number, is_idle=bool(is_idle)))
        elif jobs and what == "activate":
            table.activate(jobs[number % len(jobs)])
        elif jobs:
            table.remove(jobs[number % len(jobs)])
        assert table.lowest_process_limit == searched(table)
