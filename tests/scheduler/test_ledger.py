"""The ledger: what was written is there again, in a new term."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from farbus.errors import Conflict
from farbus.model.device import Route
from farbus.model.job import Requests, TaskPlacement
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.move import MoveState
from farbus.model.operation import Cordon, CordonKind
from farbus.model.pci import Function
from farbus.model.profile import ObservedRun
from farbus.model.states import JobState, LeaseState, VolumeState
from farbus.model.value import to_json
from farbus.model.volume import VolumePart
from farbus.scheduler import events, ledger
from farbus.scheduler.ledger import Ledger, apart, job_id_of, job_number
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.move_records import StoredMove
from farbus.scheduler.records import StoredProgress
from farbus.scheduler.runs import ClientSide, Program, TaskRun
from farbus.scheduler.volume_records import StoredVolume
from tests.scheduler.scripted import Cluster, gpu, job, node


def put_job(
    number: int, state: JobState = JobState.QUEUED, *, new: bool = True, user: str = "ada"
) -> events.PersistJob:
    progress = StoredProgress(story=["queued by ada"], reason="because")
    return events.PersistJob(job=job(f"j{number}", user=user), state=state, progress=progress, new=new)


def put_lease(lease_id: str, state: LeaseState = LeaseState.GRANTED, *, user: str = "ada") -> events.PersistLease:
    lease = Lease(
        id=lease_id,
        job="j1",
        task="main.0",
        user=user,
        client_node="c",
        device_node="a",
        route=Route.REMOTE,
        devices=(LeasedDevice(device="GPU-1", epoch=7),),
        term=1,
        secret="5ec2e7",
    )
    return events.PersistLease(lease=lease, state=state, endpoint="a:1", prepared=True)


def put_device(epoch: int) -> events.PersistDevice:
    return events.PersistDevice(id="GPU-1", node="a", epoch=epoch, device=to_json(gpu("1")))


def test_each_opening_is_a_term(tmp_path: Path) -> None:
    for term in (1, 2, 3):
        opened = Ledger(tmp_path)
        assert opened.term == term
        opened.close()


def test_what_lives_is_loaded_again(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    first.write([put_job(1), put_lease("j1-1-0"), put_device(7), events.PersistNode(node=node("a"), seen_at=5.0)])
    first.write([put_job(2), put_job(1, JobState.PREPARING, new=False)]).result()
    first.close()
    second = Ledger(tmp_path)
    contents = second.load()
    second.close()
    assert [(each.id, state) for each, state, _ in contents.jobs] == [
        ("j1", JobState.PREPARING),
        ("j2", JobState.QUEUED),
    ]
    assert contents.jobs[0][2].story == ["queued by ada"]
    assert [(lease.id, lease.secret, state) for lease, state, _, _ in contents.leases] == [
        ("j1-1-0", "5ec2e7", LeaseState.GRANTED)
    ]
    assert contents.devices == [("GPU-1", "a", 7, gpu("1"))]
    assert contents.nodes == [(node("a"), 5.0)]
    assert contents.next_job == 3


def test_what_ended_is_listed_but_not_loaded(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_job(1), put_job(2, user="bob"), put_job(1, JobState.FAILED, new=False)])
    opened.write([put_job(2, JobState.SUCCEEDED, new=False), put_lease("l"), put_lease("l", LeaseState.RELEASED)])
    assert opened.load().jobs == []
    assert opened.load().leases == []
    assert opened.load().next_job == 3
    assert [status.job.id for status in opened.ended_jobs(user=None).result()] == ["j1", "j2"]
    assert [status.job.id for status in opened.ended_jobs(user="bob").result()] == ["j2"]
    assert [status.lease.id for status in opened.released_leases(user="ada").result()] == ["l"]
    status = opened.job("j1").result()
    assert status is not None
    assert (status.state, status.reason) == (JobState.FAILED, "because")
    assert opened.job("nonsense").result() is None
    opened.close()


def test_a_released_leases_secret_is_erased(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_lease("l")])
    opened.write([put_lease("l", LeaseState.RELEASED)]).result()
    opened.close()
    assert b"5ec2e7" not in (tmp_path / "ledger.db").read_bytes()


def test_an_epoch_never_goes_back(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_device(7)])
    opened.write([put_device(3)]).result()
    assert opened.load().devices[0][2] == 7
    opened.close()


GRANTS = """
import sys
from farbus.scheduler.ledger import Ledger
from tests.scheduler.test_ledger import grant
ledger = Ledger(sys.argv[1])
for epoch in range(int(sys.argv[2]) + 1, 1_000_000):
    ledger.write(grant(epoch)).result()
    print(epoch, flush=True)
"""


def grant(epoch: int) -> list[events.Persist]:
    """Return what a grant of GPU-1 writes: the end of the lease before, the epoch, the new lease."""
    before = put_lease(f"j{epoch - 1}-1-0", LeaseState.RELEASED)
    lease = put_lease(f"j{epoch}-1-0")
    devices = (LeasedDevice(device="GPU-1", epoch=epoch),)
    held = msgspec.structs.replace(lease, lease=msgspec.structs.replace(lease.lease, devices=devices))
    return [before, put_device(epoch), held]


def test_a_kill_in_the_middle_of_grants_leaves_each_whole_and_no_epoch_behind(tmp_path: Path) -> None:
    told = 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", GRANTS, str(tmp_path), str(told)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(20)]
        child.kill()
        told = int([*lines, *child.stdout.readlines()][-1])
        child.wait()
        opened = Ledger(tmp_path)
        contents = opened.load()
        opened.close()
        ((_, _, epoch, _),) = contents.devices
        ((lease, _, _, _),) = contents.leases
        assert epoch >= told, "a grant that was told is lost"
        assert [leased.epoch for leased in lease.devices] == [epoch], "half a grant was written"
        told = epoch


def test_a_scheduler_of_an_older_term_is_fenced(tmp_path: Path) -> None:
    old = Ledger(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:  # as on a file system without locks
        connection.execute("UPDATE meta SET value = value + 1")
    connection.close()
    with pytest.raises(Conflict, match="another scheduler took the ledger over"):
        old.write([put_job(1)]).result()
    old.close()


def test_a_ledger_of_the_first_format_is_taken_over(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    first.write([put_job(1), put_device(7)]).result()
    first.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("ALTER TABLE jobs DROP COLUMN rounds_waited")
        connection.execute("DROP TABLE cordons")
        connection.execute("DROP TABLE runs")
        connection.execute("DROP TABLE profiles")
        drop_moves(connection)
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    again = Ledger(tmp_path)
    cordon = Cordon(kind=CordonKind.NODE, name="a", by="ann", at=1.0)
    again.write([events.PersistWaits(rounds=(("j1", 5),))])
    again.write([events.PersistCordon(kind=CordonKind.NODE, name="a", cordon=cordon)]).result()
    contents = again.load()
    again.close()
    assert contents.jobs[0][2].rounds_waited == 5
    assert contents.cordons == [cordon]
    assert contents.devices[0][2] == 7


def test_a_ledger_without_profiles_is_taken_over(tmp_path: Path) -> None:
    second = Ledger(tmp_path)
    second.write([put_job(1)]).result()
    second.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DROP TABLE runs")
        connection.execute("DROP TABLE profiles")
        drop_moves(connection)
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    again = Ledger(tmp_path)
    run = ObservedRun(application="nw", user="ada", seconds=1.0)
    again.write([events.PersistRun(run=run)]).result()
    contents = again.load()
    again.close()
    assert (contents.runs, len(contents.jobs)) == ([run], 1)


def drop_volumes(connection: sqlite3.Connection) -> None:
    """Make a ledger of the fourth format, or an older one."""
    connection.execute("DROP TABLE tasks")
    connection.execute("DROP TABLE volumes")


def drop_moves(connection: sqlite3.Connection) -> None:
    """Make a ledger of the third format, or an older one."""
    drop_volumes(connection)
    connection.execute("DROP TABLE moves")
    connection.execute("DROP TABLE chassis")


def put_move(number: int = 1, state: MoveState = MoveState.DETACHING, *, device: str = "GPU-1") -> events.PersistMove:
    function = Function(address="0000:17:00.0", vendor=0x10DE, device=0x2330, pci_class=0x030200)
    move = StoredMove(
        id=f"m{number}",
        device=device,
        from_node="a",
        to_node="b",
        by="ann",
        at=1.0,
        state=state,
        functions=(function,),
        epoch=8,
    )
    return events.PersistMove(move=move)


def test_a_ledger_without_moves_is_taken_over(tmp_path: Path) -> None:
    third = Ledger(tmp_path)
    third.write([put_job(1)]).result()
    third.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        drop_moves(connection)
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    again = Ledger(tmp_path)
    again.write([put_move()]).result()
    contents = again.load()
    again.close()
    assert (contents.moves, contents.next_move, len(contents.jobs)) == ([put_move().move], 2, 1)


def put_volume(
    number: int = 1, state: VolumeState = VolumeState.CREATING, *, name: str = "data"
) -> events.PersistVolume:
    part = VolumePart(volume=name, size_bytes=5, drives=("NVME-1",))
    volume = StoredVolume(
        id=f"v{number}",
        name=name,
        user="ada",
        size_bytes=5,
        parts=(part,),
        nodes=("a",),
        state=state,
        at=1.0,
        done=(False,),
    )
    return events.PersistVolume(volume=volume)


def test_a_ledger_without_volumes_is_taken_over(tmp_path: Path) -> None:
    fourth = Ledger(tmp_path)
    fourth.write([put_job(1)]).result()
    fourth.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        drop_volumes(connection)
        connection.execute("PRAGMA user_version = 4")
    connection.close()
    again = Ledger(tmp_path)
    again.write([put_volume()]).result()
    contents = again.load()
    again.close()
    assert (contents.volumes, contents.next_volume, len(contents.jobs)) == ([put_volume().volume], 2, 1)


def test_volumes_are_loaded_until_they_are_gone(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_volume(1), put_volume(1, VolumeState.DELETED), put_volume(2, VolumeState.AVAILABLE)])
    opened.write([put_volume(3, name="other")]).result()
    contents = opened.load()
    assert [(volume.id, volume.name, volume.state) for volume in contents.volumes] == [
        ("v2", "data", "available"),
        ("v3", "other", "creating"),
    ]
    assert contents.next_volume == 4
    opened.close()


def test_moves_that_hold_their_devices_are_loaded_and_others_listed(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_move(1), put_move(1, MoveState.STUCK)])
    opened.write([put_move(2, device="GPU-2"), put_move(2, MoveState.DONE, device="GPU-2")])
    opened.write([put_move(3, device="GPU-2"), put_move(3, MoveState.ATTACHING, device="GPU-2")]).result()
    contents = opened.load()
    assert [(move.id, move.state) for move in contents.moves] == [("m1", "stuck"), ("m3", "attaching")]
    assert contents.next_move == 4
    assert [move.id for move in opened.ended_moves().result()] == ["m2"]
    found = opened.move("m2").result()
    assert found is not None
    assert found.state is MoveState.DONE
    assert opened.move("j2").result() is None
    opened.close()


def test_no_device_has_two_live_moves(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_move(1)]).result()
    with pytest.raises(Exception, match="UNIQUE"):
        opened.write([put_move(2)]).result()
    opened.close()


def test_the_term_of_a_chassis_never_goes_back(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([events.PersistChassis(name="falcon", term=3)])
    opened.write([events.PersistChassis(name="falcon", term=2)]).result()
    assert opened.load().chassis == [("falcon", 3)]
    opened.close()


def test_cordons_end_and_nodes_are_forgotten(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    cordon = Cordon(kind=CordonKind.DEVICE, name="GPU-1", by="ann", at=1.0)
    opened.write([events.PersistNode(node=node("a"), seen_at=1.0), put_device(7)])
    opened.write([events.PersistCordon(kind=cordon.kind, name=cordon.name, cordon=cordon)])
    opened.write([events.PersistCordon(kind=cordon.kind, name=cordon.name, cordon=None)])
    opened.write(
        [events.ForgetNode(name="a"), events.PersistDevice(id="GPU-1", node="a", epoch=7, device=b"")]
    ).result()
    contents = opened.load()
    opened.close()
    assert (contents.cordons, contents.nodes) == ([], [])
    assert contents.devices == [("GPU-1", "a", 7, None)]


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_job(1)]).result()
    with pytest.raises(Exception, match="UNIQUE"):
        opened.write([put_device(9), put_job(1)]).result()
    opened.close()
    again = Ledger(tmp_path)
    assert again.load().devices == []
    again.close()


def test_a_ledger_whose_jobs_have_their_tasks_in_their_rows_is_taken_over(tmp_path: Path) -> None:
    """One that the version before has written: jobs that wait, are prepared, run, finish and have ended."""
    fifth = sqlite3.connect(tmp_path / "ledger.db")
    fifth.executescript((Path(__file__).parent / "ledgers" / "format-5.sql").read_text())
    fifth.close()
    opened = Ledger(tmp_path)
    contents = opened.load()
    ended = opened.job("j2").result()
    opened.close()
    found = {job.id: (state, [run.task for run in progress.runs]) for job, state, progress in contents.jobs}
    assert found == {
        "j1": (JobState.RUNNING, ["main.0", "main.1"]),
        "j3": (JobState.FINISHING, [f"main.{number}" for number in range(12)]),
        "j4": (JobState.PREPARING, ["main.0"]),
        "j5": (JobState.QUEUED, []),
    }
    runs = {job.id: progress.runs for job, _, progress in contents.jobs}
    assert [(run.program, run.client, run.leases) for run in runs["j1"]] == [
        (Program.EXITED, ClientSide.PREPARED, ("j1-1-0",)),
        (Program.RUNNING, ClientSide.PREPARED, ("j1-1-1",)),
    ]
    assert ended is not None
    assert [(task.task, task.exit_code) for task in ended.tasks] == [("main.0", 3)]
    again = Ledger(tmp_path)
    assert again.load().jobs == contents.jobs
    again.close()
    # What it wrote fits together.
    cluster = Cluster(node("a", 2, cpu_milli=8000), node("b", 1, cpu_milli=8000), node("c", cpu_milli=8000))
    cluster.machine.restore(
        jobs=contents.jobs,
        leases=contents.leases,
        devices=contents.devices,
        nodes=contents.nodes,
        now=cluster.now,
        wall=cluster.wall,
    )
    cluster.machine.check_invariants()


def put_tasks(job_id: str, **tasks: str) -> events.PersistTasks:
    """Tasks, by the last word of their names, each with the reason that is kept of it; an empty one is no more."""
    rows = []
    for name, reason in tasks.items():
        run = TaskRun(
            placement=TaskPlacement(task=f"main.{name[1:]}", node="a"), group=0, requests=Requests(), reason=reason
        )
        rows.append((run.task, msgspec.json.encode(run) if reason else b""))
    return events.PersistTasks(job_id=job_id, tasks=tuple(rows))


def reasons(opened: Ledger) -> list[list[str]]:
    return [[run.reason for run in progress.runs] for _, _, progress in opened.load().jobs]


def test_tasks_are_written_one_by_one_and_read_in_the_order_of_their_job(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([put_tasks("j1", t10="x", t9="y", t0="z"), put_job(1), put_job(2)])
    opened.write([put_tasks("j1", t9="changed")]).result()
    assert reasons(opened) == [["z", "changed", "x"], []]
    opened.write([put_tasks("j1", t0="")]).result()
    opened.close()
    again = Ledger(tmp_path)
    assert reasons(again) == [["changed", "x"], []]
    again.close()


def test_a_job_that_ends_takes_its_tasks_into_its_own_row(tmp_path: Path) -> None:
    """Also those that the same commit changes before, in whatever order the two are told."""
    opened = Ledger(tmp_path)
    opened.write([put_job(1), put_tasks("j1", t0="x", t1="y")]).result()
    run = TaskRun(placement=TaskPlacement(task="main.0", node="a"), group=0, requests=Requests(), reason="over")
    end = msgspec.structs.replace(put_job(1, JobState.FAILED, new=False), progress=StoredProgress(runs=[run]))
    opened.write([put_tasks("j1", t1="changed"), end]).result()
    assert opened.load().jobs == []
    ended = opened.job("j1").result()
    assert ended is not None
    assert [task.reason for task in ended.tasks] == ["over"]
    opened.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("SELECT * FROM tasks").fetchall() == []
    connection.close()


def test_a_job_is_written_once_for_each_commit_as_it_is_then() -> None:
    """One with a thousand tasks has as many events, and each of them changes it."""
    first = put_job(1)
    then = events.PersistJob(job=first.job, state=JobState.RUNNING, progress=first.progress, new=False)
    other = put_device(9)
    first.progress.reason = "something else by now"
    ((kept, progress),), _, others = apart([first, other, then])
    assert (kept.state, kept.new, others) == (JobState.RUNNING, True, [other])
    assert msgspec.json.decode(progress, type=StoredProgress).reason == "something else by now"


def test_only_so_many_ended_jobs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEEP_ENDED", 10)
    opened = Ledger(tmp_path)
    opened.write([put_job(number) for number in range(1, 31)])
    opened.write([put_job(number, JobState.SUCCEEDED, new=False) for number in range(1, 26)]).result()
    opened.close()
    again = Ledger(tmp_path)
    assert len(again.load().jobs) == 5
    assert [status.job.id for status in again.ended_jobs(user=None).result()] == [f"j{n}" for n in range(16, 26)]
    again.close()


def test_job_ids_are_numbers() -> None:
    assert job_number(job_id_of(42)) == 42
    assert {job_number(text) for text in ("", "j", "x1", "j-1", "j1.5", "j" + "9" * 40, "j१")} == {-1}


@pytest.mark.slow
def test_a_hundred_thousand_jobs_and_leases_are_taken_over_in_seconds(tmp_path: Path) -> None:
    many = 100_000
    opened = Ledger(tmp_path)
    for start in range(1, many + 1, 10_000):
        batch: list[events.Persist] = []
        for number in range(start, start + 10_000):
            lease = msgspec.structs.replace(
                put_lease(f"j{number}-1-0").lease, devices=(LeasedDevice(device=f"GPU-{number}", epoch=1),)
            )
            batch += [
                put_job(number),
                events.PersistLease(lease=lease, state=LeaseState.RELEASING, endpoint="", prepared=True),
                events.PersistDevice(id=f"GPU-{number}", node="a", epoch=1, device=to_json(gpu(str(number)))),
            ]
        opened.write(batch).result()
    opened.close()
    began = time.monotonic()
    opened = Ledger(tmp_path)
    contents = opened.load()
    machine = ClusterMachine(term=opened.term, lease_ttl_s=15.0, new_secret=lambda: "")
    machine.restore(
        jobs=contents.jobs,
        leases=contents.leases,
        devices=contents.devices,
        nodes=contents.nodes,
        now=0.0,
        wall=0.0,
    )
    took_s = time.monotonic() - began
    opened.close()
    assert len(machine.queue) == len(machine.leases) == many
    print(f"restart with {many} jobs and leases: {took_s:.2f} s")
    assert took_s < 60  # the figure belongs to the benchmark; this is only against a loop within a loop
