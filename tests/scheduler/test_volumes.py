"""Volumes: made, made larger, attached, detached and removed, with agents that do as they are told."""

from __future__ import annotations

import msgspec
import pytest

from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable, Unsatisfiable
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import StorageRequest
from farbus.model.move import MoveRequest
from farbus.model.states import DeviceState, JobState, VolumeState
from farbus.model.volume import StorageUse, VolumePart
from farbus.scheduler import events
from farbus.scheduler.decision_maker import decision_maker
from farbus.scheduler.move_requests import plan_move
from farbus.scheduler.steps import GROW_DEADLINE_S
from farbus.scheduler.volume_plans import check_resize
from tests.scheduler.scripted import GIB, Cluster, node, storing
from tests.scheduler.test_stored_jobs import stored


def cluster_of(*nodes: object) -> Cluster:
    cluster = Cluster(*(nodes or (storing("a", 2), storing("b", 1), node("c"))))  # type: ignore[arg-type]
    cluster.join()
    return cluster


def made(*nodes: object, **more: object) -> Cluster:
    """A cluster with a volume of 10 GiB; of the usual nodes b stores it."""
    if not nodes:
        more = {"node": "b", **more}
    cluster = cluster_of(*nodes)
    cluster.create(**more)  # type: ignore[arg-type]
    cluster.settle()
    return cluster


def taken(cluster: Cluster, device: str) -> int:
    return sum(share.size_bytes for share in cluster.machine.devices[device].shares.values())


def test_a_volume_is_made_and_takes_room_from_the_first_moment() -> None:
    cluster = cluster_of()
    cluster.create(bandwidth_bytes_per_s=GIB, node="b")
    status = cluster.volume()
    assert (status.state, status.user, status.size_bytes) == (VolumeState.CREATING, "ada", 10 * GIB)
    assert status.says == "node b is asked to make its part, 1 of 1"
    assert taken(cluster, "NVME-b-0") == 10 * GIB
    cluster.settle()
    status = cluster.volume()
    assert (status.state, status.nodes, status.says, status.error) == (VolumeState.AVAILABLE, ("b",), "", "")
    (view,) = [view for view in cluster.machine.snapshot(cluster.now).devices if view.device.id == "NVME-b-0"]
    assert [(share.size_bytes, share.bandwidth_bytes_per_s) for share in view.shares] == [(10 * GIB, GIB)]
    found = {each.device.id: each for each in cluster.machine.device_statuses()}
    assert (found["NVME-b-0"].state, found["NVME-b-0"].used_by) == (DeviceState.LEASED, "1 volume")
    assert found["VOL-data:0"].state is DeviceState.FREE


def test_a_stripe_is_of_one_node_where_one_has_the_drives() -> None:
    cluster = made(storing("a", 1), storing("b", 3), stripe=3)
    (part,) = cluster.volume().parts
    assert part.drives == ("NVME-b-0", "NVME-b-1", "NVME-b-2")
    # Whole extents.
    assert taken(cluster, "NVME-b-1") == 3_416 * 2**20
    assert part.size_bytes == 3 * 3_416 * 2**20


def test_a_stripe_that_no_node_holds_is_of_several_equal_parts() -> None:
    cluster = made(storing("a", 2), storing("b", 2), storing("c", 1), stripe=4)
    status = cluster.volume()
    assert status.nodes == ("a", "b")
    assert [(part.part, part.parts, part.size_bytes, len(part.drives)) for part in status.parts] == [
        (0, 2, 5 * GIB, 2),
        (1, 2, 5 * GIB, 2),
    ]
    assert taken(cluster, "NVME-a-0") == 10 * GIB // 4
    assert status.state is VolumeState.AVAILABLE


def test_a_volume_larger_than_any_node_goes_to_several() -> None:
    cluster = made(storing("a", 1), storing("b", 1), size=150 * GIB)
    assert cluster.volume().nodes == ("a", "b")


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"size": 500 * GIB}, Unsatisfiable, r"has no drives with so much free now; the most would be 300 GiB"),
        ({"size": 250 * GIB, "node": "a"}, Unsatisfiable, r"node a has no drives with so much .* be 200 GiB"),
        ({"stripe": 5}, Unsatisfiable, "on 5 drives: the cluster has no 5 drives for that; it has 3"),
        ({"bandwidth_bytes_per_s": 99 * GIB}, Unsatisfiable, "no drives so fast free now; the most would be 12 GiB/s"),
        ({"node": "c"}, Unsatisfiable, "node c offers no NVMe drives"),
        ({"node": "d"}, NotFound, "there is no node d"),
        ({"name": "Data!"}, InvalidInput, "no name for a volume"),
        ({"size": 5}, InvalidInput, "5 bytes are not from 1 MiB to"),
        ({"stripe": -1}, InvalidInput, "stripe: -1 is not from 0 to 64"),
    ],
)
def test_what_has_no_place_is_refused_in_words(more: dict[str, object], error: type[Exception], told: str) -> None:
    cluster = cluster_of()
    with pytest.raises(error, match=told):
        cluster.create(**more)  # type: ignore[arg-type]
    assert cluster.machine.volume_statuses() == ()


def test_a_name_is_taken_once() -> None:
    cluster = made()
    with pytest.raises(Conflict, match="there is a volume data already"):
        cluster.create()


def test_a_node_that_is_away_or_cordoned_is_no_place() -> None:
    cluster = cluster_of()
    cluster.lose("b")
    with pytest.raises(Unavailable, match="node b can't be reached"):
        cluster.create(node="b")
    cluster.create()
    assert cluster.volume().nodes == ("a",)


def test_a_node_that_refuses_is_told_and_what_was_made_is_taken_back() -> None:
    cluster = cluster_of(storing("a", 1), storing("b", 1))
    cluster.agents["b"].refuses[events.MakeVolume] = "volume data: its drives have no extents left"
    volume_id = cluster.create(stripe=2)
    cluster.settle()
    last = cluster.gone[volume_id]
    assert (last.state, last.error) == (
        VolumeState.DELETED,
        "node b: volume data: its drives have no extents left",
    )
    assert not any(agent.parts for agent in cluster.agents.values())
    assert taken(cluster, "NVME-a-0") == 0
    assert cluster.machine.volume_statuses() == ()
    assert len(cluster.machine.steps) == 0
    cluster.agents["b"].refuses.clear()
    assert cluster.create(stripe=2) == "v2"
    cluster.settle()
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_a_node_that_is_away_is_waited_for() -> None:
    cluster = cluster_of()
    cluster.create(node="b")
    cluster.lose("b")
    assert cluster.volume().says.startswith("waits for node b, which can't be reached, last heard at")
    cluster.pass_time(100)
    cluster.join("b")
    cluster.settle()
    assert cluster.volume().state is VolumeState.AVAILABLE
    made_by = [command.command_id for _, command in cluster.sent if isinstance(command, events.MakeVolume)]
    assert made_by == ["v1-0.0.make-volume", "v1-0.0.make-volume"]


def test_a_node_that_does_not_answer_is_asked_again() -> None:
    cluster = cluster_of()
    cluster.create(node="b")
    cluster.agents["b"].inbox.clear()
    cluster.pass_time(2_000, step_s=10)
    cluster.settle()
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_a_volume_is_there_when_its_node_reports_it() -> None:
    cluster = cluster_of()
    cluster.create(node="b")
    agent = cluster.agents["b"]
    command = agent.inbox.pop(0)
    outcome = agent.do(command)
    assert outcome is not None
    cluster.tell(outcome)
    assert (cluster.volume().state, cluster.volume().says) == (VolumeState.CREATING, "its nodes are to report it")
    cluster.tell(agent.inventory())
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_a_volume_grows_on_its_drives() -> None:
    cluster = made(storing("a", 1), storing("b", 1), stripe=2)
    record = cluster.machine.volumes["data"]
    check_resize(cluster.machine, record, 40 * GIB)
    cluster.tell(events.VolumeResizeAsked(name="data", size_bytes=40 * GIB, by="ada"))
    assert taken(cluster, "NVME-a-0") == 20 * GIB
    assert cluster.volume().says == "node a is asked to make its part larger, 1 of 2"
    cluster.settle()
    assert (cluster.volume().size_bytes, cluster.volume().state) == (40 * GIB, VolumeState.AVAILABLE)
    assert cluster.agents["b"].parts["VOL-data:1"].size_bytes == 20 * GIB


def resize(cluster: Cluster, size_bytes: int) -> None:
    cluster.tell(events.VolumeResizeAsked(name="data", size_bytes=size_bytes, by="ada"))


def test_who_uses_a_volume_is_asked_to_let_it_grow() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    assert isinstance(cluster.step("b"), events.ResizeVolume)
    # As long as the file system has its old size it is not said to be done.
    status = cluster.volume()
    assert (status.size_bytes, status.says) == (
        10 * GIB, "node c, which uses it, is asked to let its file system grow"
    )  # fmt: skip
    asked = cluster.step("c")
    assert isinstance(asked, events.GrowClient)
    assert (asked.job_id, asked.volume, asked.size_bytes) == ("j1", "data", 40 * GIB)
    assert (cluster.volume().size_bytes, cluster.volume().says, cluster.volume().error) == (40 * GIB, "", "")


def test_what_does_not_grow_while_it_is_used_is_told_until_it_is_attached_again() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    cluster.agents["c"].refuses[events.GrowClient] = "swap space keeps its size"
    resize(cluster, 40 * GIB)
    cluster.settle()
    status = cluster.volume()
    told = "node c uses it with its old size until it is attached again: swap space keeps its size"
    assert (status.size_bytes, status.error, status.says) == (40 * GIB, "", told)
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.volume().says == told
    cluster.tell(events.JobCancelled(job_id="j1", reason="detached", released=True))
    cluster.settle()
    cluster.attach("data", "c", job_id="j2")
    cluster.settle()
    assert (cluster.volume().attached_to, cluster.volume().says) == ("c", "")


def test_a_stripe_over_nodes_says_that_it_keeps_its_size_for_who_uses_it() -> None:
    cluster = made(storing("a", 1), storing("b", 1), node("c"), stripe=2)
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    cluster.settle()
    status = cluster.volume()
    assert status.size_bytes == 40 * GIB
    assert status.says.endswith("with its old size until it is attached again: it is striped over 2 nodes")


def test_a_node_that_uses_a_volume_and_is_away_is_waited_for() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    cluster.step("b")
    cluster.lose("c")
    assert cluster.volume().says.startswith("waits for node c, which uses it and can't be reached, last heard at")
    cluster.join("c")
    assert isinstance(cluster.step("c"), events.GrowClient)
    assert cluster.volume().size_bytes == 40 * GIB


def test_a_node_that_says_nothing_of_growing_is_not_waited_for_for_ever() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    cluster.step("b")
    # As one of an older version, which knows no such command.
    cluster.agents["c"].inbox.clear()
    cluster.pass_time(GROW_DEADLINE_S + 1, step_s=5)
    status = cluster.volume()
    assert (status.size_bytes, status.error) == (40 * GIB, "")
    assert status.says == "node c has not said whether it has its new size there"


def test_what_is_detached_meanwhile_is_done() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    cluster.step("b")
    cluster.tell(events.JobCancelled(job_id="j1", reason="detached", released=True))
    assert cluster.volume().size_bytes == 40 * GIB
    cluster.agents["c"].inbox = [each for each in cluster.agents["c"].inbox if not isinstance(each, events.GrowClient)]
    cluster.settle()
    assert (cluster.volume().state, cluster.volume().size_bytes) == (VolumeState.AVAILABLE, 40 * GIB)


def test_who_is_only_coming_is_asked_when_he_is_there() -> None:
    cluster = made()
    cluster.attach("data", "c")
    while not any(isinstance(each, events.PrepareClient) for each in cluster.agents["c"].inbox):
        assert cluster.step("b") is not None
    resize(cluster, 40 * GIB)
    while cluster.step("b") is not None:
        pass
    assert cluster.volume().size_bytes == 10 * GIB
    cluster.settle()
    assert (cluster.volume().size_bytes, cluster.volume().attached_to) == (40 * GIB, "c")


def test_a_restart_forgets_nobody_who_is_to_see_the_new_size() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    resize(cluster, 40 * GIB)
    cluster.step("b")
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert (cluster.volume().size_bytes, cluster.volume().says) == (40 * GIB, "")


def test_a_volume_that_can_not_grow_keeps_its_size() -> None:
    cluster = made(storing("a", 1), storing("b", 1), stripe=2)
    cluster.agents["b"].refuses[events.ResizeVolume] = "its volume group is full"
    cluster.tell(events.VolumeResizeAsked(name="data", size_bytes=40 * GIB, by="ada"))
    cluster.settle()
    status = cluster.volume()
    uneven = (
        "part 0 on node a by 15 GiB larger than it can be used for: "
        "farbus volume resize, asked again, makes the others alike"
    )
    assert (status.size_bytes, status.error) == (10 * GIB, f"node b: its volume group is full; {uneven}")
    assert status.troubles == (uneven,)
    # What is larger already stays so, and is counted.
    assert [part.size_bytes for part in status.parts] == [20 * GIB, 5 * GIB]
    assert (taken(cluster, "NVME-a-0"), taken(cluster, "NVME-b-0")) == (20 * GIB, 5 * GIB)
    cluster.agents["b"].refuses.clear()
    cluster.tell(events.VolumeResizeAsked(name="data", size_bytes=40 * GIB, by="ada"))
    cluster.settle()
    assert (cluster.volume().size_bytes, cluster.volume().error) == (40 * GIB, "")
    assert cluster.volume().troubles == ()


@pytest.mark.parametrize(
    ("size", "error", "told"),
    [
        (5 * GIB, InvalidInput, "volume data has 10 GiB, and is never made smaller"),
        (10 * GIB, Conflict, "volume data has 10 GiB already"),
        (101 * GIB, Unsatisfiable, "drive NVME-b-0 of node b would have to give it 101 GiB, and can give 100 GiB"),
    ],
)
def test_a_size_that_can_not_be_is_refused(size: int, error: type[Exception], told: str) -> None:
    cluster = made()
    with pytest.raises(error, match=told):
        check_resize(cluster.machine, cluster.machine.volumes["data"], size)


def test_a_volume_is_wiped_and_its_room_given_back() -> None:
    cluster = made()
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    assert cluster.volume().says == "node b is asked to wipe and remove its part, 1 of 1"
    assert taken(cluster, "NVME-b-0") == 10 * GIB
    cluster.settle()
    assert cluster.gone["v1"].state is VolumeState.DELETED
    assert taken(cluster, "NVME-b-0") == 0
    assert cluster.memory.volumes == {}
    # Its epoch goes on where another volume has its name.
    assert "VOL-data:0" in cluster.machine.devices


def test_a_removal_that_fails_is_tried_again_until_it_is_done() -> None:
    cluster = made()
    agent = cluster.agents["b"]
    agent.refuses[events.RemoveVolume] = "it is open"
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    cluster.settle()
    assert cluster.volume().says == "node b is asked again to wipe and remove its part: it is open"
    assert cluster.volume().troubles == ("node b: it is open",)
    agent.refuses.clear()
    cluster.pass_time(2)
    cluster.settle()
    assert cluster.machine.volume_statuses() == ()


def test_a_creation_can_be_called_off_and_is_undone_in_order() -> None:
    cluster = cluster_of()
    cluster.create(node="b")
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    # The node is still at its part: it is not asked to remove it beside that.
    assert [type(command) for command in cluster.agents["b"].inbox] == [events.MakeVolume]
    cluster.settle()
    assert [type(command) for _, command in cluster.sent] == [events.MakeVolume, events.RemoveVolume]
    assert cluster.machine.volume_statuses() == ()


def test_a_volume_is_lost_with_its_node_and_comes_back_with_it() -> None:
    cluster = made()
    cluster.lose("b")
    status = cluster.volume()
    assert status.state is VolumeState.LOST
    assert status.troubles[0].startswith("node b, which has part 0, can't be reached, last heard at")
    cluster.join("b")
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_a_volume_is_lost_with_a_drive() -> None:
    cluster = made()
    agent = cluster.agents["b"]
    devices = agent.node.devices
    agent.node = msgspec.structs.replace(agent.node, devices=tuple(d for d in devices if d.id != "NVME-b-0"))
    cluster.tell(agent.inventory())
    assert cluster.volume().state is VolumeState.LOST
    assert cluster.volume().troubles == ("drive NVME-b-0 of part 0 is not on node b any more",)


def test_what_nodes_say_of_drives_is_told() -> None:
    cluster = made()
    agent = cluster.agents["b"]
    worn = tuple(
        msgspec.structs.replace(each, attributes={"health": "97 % of its endurance is used"})
        if each.id == "NVME-b-0"
        else each
        for each in agent.node.devices
    )
    agent.node = msgspec.structs.replace(agent.node, devices=worn)
    cluster.tell(agent.inventory())
    assert cluster.volume().state is VolumeState.AVAILABLE
    assert cluster.volume().troubles == ("NVME-b-0 of node b: 97 % of its endurance is used",)
    (status,) = [each for each in cluster.machine.device_statuses() if each.device.id == "NVME-b-0"]
    assert status.trouble == "97 % of its endurance is used"


def test_a_forgotten_node_keeps_its_volumes_lost_until_they_are_deleted() -> None:
    cluster = made()
    cluster.lose("b")
    cluster.tell(events.NodeForgotten(node="b", reason="node b is off, says ann"))
    assert cluster.volume().state is VolumeState.LOST
    assert cluster.volume().troubles == ("node b, which has part 0, was forgotten",)
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    assert cluster.machine.volume_statuses() == ()
    # It was not off after all: what it has is nobody's.
    cluster.join("b")
    (orphan,) = cluster.machine.volume_statuses()
    assert (orphan.name, orphan.user, orphan.state, orphan.nodes) == ("data", "", VolumeState.LOST, ("b",))
    assert "the ledger knows nothing" in orphan.troubles[0]
    assert not any(isinstance(command, events.RemoveVolume) for _, command in cluster.sent)
    with pytest.raises(Conflict, match="node b has a part of another volume data"):
        cluster.create(node="a")


def orphaned(*nodes: object, **more: object) -> Cluster:
    """A cluster whose volume was deleted while its nodes were away, and is nobody's now that they are back."""
    cluster = made(*nodes, **more)
    stores = dict.fromkeys(cluster.volume().nodes)
    for name in stores:
        cluster.lose(name)
        cluster.tell(events.NodeForgotten(node=name, reason="off"))
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    assert cluster.machine.volume_statuses() == ()
    for name in stores:
        cluster.join(name)
    return cluster


TWO = (storing("a", 1), storing("b", 1), node("c"))


def test_what_nobody_knows_is_adopted_with_all_that_it_takes() -> None:
    cluster = orphaned(*TWO, stripe=2)
    assert (cluster.machine.volume_statuses()[0].user, taken(cluster, "NVME-a-0")) == ("", 0)
    cluster.adopt(user="bob")
    (status,) = cluster.machine.volume_statuses()
    assert (status.user, status.state, status.size_bytes) == ("bob", VolumeState.AVAILABLE, 10 * GIB)
    assert (status.nodes, status.troubles) == (("a", "b"), ())
    assert (taken(cluster, "NVME-a-0"), taken(cluster, "NVME-b-0")) == (5 * GIB, 5 * GIB)
    cluster.restart()
    cluster.join()
    cluster.attach("data", "c")
    cluster.settle()
    assert cluster.volume().attached_to == "c"
    assert not any(isinstance(command, events.RemoveVolume) for _, command in cluster.sent)


def test_what_is_adopted_with_parts_of_two_sizes_has_what_can_be_used_and_is_made_alike() -> None:
    cluster = made(*TWO, stripe=2)
    cluster.agents["b"].refuses[events.ResizeVolume] = "its volume group is full"
    resize(cluster, 40 * GIB)
    cluster.settle()
    for name in ("a", "b"):
        cluster.lose(name)
        cluster.tell(events.NodeForgotten(node=name, reason="off"))
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    for name in ("a", "b"):
        cluster.join(name)
    cluster.adopt(user="bob")
    assert cluster.volume().size_bytes == 10 * GIB
    assert (taken(cluster, "NVME-a-0"), taken(cluster, "NVME-b-0")) == (20 * GIB, 5 * GIB)
    cluster.agents["b"].refuses.clear()
    resize(cluster, 20 * GIB)
    cluster.settle()
    assert (cluster.volume().size_bytes, cluster.volume().error) == (20 * GIB, "")


def test_what_nobody_knows_is_wiped_and_removed_by_order_alone() -> None:
    cluster = orphaned(*TWO, stripe=2)
    cluster.agents["b"].refuses[events.RemoveVolume] = "it is open"
    volume_id = cluster.adopt(remove=True)
    # What it takes was never counted.
    assert (taken(cluster, "NVME-a-0"), cluster.volume().size_bytes) == (0, 10 * GIB)
    cluster.settle()
    assert cluster.volume().says == "node b is asked again to wipe and remove its part: it is open"
    cluster.restart()
    cluster.join()
    cluster.agents["b"].refuses.clear()
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.gone[volume_id].state is VolumeState.DELETED
    assert cluster.machine.volume_statuses() == ()
    assert not any(agent.parts for agent in cluster.agents.values())


def test_a_part_alone_is_no_volume_and_can_be_removed() -> None:
    cluster = orphaned(*TWO, stripe=2)
    cluster.lose("b")
    cluster.tell(events.NodeForgotten(node="b", reason="off"))
    with pytest.raises(Conflict, match="not each of its parts is there once: VOL-data:0 of 2 on node a"):
        cluster.adopt()
    cluster.adopt(remove=True)
    cluster.settle()
    assert (cluster.machine.volume_statuses(), cluster.agents["a"].parts) == ((), {})
    with pytest.raises(NotFound, match="no node has parts of a volume data that the ledger does not know"):
        cluster.adopt(remove=True)


def test_a_part_of_which_its_node_says_no_more_is_removed_alone() -> None:
    cluster = orphaned(*TWO, node="b")
    agent = cluster.agents["b"]
    devices = tuple(
        msgspec.structs.replace(device, attributes={}) if device.id == "VOL-data:0" else device
        for device in agent.node.devices
    )
    agent.node = msgspec.structs.replace(agent.node, devices=devices)
    cluster.tell(agent.inventory())
    with pytest.raises(Conflict, match="node b does not say on which drives VOL-data:0 is"):
        cluster.adopt()
    cluster.adopt(remove=True)
    cluster.settle()
    assert agent.parts == {}


def test_what_was_promised_to_others_is_not_adopted() -> None:
    cluster = made(*TWO, node="b")
    there = cluster.agents["b"]
    before, there.parts = there.node, {}
    plain = tuple(device for device in before.devices if device.kind is DeviceKind.NVME)
    cluster.lose("b")
    cluster.tell(events.NodeForgotten(node="b", reason="off"))
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    there.node = msgspec.structs.replace(before, devices=plain)
    cluster.join("b")
    cluster.create("other", 95 * GIB, node="b")
    cluster.settle()
    # Its volume group is found late.
    report(cluster, "b", *(device for device in before.devices if device.kind is DeviceKind.VOLUME))
    there.parts["VOL-data:0"] = VolumePart(volume="data", part=0, size_bytes=10 * GIB, drives=("NVME-b-0",))
    with pytest.raises(Conflict, match="10 GiB of drive NVME-b-0 on node b would be its, and 5 GiB are not promised"):
        cluster.adopt()
    cluster.adopt(remove=True)
    cluster.settle()
    assert [status.name for status in cluster.machine.volume_statuses()] == ["other"]


def test_what_nobody_knows_is_promised_to_nobody() -> None:
    cluster = orphaned(*TWO, node="b")
    with pytest.raises(Unsatisfiable, match="no drives with so much free now; the most would be 90 GiB"):
        cluster.create("other", 95 * GIB, node="b")
    room = StorageRequest(name="tmp", size_bytes=95 * GIB, routes=(Route.LOCAL, Route.REMOTE))
    cluster.decision_maker = decision_maker("")
    cluster.agents["a"].node = node("a")
    cluster.tell(cluster.agents["a"].inventory())
    cluster.submit(stored("j1", room, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    cluster.create("other", 90 * GIB, node="b")
    cluster.settle()
    # Also while it is wiped; then it is anybody's.
    cluster.agents["b"].refuses[events.RemoveVolume] = "it is open"
    cluster.adopt(remove=True)
    cluster.settle()
    with pytest.raises(Unsatisfiable):
        cluster.create("third", 5 * GIB, node="b")
    cluster.agents["b"].refuses.clear()
    cluster.pass_time(60)
    cluster.settle()
    cluster.create("third", 5 * GIB, node="b")


def test_more_parts_than_a_drive_holds_leave_none_of_it() -> None:
    cluster = made(*TWO, node="b")
    told = {"parts": "1", "drives": "NVME-b-0"}
    huge = Device(id="VOL-x:0", kind=DeviceKind.VOLUME, model="volume", memory_bytes=2**50, attributes=told)
    report(cluster, "b", huge)
    with pytest.raises(Unsatisfiable, match="has no drives for that now"):
        cluster.create("other", GIB, node="b")
    with pytest.raises(Unsatisfiable, match="can give 0 B of it at most"):
        check_resize(cluster.machine, cluster.machine.volumes["data"], 20 * GIB)


def report(cluster: Cluster, name: str, *devices: Device) -> None:
    """Let a node have more devices, or say so."""
    agent = cluster.agents[name]
    agent.node = msgspec.structs.replace(agent.node, devices=(*agent.node.devices, *devices))
    cluster.tell(agent.inventory())


def device_of(cluster: Cluster, name: str, device_id: str) -> Device:
    return next(device for device in cluster.agents[name].node.devices if device.id == device_id)


@pytest.mark.parametrize("device_id", ["VOL-data:0", "NVME-b-0"])
def test_what_another_node_says_while_a_volumes_own_is_away_takes_nothing_from_it(device_id: str) -> None:
    cluster = made()
    cluster.lose("b")
    report(cluster, "c", device_of(cluster, "b", device_id))
    cluster.join("b")
    status = cluster.machine.volume_status(cluster.machine.volumes["data"])
    assert (status.state, status.troubles) == (VolumeState.AVAILABLE, ())
    told = [each.troubles[0] for each in cluster.machine.volume_statuses() if not each.user]
    of_another = ["node c has VOL-data:0, of which the ledger knows nothing: it takes room, and is left alone"]
    assert told == (of_another if device_id == "VOL-data:0" else [])
    # Not even by saying it again, or when its own node is away once more.
    for _ in range(2):
        report(cluster, "c")
        assert cluster.machine.devices[device_id].node == "b"
        cluster.lose("b")
        cluster.join("b")
    cluster.attach("data", "c")
    cluster.settle()
    assert cluster.machine.volume_status(cluster.machine.volumes["data"]).attached_to == "c"


def test_a_volume_is_made_whoever_says_first_that_he_has_one_of_the_name() -> None:
    cluster = cluster_of()
    cluster.create(node="b")
    report(cluster, "c", Device(id="VOL-data:0", kind=DeviceKind.VOLUME, model="volume", memory_bytes=GIB))
    cluster.settle()
    status = cluster.machine.volume_status(cluster.machine.volumes["data"])
    assert (status.state, status.nodes, status.troubles) == (VolumeState.AVAILABLE, ("b",), ())


def test_what_the_ledger_has_is_not_adopted() -> None:
    cluster = made()
    with pytest.raises(Conflict, match="the ledger has another volume data, on node b"):
        cluster.adopt()
    with pytest.raises(InvalidInput, match="can't name a user"):
        cluster.adopt("other", user="a b")


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_creation_ends_with_a_node_that_is_forgotten(name: str) -> None:
    cluster = cluster_of(storing("a", 1), storing("b", 1))
    volume_id = cluster.create(stripe=2)
    cluster.lose(name)
    cluster.tell(events.NodeForgotten(node=name, reason="off"))
    cluster.settle()
    assert cluster.gone[volume_id].error == f"node {name} was forgotten meanwhile"
    assert not any(agent.parts for agent in cluster.agents.values() if agent.name != name)
    cluster.pass_time(3_000, step_s=20)
    assert len(cluster.machine.steps) == 0


def test_a_drive_with_a_volume_is_not_moved() -> None:
    cluster = made()
    with pytest.raises(Conflict, match="device NVME-b-0 is shared: it has 1 volume"):
        plan_move(cluster.machine, MoveRequest(device="NVME-b-0"), by="ann", at=0.0)


def overuse(cluster: Cluster, bytes_per_s: int, lease_id: str = "j1-1-1", by: str = "b") -> None:
    cluster.tell(
        events.LeaseOverused(
            node=by, session=cluster.agents[by].session, lease_id=lease_id, bytes_per_s=bytes_per_s,
            granted_bytes_per_s=GIB,
        )
    )  # fmt: skip


def test_what_takes_more_of_drives_than_it_was_granted_is_told_as_long_as_it_does() -> None:
    cluster = made(bandwidth_bytes_per_s=GIB)
    cluster.attach("data", "c")
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    told = "node b: storage data uses 3 GiB/s, and was granted 1 GiB/s"
    for _ in range(3):
        overuse(cluster, 3 * GIB, lease.lease.id)
    # By who does not store it, and of a lease that is none.
    overuse(cluster, 0, lease.lease.id, by="a")
    overuse(cluster, 9 * GIB, "j9-1-1")
    status = cluster.machine.jobs["j1"].status()
    assert (status.reason, cluster.volume().troubles) == (told, (told,))
    assert sum(line.endswith(told) for line in status.story) == 1
    overuse(cluster, 4 * GIB, lease.lease.id)
    assert cluster.volume().troubles == (told.replace("3 GiB", "4 GiB"),)
    overuse(cluster, 0, lease.lease.id)
    status = cluster.machine.jobs["j1"].status()
    assert (status.reason, cluster.volume().troubles) == ("", ())
    assert status.story[-1].endswith("node b: storage data keeps to its grant again")
    assert len(status.story) == len(set(status.story))


def test_what_was_said_of_use_is_forgotten_with_the_lease_and_with_the_session() -> None:
    cluster = made(bandwidth_bytes_per_s=GIB)
    cluster.attach("data", "c")
    cluster.settle()
    (lease,) = cluster.machine.leases.values()
    overuse(cluster, 3 * GIB, lease.lease.id)
    cluster.lose("b")
    cluster.join("b")
    assert cluster.volume().troubles == ()
    overuse(cluster, 3 * GIB, lease.lease.id)
    cluster.tell(events.JobCancelled(job_id="j1", reason="detached", released=True))
    cluster.settle()
    assert (cluster.volume().state, cluster.volume().troubles) == (VolumeState.AVAILABLE, ())


# --- attachments -------------------------------------------------------------------------


def test_a_volume_is_attached_over_the_network() -> None:
    cluster = made(bandwidth_bytes_per_s=GIB)
    cluster.attach("data", "c", path="/srv/data")
    cluster.settle()
    status = cluster.volume()
    assert (status.state, status.attached_to, status.job) == (VolumeState.ATTACHED, "c", "j1")
    assert (status.path, status.use, status.says) == ("/srv/data", "mount", "")
    (lease,) = cluster.machine.lease_statuses(cluster.now)
    grant = lease.lease.storage
    assert grant is not None
    assert (lease.lease.device_node, lease.lease.client_node, lease.lease.route) == ("b", "c", Route.REMOTE)
    assert (grant.name, grant.volume, grant.size_bytes, grant.bandwidth_bytes_per_s) == (
        "data",
        "data",
        10 * GIB,
        GIB,
    )
    assert [each.device for each in lease.lease.devices] == ["VOL-data:0"]
    assert cluster.state_of("j1") == "running"
    (prepared,) = [command for _, command in cluster.sent if isinstance(command, events.PrepareClient)]
    assert (prepared.attachment, prepared.interactive, prepared.user) == (True, False, "ann")
    assert not any(isinstance(command, events.StartTask) for _, command in cluster.sent)
    assert not cluster.round_asked


def test_a_volume_on_its_own_node_is_local() -> None:
    cluster = made()
    cluster.attach("data", "b", use=StorageUse.SWAP)
    cluster.settle()
    (lease,) = cluster.machine.lease_statuses(cluster.now)
    assert lease.lease.route is Route.LOCAL
    assert cluster.volume().use == "swap"


def test_each_part_has_a_lease_of_its_own() -> None:
    cluster = made(storing("a", 1), storing("b", 1), stripe=2)
    cluster.attach("data", "a")
    cluster.settle()
    leases = [status.lease for status in cluster.machine.lease_statuses(cluster.now)]
    assert [(lease.device_node, lease.route, lease.storage and lease.storage.part) for lease in leases] == [
        ("a", Route.LOCAL, 0),
        ("b", Route.REMOTE, 1),
    ]
    # One storage of one task, wherever it is.
    assert cluster.machine.accounts.devices["ann"] == 1


def test_a_volume_is_detached_when_its_node_has_given_it_up() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    cluster.tell(events.JobCancelled(job_id="j1", reason="detached by ann", released=True))
    assert cluster.volume().says == "is being detached: detached by ann"
    assert cluster.volume().state is VolumeState.ATTACHED
    cluster.settle()
    assert cluster.ended["j1"].state is JobState.SUCCEEDED
    status = cluster.volume()
    assert (status.state, status.job, status.attached_to) == (VolumeState.AVAILABLE, "", "")


def test_what_waits_for_a_volume_is_told_why_and_has_its_turn() -> None:
    cluster = made()
    cluster.lose("b")
    cluster.attach("data", "c")
    assert cluster.state_of("j1") == "queued"
    assert cluster.volume().says.startswith("is to be attached to node c: volume data is lost: node b, which has part")
    cluster.join("b")
    cluster.settle()
    assert cluster.volume().state is VolumeState.ATTACHED


def test_an_attachment_waits_for_its_node() -> None:
    cluster = made()
    cluster.lose("c")
    cluster.attach("data", "c")
    assert cluster.volume().says == "is to be attached to node c: node c can't be reached"
    cluster.join("c")
    cluster.settle()
    assert cluster.volume().attached_to == "c"


def test_an_attachment_comes_back_after_a_boot_of_its_node() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    for boot in range(4):
        cluster.agents["c"].die()
        cluster.agents["c"].node = msgspec.structs.replace(cluster.agents["c"].node, boot_id=f"boot-{boot + 2}")
        cluster.join("c")
        cluster.settle()
        cluster.pass_time(5)
        cluster.settle()
        assert (cluster.state_of("j1"), cluster.volume().attached_to) == ("running", "c"), boot
    (leased,) = next(iter(cluster.machine.leases.values())).lease.devices
    assert leased.epoch == 5


def test_an_attachment_that_never_came_about_fails() -> None:
    cluster = made()
    agent = cluster.agents["c"]
    cluster.attach("data", "c")
    for _ in range(3):
        cluster.step("b")
        command = agent.inbox.pop(0)
        assert isinstance(command, events.PrepareClient)
        cluster.tell(agent.answer(command, error="/srv/data is not empty"))
        cluster.settle()
        cluster.pass_time(5)
    assert cluster.ended["j1"].state is JobState.FAILED
    assert "/srv/data is not empty" in cluster.ended["j1"].reason
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_an_attachment_is_kept_while_its_node_is_out_of_reach_and_then_waits_for_it() -> None:
    cluster = Cluster(storing("b", 1), node("c"))
    cluster.unreachable_limit_s = 300.0
    cluster.restart()
    cluster.join()
    cluster.create()
    cluster.settle()
    cluster.attach("data", "c")
    cluster.settle()
    cluster.lose("c")
    cluster.pass_time(100)
    assert cluster.state_of("j1") == "running"
    assert cluster.volume().says.startswith("unreachable: node c was last heard at")
    cluster.pass_time(300)
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    assert cluster.volume().state is VolumeState.AVAILABLE


def test_draining_a_node_takes_its_attachments_until_it_is_back() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    cluster.tell(events.JobEvicted(job_id="j1", node="c", reason="evicted from node c by ann"))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"


def test_attachments_and_volumes_outlive_a_restart() -> None:
    cluster = made(storing("a", 1), storing("b", 1), node("c"), stripe=2)
    cluster.attach("data", "c")
    cluster.settle()
    before = cluster.volume()
    cluster.restart()
    assert cluster.volume().state is VolumeState.LOST
    cluster.join()
    cluster.settle()
    assert cluster.volume() == before
    assert cluster.state_of("j1") == "running"


def test_a_queued_attachment_outlives_a_restart() -> None:
    cluster = made()
    cluster.lose("c")
    cluster.attach("data", "c")
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.volume().attached_to == "c"


def test_paths_that_do_not_work_are_told_as_long_as_they_do_not() -> None:
    cluster = made()
    cluster.attach("data", "c")
    cluster.settle()
    (lease,) = cluster.machine.leases.values()

    def say(trouble: str, lease_id: str = lease.lease.id, by: str = "c") -> None:
        session = cluster.agents[by].session
        cluster.tell(events.LeasePaths(node=by, session=session, lease_id=lease_id, trouble=trouble))

    say("of 2 paths to storage data 1 can be used: x is connecting")
    # By who does not use it, and of a lease that is none.
    say("", by="b")
    say("none", "j9-1-1")
    told = "node c: of 2 paths to storage data 1 can be used: x is connecting"
    status = cluster.machine.jobs["j1"].status()
    assert (status.reason, cluster.volume().troubles) == (told, (told,))
    say("of 2 paths to storage data 1 can be used: x is not connected")
    assert cluster.volume().troubles == (told.replace("connecting", "not connected"),)
    say("")
    status = cluster.machine.jobs["j1"].status()
    assert (status.reason, cluster.volume().troubles) == ("", ())
    assert status.story[-1].endswith("node c: all paths to storage data can be used again")
    assert sum(" paths to storage data " in line for line in status.story) == 2
