"""Which jobs are accepted, and in which order they are served."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput, Unavailable
from farbus.model.decision import PendingJob, Snapshot
from farbus.model.job import Alternative, GroupVariant, Job, Requests, ServiceRequest, StorageRequest
from farbus.scheduler import queue as queue_module
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.phases.checks import check_demand
from farbus.scheduler.queue import JobQueue, task_names, validate_job
from farbus.scheduler.round import decide
from tests.scheduler.scripted import job


def changed(**fields: object) -> Job:
    return msgspec.structs.replace(job(), **fields)


def with_group(**fields: object) -> Job:
    base = job()
    return msgspec.structs.replace(base, groups=(msgspec.structs.replace(base.groups[0], **fields),))


def test_a_plain_job_is_accepted() -> None:
    assert validate_job(job(gpus=1)) == job(gpus=1)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (changed(name=""), "name: is empty"),
        (changed(name="a\nb"), "name: has a character that can't be printed"),
        (changed(name="x" * 129), "name: is longer than 128 bytes"),
        (changed(cwd="relative"), "cwd: 'relative' is not an absolute path"),
        (changed(environment={"A=B": ""}), "environment: 'A=B' is not the name of a variable"),
        (changed(environment={"A": "\0"}), "environment.A: has a NUL character"),
        (changed(environment={"A": "x" * 200_000}), "environment: is larger than 131072 bytes"),
        (changed(time_limit_s=math.nan), "time_limit_s: nan is not a number"),
        (changed(time_limit_s=math.inf), "time_limit_s: inf is not a number"),
        (changed(time_limit_s=-1.0), "time_limit_s: -1 is less than 0"),
        (changed(priority=10**6), "priority: 1e+06 is more than 1000"),
        (changed(groups=()), "groups: is empty; a job has at least one group of tasks"),
        (changed(groups=job().groups * 2), "groups: two groups have the same name"),
        (with_group(name="a.b"), "groups[0].name: 'a.b' is not a name"),
        (with_group(command=()), "groups[0].command: is empty"),
        (with_group(command=("a", "\0")), "groups[0].command: has a NUL character"),
        (with_group(command=("x" * 200_000,)), "groups[0].command: is longer than 131072 bytes"),
        (with_group(count=0), "groups[0].count: 0 is less than 1"),
        (with_group(count=5000), "groups[0].count: 5000 is more than 4096"),
        (with_group(routes=()), "groups[0].routes: is empty; use local, remote or both"),
        (with_group(storage=(StorageRequest(name="s", size_bytes=0),)), "groups[0].storage[0].size_bytes: 0 is less"),
        (with_group(storage=(StorageRequest(name="/", size_bytes=1),)), "groups[0].storage[0].name: '/' is not a name"),
        (
            with_group(storage=(StorageRequest(name="s", size_bytes=1),) * 2),
            "groups[0].storage: two have the same name",
        ),
        (
            with_group(storage=(StorageRequest(name="a-b", size_bytes=1), StorageRequest(name="A_b", size_bytes=1))),
            "groups[0].storage[1].name: 'A_b' and 'a-b' would both be FARBUS_STORAGE_A_B",
        ),
        (changed(alternatives=(Alternative(name="a"),) * 2), "alternatives: two have the same name"),
        (changed(alternatives=(Alternative(name=""),)), "alternatives[0].name: '' is not a name"),
        (changed(alternatives=(Alternative(name="a", cost=-1),)), "alternatives[0].cost: -1 is less than 0"),
        (
            changed(alternatives=(Alternative(name="a", groups=(GroupVariant(name="x", requests=Requests()),)),)),
            "alternatives[0].groups[0].name: the job has no group 'x'",
        ),
        (with_group(requests=Requests(cpu_milli=0)), "groups[0].requests.cpu_milli: 0 is less than 1"),
        (with_group(requests=Requests(memory_bytes=2**61)), "groups[0].requests.memory_bytes"),
        (with_group(requests=Requests(gpus=-1)), "groups[0].requests.gpus: -1 is less than 0"),
        (
            with_group(requests=Requests(gpu_memory_bytes=1)),
            "groups[0].requests.gpu_memory_bytes: is set, but no GPU is asked for",
        ),
        (
            changed(groups=tuple(msgspec.structs.replace(job().groups[0], name=f"g{n}", count=4096) for n in (1, 2))),
            "groups: 8192 tasks are more than 4096",
        ),
    ],
)
def test_a_refusal_names_the_field_and_the_reason(bad: Job, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        validate_job(bad)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "bad",
    [
        changed(groups=()),
        changed(groups=job().groups * 2),
        with_group(count=0),
        with_group(count=5000),
        with_group(min_count=2),
        with_group(requests=Requests(cpu_milli=-1)),
        with_group(requests=Requests(memory_bytes=2**61)),
        with_group(requests=Requests(gpus=2000)),
        # More GPUs than a round can count: let in at the door until both had the same checks.
        with_group(count=4096, requests=Requests(gpus=1024)),
        with_group(requests=Requests(gpus=1), routes=()),
        with_group(storage=(StorageRequest(name="s", size_bytes=0),)),
        with_group(storage=(StorageRequest(name="s", size_bytes=1),) * 2),
        with_group(service=ServiceRequest(name="cache", own={"stages": -1})),
        with_group(flavour="2"),
        changed(alternatives=(Alternative(name="a"),) * 2),
        changed(alternatives=(Alternative(name="a", cost=-1),)),
        changed(
            alternatives=(
                Alternative(name="a", groups=(GroupVariant(name=job().groups[0].name, requests=Requests(gpus=-1)),)),
            )
        ),
    ],
)
def test_what_no_round_could_decide_on_is_refused_when_it_is_submitted_in_the_same_words(bad: Job) -> None:
    with pytest.raises(InvalidInput):
        validate_job(bad)
    with pytest.raises(InvalidInput) as refused:
        check_demand(bad)
    (missed,) = decide(Snapshot(nodes=(), devices=()), [PendingJob(job=bad)], policy=DefaultPolicy()).misses
    assert [miss.message for miss in missed.misses] == [refused.value.message]


def test_an_interactive_job_has_one_task_without_a_command_on_a_named_node() -> None:
    validate_job(job(interactive=True, on="c"))
    for bad in (job(interactive=True), job(interactive=True, on="c", count=2), changed(interactive=True)):
        with pytest.raises(InvalidInput):
            validate_job(bad)


def test_tasks_are_named_by_group_and_index() -> None:
    assert list(task_names(job(count=3))) == [("main.0", 0), ("main.1", 0), ("main.2", 0)]


def test_priority_comes_first_then_the_longest_wait() -> None:
    jobs = [
        job("j1", submitted_at=3.0),
        job("j2", submitted_at=1.0),
        job("j3", submitted_at=9.0, priority=5),
        job("j10", submitted_at=1.0),
    ]
    queue = JobQueue()
    for each in jobs:
        queue.add(each)
    assert list(queue) == ["j3", "j2", "j10", "j1"]
    assert queue.position(jobs[0]) == 3


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=30), st.data())
def test_the_queue_is_always_in_order(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    jobs = [job(f"j{n}", priority=priority, submitted_at=at) for n, (priority, at) in enumerate(keys)]
    queue = JobQueue(jobs[::2])
    for each in jobs[1::2]:
        queue.add(each)
    gone = data.draw(st.sets(st.integers(0, len(jobs) - 1))) if jobs else set()
    for index in gone:
        queue.remove(jobs[index])
    left = [each for index, each in enumerate(jobs) if index not in gone]
    left.sort(key=lambda each: (-each.priority, each.submitted_at, int(each.id[1:])))
    assert list(queue) == [each.id for each in left]


def test_one_user_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_QUEUED_JOBS", 4)
    queue = JobQueue([job("j-1"), job("j-2")])
    with pytest.raises(Unavailable, match="2 jobs of ada wait"):
        queue.check_room(job("j-3"))
    queue.check_room(job("j-3", user="bob"))
    queue.remove(job("j-1"))
    queue.check_room(job("j-3"))


def test_jobs_of_many_megabytes_are_limited_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_QUEUED_BYTES", 10_000)
    queue = JobQueue()
    queue.add(changed(id="j-1", environment={"A": "x" * 4_000}))
    with pytest.raises(Unavailable, match="1 jobs of ada wait, with 3"):
        queue.check_room(changed(id="j-2", environment={"A": "x" * 1_000}))
    queue.check_room(changed(id="j-2", user="bob", environment={"A": "x" * 1_000}))
    with pytest.raises(Unavailable, match="the queue is full"):
        queue.check_room(changed(id="j-2", user="bob", environment={"A": "x" * 7_000}))
