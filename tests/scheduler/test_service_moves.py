"""Moves of devices over real connections: who may ask, what is streamed, listed and audited."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.api.v1 import session_pb2
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted
from farbus.model.device import Route
from farbus.model.fabric import HISTORY_LENGTH
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from farbus.model.states import DeviceState, JobState
from farbus.scheduler import events
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import Fabric, gpu, job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(120)

MOVED = "GPU-a-0"


class Two:
    """Agents of nodes a, which has a GPU and serves the chassis, and b, with clients of an operator and a user."""

    def __init__(self, site: Site, a: LightAgent, b: LightAgent, operator: ClusterClient, user: ClusterClient) -> None:
        self.site, self.a, self.b, self.operator, self.user = site, a, b, operator, user

    async def move(self, device: str = MOVED, to: str = "b", **more: object) -> list[MoveStatus]:
        request = MoveRequest(device=device, node=to, **more)  # type: ignore[arg-type]
        return [status async for status in self.operator.move_device(request)]


def light_agents() -> tuple[LightAgent, LightAgent]:
    a, b = LightAgent(node("a", 1)), LightAgent(node("b"))
    devices = {MOVED: gpu("a-0"), "GPU-spare": gpu("spare")}
    fabric = Fabric(devices, {MOVED: "a", "GPU-spare": ""})
    a.state.fabric = b.state.fabric = fabric
    a.state.chassis = (fabric.name,)
    return a, b


async def until_known(client: ClusterClient, device: str = "GPU-spare") -> None:
    """Wait until the scheduler has heard what is in the chassis."""
    while not any(status.device.id == device for status in await client.list_devices()):
        pass


@contextlib.asynccontextmanager
async def connected(site: Site, a: LightAgent, b: LightAgent) -> AsyncIterator[Two]:
    async with (
        site.agent(a),
        site.agent(b),
        site.client("ann", Role.OPERATOR) as operator,
        site.client() as user,
    ):
        await a.read_chassis(("a", "b"))
        await until_known(operator)
        yield Two(site, a, b, operator, user)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    site = Site(tmp_path)
    async with site.scheduler(), connected(site, *light_agents()) as found:
        yield found


async def test_a_move_is_streamed_until_it_is_done(two: Two) -> None:
    statuses = await two.move()
    assert [status.state for status in statuses][-1] is MoveState.DONE
    assert {status.id for status in statuses} == {"m1"}
    last = statuses[-1]
    assert (last.device, last.from_node, last.to_node, last.chassis, last.port) == (MOVED, "a", "b", "falcon", "port-b")
    assert (last.by, last.path, last.error) == ("ann", "/dev/GPU-a-0", "")
    assert last.at > 1_600_000_000
    await until_known(two.operator, MOVED)
    found = {status.device.id: status for status in await two.user.list_devices()}
    assert found[MOVED].node == "b"
    assert (found["GPU-spare"].node, found["GPU-spare"].state) == ("", DeviceState.UNASSIGNED)


async def test_a_job_that_waits_for_the_device_gets_it_where_it_is_then(two: Two) -> None:
    await two.move()
    job_id, _ = await two.user.submit(job("", gpus=1, on="b"))
    async for status in two.user.watch_job(job_id):
        if status.state is JobState.RUNNING:
            break
    (lease,) = await two.user.list_leases()
    # One for the move, one for the grant.
    assert [(each.device, each.epoch) for each in lease.lease.devices] == [(MOVED, 2)]


async def test_a_job_has_a_device_moved_to_it(two: Two) -> None:
    wanted = job("", gpus=1, on="b", routes=(Route.LOCAL, Route.RECOMPOSED))
    job_id, _ = await two.user.submit(wanted)
    async for status in two.user.watch_job(job_id):
        if status.state is JobState.RUNNING:
            break
    (move,) = await two.operator.list_moves(include_ended=True)
    assert (move.by, move.to_node, move.state) == ("scheduler", "b", MoveState.DONE)
    (lease,) = await two.user.list_leases()
    assert (lease.lease.device_node, lease.lease.route) == ("b", Route.LOCAL)


async def test_recomposition_is_refused_where_no_chassis_is_served(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.scheduler(), site.agent(LightAgent(node("a", 1))), site.client() as user:
        with pytest.raises(InvalidInput, match="recomposed: no agent serves a chassis"):
            await user.submit(job("", gpus=1, routes=(Route.RECOMPOSED,)))


async def test_only_operators_move_devices_and_see_moves(two: Two) -> None:
    with pytest.raises(NotPermitted):
        async for _ in two.user.move_device(MoveRequest(device=MOVED, node="b")):
            pass
    with pytest.raises(NotPermitted):
        await two.user.list_moves()
    with pytest.raises(NotPermitted):
        await two.user.list_chassis()


async def test_a_move_is_audited(two: Two) -> None:
    await two.move()
    records = [record async for record in two.operator.read_audit()]
    moves = [record for record in records if record.method.endswith("MoveDevice")]
    assert {(record.who, record.target) for record in moves} == {("ann", MOVED)}
    assert moves[-1].outcome == "ok"


async def test_what_is_refused_is_an_error_and_no_entry(two: Two) -> None:
    with pytest.raises(Conflict, match="is on node a already"):
        await two.move(to="a")
    assert await two.operator.list_moves(include_ended=True) == ()


async def test_a_device_at_no_node_is_not_cordoned_and_that_is_why(two: Two) -> None:
    with pytest.raises(Conflict, match="device GPU-spare is at no node, and only those of nodes are cordoned"):
        await two.operator.cordon("GPU-spare", reason="")


async def test_the_scheduler_moves_nothing_without_itself(two: Two) -> None:
    with pytest.raises(InvalidInput, match="--local"):
        async for _ in two.operator.move_device(MoveRequest(device=MOVED, node="b"), local=True):
            pass


async def test_who_leaves_the_stream_ends_nothing(two: Two) -> None:
    two.a.holds_back = (events.DetachDevice,)
    stream = two.operator.move_device(MoveRequest(device=MOVED, node="b"))
    first = await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await two.a.until(events.DetachDevice, "")
    (listed,) = await two.operator.list_moves()
    assert (listed.id, listed.state) == (first.id, MoveState.DETACHING)
    (command,) = [each for each in two.a.commands if isinstance(each, events.DetachDevice)]
    outcome = two.a.state.do(command)
    assert outcome is not None
    await two.a.answer(outcome)
    await two.b.until(events.AttachDevice, "")
    while await two.operator.list_moves():
        pass
    (ended,) = await two.operator.list_moves(include_ended=True)
    assert (ended.id, ended.state, ended.path) == (first.id, MoveState.DONE, "/dev/GPU-a-0")


async def test_a_node_that_can_not_have_the_device_is_asked_before_the_other_gives_it(two: Two) -> None:
    two.b.in_the_way = ("bridge 3 has room for 2 MiB at most",)
    with pytest.raises(Conflict, match="GPU-a-0 is not moved: node b: bridge 3 has room for 2 MiB at most"):
        await two.move()
    assert [type(each) for each in (*two.a.rehearsals, *two.b.rehearsals)] == [events.DetachDevice, events.AttachDevice]
    assert not any(isinstance(each, events.DetachDevice) for each in two.a.commands)
    assert await two.operator.list_moves(include_ended=True) == ()


async def test_who_holds_the_device_may_go_until_it_is_moved(two: Two) -> None:
    two.a.in_the_way = ("program 17 has it open",)
    assert (await two.move())[-1].state is MoveState.DONE


async def test_progress_reaches_who_watches(two: Two) -> None:
    two.a.holds_back = (events.DetachDevice,)
    stream = two.operator.move_device(MoveRequest(device=MOVED, node="b"))
    await anext(stream)
    progress = session_pb2.MoveProgress(
        move_id="m1", device=MOVED, step=1, steps=5, says="wait for\x1b holders", expected_s=9.0
    )
    await two.a.send(move_progress=progress)
    status = await anext(stream)
    assert (status.step, status.steps, status.says) == (1, 5, "wait for  holders")
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_dry_run_is_one_plan_of_both_nodes(two: Two) -> None:
    last = (await two.move(dry_run=True))[-1]
    assert (last.state, last.plan, last.expected_s) == (
        MoveState.DONE,
        ("a: detach GPU-a-0", "b: attach GPU-a-0"),
        7.0,
    )
    assert await two.operator.list_moves(include_ended=True) == ()


async def test_chassis_are_listed_with_who_serves_them(two: Two) -> None:
    (chassis,) = await two.operator.list_chassis()
    assert (chassis.name, chassis.served_by, chassis.term) == ("falcon", "a", 1)
    assert chassis.view is not None
    assert [device.id for device in chassis.view.devices] == [MOVED, "GPU-spare"]


@pytest.mark.parametrize(
    "view",
    [
        b"nonsense",
        b'{"chassis": "", "ports": [], "devices": []}',
        b'{"chassis": "falcon", "ports": [{"id": "1"}, {"id": "1"}], "devices": []}',
        b'{"chassis": "falcon", "ports": [], "devices": [{"id": "S1", "handle": "1", "kind": "nvme"}, '
        b'{"id": "s1", "handle": "2", "kind": "nvme"}]}',
    ],
)
async def test_the_session_of_who_talks_nonsense_of_a_chassis_ends(two: Two, view: bytes) -> None:
    await two.a.send(chassis_changed=session_pb2.ChassisChanged(term=1, view=view))
    while (await two.operator.list_chassis())[0].served_by:
        pass


@pytest.mark.parametrize(
    "history",
    [
        '{"times": {"assign": [1e300]}}',
        '{"times": {"assign": [-1]}}',
        f'{{"times": {{"assign": [1{", 1" * HISTORY_LENGTH}]}}}}',
        '{"given_up": {"assign": 1e300}}',
        '{"given_up": {"assign": -1}}',
    ],
)
async def test_the_session_of_who_tells_impossible_times_of_a_chassis_ends(two: Two, history: str) -> None:
    view = b'{"chassis": "falcon", "ports": [], "devices": []}'
    await two.a.send(chassis_changed=session_pb2.ChassisChanged(term=1, view=view, history=history.encode()))
    while (await two.operator.list_chassis())[0].served_by:
        pass


async def test_a_chassis_that_can_not_be_read_is_listed_with_why_and_what_was_read_last(two: Two) -> None:
    view = b'{"chassis": "falcon", "ports": [{"id": "1"}], "devices": []}'
    await two.a.send(chassis_changed=session_pb2.ChassisChanged(term=1, view=view, trouble="chassis falcon: it is off"))
    while not (status := (await two.operator.list_chassis())[0]).trouble:
        pass
    assert status.view is not None
    assert (status.trouble, [port.id for port in status.view.ports]) == ("chassis falcon: it is off", ["1"])
    await two.a.send(chassis_changed=session_pb2.ChassisChanged(term=1, view=view))
    while (await two.operator.list_chassis())[0].trouble:
        pass


async def test_a_move_goes_on_over_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    site = Site(tmp_path)
    a, b = light_agents()
    a.holds_back = (events.DetachDevice,)
    async with site.scheduler(), site.agent(a), site.agent(b), site.client("ann", Role.OPERATOR) as operator:
        await a.read_chassis(("a", "b"))
        await until_known(operator)
        first = await anext(operator.move_device(MoveRequest(device=MOVED, node="b")))
        await a.until(events.DetachDevice, "")
    a.holds_back = ()
    async with site.scheduler(), site.client("ann", Role.OPERATOR) as operator:
        (listed,) = await operator.list_moves()
        assert (listed.id, listed.state) == (first.id, MoveState.DETACHING)
        assert listed.says.startswith("waits for node a, which can't be reached")
        async with site.agent(a), site.agent(b):
            while await operator.list_moves():
                pass
            (ended,) = await operator.list_moves(include_ended=True)
            assert ended.state is MoveState.DONE
            assert sum(isinstance(each, events.DetachDevice) for each in a.commands) == 2


async def test_a_move_is_called_off_and_who_watches_hears_why(two: Two) -> None:
    two.a.holds_back = (events.DetachDevice,)
    stream = two.operator.move_device(MoveRequest(device=MOVED, node="b"))
    first = await anext(stream)
    await two.a.until(events.DetachDevice, "")
    off = await two.operator.cancel_move(first.id)
    assert (off.state, off.says.split(";")[0]) == (MoveState.DETACHING, "called off by ann")
    # Once more changes nothing.
    assert (await two.operator.cancel_move(first.id)).id == first.id
    await two.a.until(events.CancelMove, "")
    assert [each for each in two.a.commands if isinstance(each, events.CancelMove)] == [
        events.CancelMove(move_id=first.id, by="ann")
    ]
    (command,) = [each for each in two.a.commands if isinstance(each, events.DetachDevice)]
    outcome = two.a.state.do(command)
    assert outcome is not None
    await two.a.answer(outcome)
    last = [status async for status in stream][-1]
    assert (last.state, last.error) == (MoveState.FAILED, "node a: called off by ann")
    with pytest.raises(Conflict, match=f"move {first.id} has ended: failed; farbus moves {first.id} says why"):
        await two.operator.cancel_move(first.id)


async def test_only_operators_call_moves_off_and_only_those_that_there_are(two: Two) -> None:
    with pytest.raises(NotPermitted):
        await two.user.cancel_move("m1")
    with pytest.raises(NotFound, match="there is no move m1; farbus moves lists them"):
        await two.operator.cancel_move("m1")
    with pytest.raises(InvalidInput, match="move: it is longer than 256 characters"):
        await two.operator.cancel_move("m" * 10_000)
