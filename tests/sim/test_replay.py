"""Replaying traces: what is read, what is refused, and what must hold of every replay."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from farbus.errors import InvalidInput
from farbus.model.decision import NodeView
from farbus.model.job import Goal, Job, Requests, TaskGroup
from farbus.model.node import Resources
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy, Profile
from farbus.scheduler.costs.named import POLICIES, policy_named
from farbus.sim import replays
from farbus.sim.measures import offered_load
from farbus.sim.replay import Network, Replay
from farbus.sim.replays import Options, replay
from farbus.sim.traces import Shares, Submission, Trace, compress, read_openb, read_philly, shrink
from tests.scheduler.worlds import GIB, gpu, node

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,16384,2,T4\nb,8000,16384,0,\nc,8000,16384,2,T4\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,1000,1024,1,1000,,LS,Running,0,100,0
p1,1000,1024,1,500,,LS,Running,10,110,20
p2,1000,1024,0,0,,LS,Running,20,60,
"""


def files(tmp_path: Path, *, nodes: str = NODES, pods: str = PODS) -> tuple[Path, Path]:
    paths = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    for path, text in zip(paths, (nodes, pods), strict=True):
        path.write_text(text)
    return paths


def test_pods_become_jobs_that_run_as_long_as_they_ran(tmp_path: Path) -> None:
    trace = read_openb(*files(tmp_path))
    assert [view.name for view in trace.nodes] == ["a", "b", "c"]
    assert [view.node for view in trace.devices] == ["a", "a", "c", "c"]
    told = [(each.job.id, each.at_s, each.runs_s, each.gpus, each.gpus_used) for each in trace.submissions]
    assert told == [("p0", 0, 100, 1, 1.0), ("p1", 10, 90, 1, 0.5), ("p2", 20, 40, 0, 0.0)]


def test_jobs_that_share_a_gpu_can_be_left_out(tmp_path: Path) -> None:
    trace = read_openb(*files(tmp_path), shares=Shares.SKIP)
    assert [each.job.id for each in trace.submissions] == ["p0", "p2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("p1,1000", "p1,-5"), r"pods.csv:3: cpu_milli '-5' is not a whole number"),
        (("p1,1000", "p1,1e3"), r"pods.csv:3: cpu_milli '1e3' is not a whole number"),
        (("10,110,20", "10,nan,20"), r"pods.csv:3: deletion_time 'nan' is not a number of seconds"),
        (("10,110,20", "10,15,20"), r"pods.csv:3: deletion_time '15' lies before the pod began"),
        (("p1,", ","), r"pods.csv:3: name '' is empty"),
        (("p1,", "p0,"), r"pods.csv: has a name twice"),
        (("num_gpu", "gpus"), r"pods.csv: its first line names no 'num_gpu'"),
    ],
)
def test_a_broken_trace_is_refused_with_line_and_field(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_openb(*files(tmp_path, pods=PODS.replace(*change, 1)))


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.csv: can't be read"):
        read_openb(tmp_path / "nowhere.csv", tmp_path / "nowhere.csv")


def test_large_philly_jobs_are_gangs_with_a_goal(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,num_gpu,submit_time,duration,expect_time_list,model_name\n7,16,5,100,150,vgg\n")
    (job,) = read_philly(path, machines=2).submissions
    (group,) = job.job.groups
    assert (group.count, group.requests.gpus, job.gpus) == (2, 8, 16)
    assert job.profile is not None
    assert (job.profile.goal_s, job.profile.expected_s) == (150, 100)
    assert job.job.goal == Goal(deadline_s=150)


def test_shrinking_keeps_some_of_each_shape(tmp_path: Path) -> None:
    trace = shrink(read_openb(*files(tmp_path)), 2)
    assert [view.name for view in trace.nodes] == ["a", "b"]
    assert {view.node for view in trace.devices} == {"a"}


def test_compressing_moves_arrivals_and_nothing_else(tmp_path: Path) -> None:
    submissions = read_openb(*files(tmp_path)).submissions
    squeezed = compress(submissions, 10)
    assert [each.at_s for each in squeezed] == [0, 1, 2]
    assert [each.runs_s for each in squeezed] == [each.runs_s for each in submissions]
    with pytest.raises(InvalidInput, match="--compress: 0 is not a number above 0"):
        compress(submissions, 0)


# The replay itself.


def submission(name: str, at_s: float, runs_s: float, *, gpus: int = 1, cpus: int = 1, count: int = 1) -> Submission:
    requests = Requests(cpu_milli=1000 * cpus, memory_bytes=GIB, gpus=gpus)
    group = TaskGroup(name="main", command=("true",), count=count, requests=requests)
    job = Job(id=name, name=name, user="u", groups=(group,), submitted_at=at_s)
    return Submission(job, at_s, runs_s, (cpus, gpus, count), gpus * count, float(gpus * count))


def world(*submissions: Submission, nodes: tuple[NodeView, ...] = ()) -> Trace:
    there = nodes or (node("a", cpus=4), node("b", cpus=4))
    return Trace(there, (gpu("g0", "a"), gpu("g1", "a")), submissions)


def test_who_finds_no_gpu_waits_for_one_to_be_free() -> None:
    jobs = [submission(f"j{number}", 0.0, 10.0) for number in range(3)]
    simulation = Replay(world(*jobs), policy_named("default"))
    outcome = simulation.run()
    assert sorted((run.started, end) for run, end in simulation.ended) == [(0, 10), (0, 10), (10, 20)]
    assert (outcome.placed, outcome.makespan_s, outcome.wait_p99_s) == (3, 20, 10)


def test_the_same_kind_is_served_in_the_order_of_arrival() -> None:
    jobs = [submission(f"j{number}", number / 10, 10.0, gpus=2) for number in range(5)]
    simulation = Replay(world(*jobs), policy_named("default"))
    simulation.run()
    assert [run.submission.job.id for run, _ in simulation.ended] == ["j0", "j1", "j2", "j3", "j4"]


def test_more_jobs_than_a_round_sees_at_first_are_placed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.sim.replay.FIRST_OFFER", 2)
    jobs = [submission(f"j{number}", 1.0, 10.0, gpus=0) for number in range(8)]
    outcome = Replay(world(*jobs), policy_named("default")).run()
    assert (outcome.wait_p99_s, outcome.makespan_s) == (0, 10)


def test_the_number_of_jobs_that_a_round_sees_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # One after the other is placed at once, more often than twice the first offer has binary digits.
    monkeypatch.setattr("farbus.sim.replay.MAX_OFFER", 100)
    jobs = [submission(f"j{number}", float(number), 0.5, gpus=0) for number in range(80)]
    simulation = Replay(world(*jobs), policy_named("default"))
    assert simulation.run().placed == 80
    assert all(kind.offer <= 100 for kind in simulation.kinds.values())


def test_what_no_state_of_the_cluster_can_serve_is_counted_and_stops_nobody() -> None:
    jobs = [submission("huge", 0.0, 5.0, gpus=3), submission("small", 1.0, 5.0)]
    outcome = Replay(world(*jobs), policy_named("default")).run()
    assert (outcome.placed, outcome.never_placed) == (1, 1)


def test_a_server_only_flow_uses_no_remote_device() -> None:
    # Node a has GPUs and one processor: the second job would have to be lent one.
    jobs = [submission("j0", 0.0, 10.0), submission("j1", 0.0, 10.0)]
    nodes = (node("a", cpus=1), node("b", cpus=4))
    remote = Replay(world(*jobs, nodes=nodes), policy_named("default")).run()
    servers = Replay(world(*jobs, nodes=nodes), policy_named("firmament")).run()
    assert (remote.makespan_s, remote.remote) == (10, 0.5)
    assert (servers.makespan_s, servers.remote) == (20, 0)


def test_remote_jobs_are_slowed_by_distance_and_by_each_other() -> None:
    # Both run on b with a GPU of a: the link of each is full of the other's traffic.
    jobs = [submission("j0", 0.0, 10.0), submission("j1", 5.0, 10.0)]
    nodes = (node("a", cpus=1, free_cpus=0), node("b", cpus=4))
    kind = jobs[0].kind
    network = Network(traffic={kind: 1.0}, sensitivity={kind: 1.0})
    simulation = Replay(world(*jobs, nodes=nodes), policy_named("default"), network=network)
    simulation.run()
    # Alone until 5, at half speed together until 15, the other alone from there.
    assert [(run.submission.job.id, run.started, end) for run, end in simulation.ended] == [
        ("j0", 0.0, 15.0),
        ("j1", 5.0, 20.0),
    ]
    far = Replay(world(jobs[0], nodes=nodes), policy_named("default"), network=Network(distance={kind: 0.5})).run()
    assert (far.makespan_s, far.slowed) == (15, 1)


def test_rounds_keep_their_distance_in_time() -> None:
    jobs = [submission(f"j{number}", number / 10, 1.0) for number in range(9)]
    outcome = Replay(world(*jobs), policy_named("default"), every_s=10.0).run()
    assert outcome.makespan_s >= 11
    assert outcome.wait_p50_s > 9


def test_a_patient_policy_looks_again_as_time_goes_by() -> None:
    # The only GPU is beside processors that are taken, and a remote one would miss the goal: wait three rounds.
    profile = Profile(goal_s=10.0, expected_s=10.0, remote_s=20.0)
    policy = DRMaestroPolicy(profiles={"j": profile}, postpone_rounds=3)
    taken = {"a": (Resources(cpu_milli=4000), 1000.0)}
    simulation = Replay(world(submission("j", 0.0, 10.0)), policy, every_s=5.0, patient=True, busy=taken)
    simulation.run()
    assert [run.started for run, _ in simulation.ended] == [15.0]
    with pytest.raises(ValueError, match="distance of rounds"):
        Replay(world(), policy, patient=True)


def test_of_jobs_of_one_kind_the_earliest_deadline_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # One node has room for one job at a time; the last to come is due first.
    monkeypatch.setattr("farbus.sim.replay.FIRST_OFFER", 1)
    jobs = []
    for number, deadline_s in enumerate((100.0, 80.0, 10.0)):
        each = submission(f"j{number}", float(number), 10.0, gpus=0, cpus=4)
        made = msgspec.structs.replace(each.job, goal=Goal(deadline_s=deadline_s))
        jobs.append(dataclasses.replace(each, job=made))
    orders = {}
    for name in ("default", "workload-aware"):
        simulation = Replay(world(*jobs, nodes=(node("a", cpus=4),)), policy_named(name), by_deadline=name != "default")
        simulation.run()
        orders[name] = [run.submission.job.id for run, _ in simulation.ended]
    assert orders == {"default": ["j0", "j1", "j2"], "workload-aware": ["j0", "j2", "j1"]}


def test_what_is_busy_from_the_start_is_free_later() -> None:
    taken = {"a": (Resources(cpu_milli=4000), 50.0), "b": (Resources(cpu_milli=4000), 60.0)}
    simulation = Replay(world(submission("j", 0.0, 10.0)), policy_named("firmament"), busy=taken)
    assert simulation.run().makespan_s == 60


def test_averages_are_those_of_the_window() -> None:
    # One of two GPUs for the first half of the window.
    jobs = [submission("j0", 0.0, 10.0), submission("end", 20.0, 10.0, gpus=0)]
    outcome = Replay(world(*jobs), policy_named("default")).run()
    assert outcome.gpu_allocation == pytest.approx(0.25)
    assert offered_load(world(*jobs)) == pytest.approx(0.25)


def test_fragments_are_free_gpus_that_jobs_could_not_use_there() -> None:
    # Jobs want two processors and a GPU; a has one processor left beside two GPUs.
    taken = {"a": (Resources(cpu_milli=3000), 100.0)}
    jobs = [submission("j0", 0.0, 5.0, gpus=0), submission("j1", 10.0, 5.0, cpus=2)]
    outcome = Replay(world(*jobs), policy_named("default"), busy=taken).run()
    assert outcome.fragmentation == pytest.approx(1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_places_all_and_gives_all_back(policy: str) -> None:
    jobs = [
        submission(f"j{number:02}", number / 3, 4.0 + number % 5, gpus=number % 3, cpus=1 + number % 2, count=1)
        for number in range(24)
    ]
    trace = world(*jobs)
    simulation = Replay(trace, policy_named(policy), certify=True)
    outcome = simulation.run()
    assert (outcome.placed, outcome.never_placed) == (24, 0)
    assert not simulation.runs
    again = Replay(trace, policy_named(policy))
    assert [(run.submission.job.id, end) for run, end in simulation.ended] == [
        (run.submission.job.id, end) for run, end in (again.run(), again.ended)[1]
    ]


def test_a_report_says_what_sharing_was_made_of(tmp_path: Path) -> None:
    trace = read_openb(*files(tmp_path))
    report = replay("openb", trace, replays.names("all"), Options())
    assert [row.policy for row in report.rows] == list(POLICIES)
    assert (report.sharing_jobs, report.jobs, report.gpus) == (1, 3, 4)
    # p1 used half a GPU for 90 s, beside the 100 s of p0.
    assert report.gpu_seconds_added == pytest.approx(45 / 145)
    with pytest.raises(InvalidInput, match="--policy: there is none called 'best'"):
        replays.names("best")


DATA = Path(os.environ.get("FARBUS_TRACES", "shared/data"))
"""Where the traces are, which the repository does not carry."""


@pytest.mark.skipif(not (DATA / "openb_pod_list_default.csv").exists(), reason="needs the openb trace (FARBUS_TRACES)")
def test_the_trace_at_hand_is_read_and_begins_to_run() -> None:
    trace = read_openb(DATA / "openb_node_list_gpu_node.csv", DATA / "openb_pod_list_default.csv")
    assert (len(trace.nodes), len(trace.devices), len(trace.submissions)) == (1213, 6212, 8152)
    report = replay("openb", trace, ("default",), Options(compress=100, shrink=40, limit=60))
    assert report.rows[0].outcome.placed == 60


@pytest.mark.skipif(not (DATA / "trace_job_Philly_SLO.csv").exists(), reason="needs the Philly trace (FARBUS_TRACES)")
def test_the_philly_trace_is_read() -> None:
    trace = read_philly(DATA / "trace_job_Philly_SLO.csv", machines=60)
    assert len(trace.submissions) == 30_940
