"""Stripes: what is planned, what is made of it, and what is found of it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable
from farbus.linux.clock import Clock, FakeClock, SystemClock
from farbus.linux.device_mapper import parse_table, table_of
from farbus.linux.sysfs import SECTOR_BYTES
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.nvmeof import ExpectedNamespace, Stripe, namespace_identity, transport_address
from farbus.nvmeof.composition import LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES, CreateStripe, choose_chunk, plan_stripe
from farbus.nvmeof.parts import Attach
from tests.nvmeof.attaching import FIRST, SECOND, SIZE, Node, a_connection, a_target, passing


def members(*sizes: int) -> list[ExpectedNamespace]:
    return [
        ExpectedNamespace(identity=namespace_identity(f"v{number}"), size_bytes=size)
        for number, size in enumerate(sizes)
    ]


@given(
    st.lists(st.integers(MOST_CHUNK_BYTES, 2**44), min_size=2, max_size=8),
    st.lists(st.sampled_from([0, 512, 4096, 131072, 262144, 1 << 22]), max_size=8),
)
def test_every_plan_has_a_table_that_the_kernel_takes_and_no_member_is_too_small(
    sizes: list[int], wishes: list[int]
) -> None:
    chunk = choose_chunk(wishes)
    assert LEAST_CHUNK_BYTES <= chunk <= MOST_CHUNK_BYTES
    assert chunk & (chunk - 1) == 0
    stripe = plan_stripe("v", members(*sizes), chunk_bytes=chunk)
    assert stripe.member_bytes <= min(sizes)
    assert min(sizes) - stripe.member_bytes < chunk
    # What is written is what is read again.
    found = parse_table(table_of(stripe), name=stripe.name, uuid=stripe.uuid, device="dm-0")
    assert (found.members, found.member_bytes) == (stripe.members, stripe.member_bytes)
    assert (found.chunk_bytes, set(found.offsets)) == (chunk, {0})
    # striped_ctr of drivers/md/dm-stripe.c: the width is a whole number of chunks.
    assert stripe.size_bytes // len(sizes) % (chunk // SECTOR_BYTES) == 0


@pytest.mark.parametrize("name", ["", "a b", "../x", "v\n"])
def test_a_name_that_is_no_device_s_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="no name for a device"):
        _ = plan_stripe(name, members(SIZE, SIZE)).name


@pytest.mark.parametrize(("sizes", "chunk"), [((SIZE,), 0), ((SIZE, 4096), 0), ((SIZE, SIZE), 3 << 17)])
def test_what_can_not_be_striped_is_refused(sizes: tuple[int, ...], chunk: int) -> None:
    with pytest.raises(InvalidInput, match="stripe v: "):
        plan_stripe("v", members(*sizes), chunk_bytes=chunk)


def test_a_namespace_is_no_member_twice() -> None:
    one = members(SIZE)[0]
    with pytest.raises(InvalidInput, match="two different namespaces"):
        plan_stripe("v", [one, one])


def test_a_drive_that_asks_for_more_gets_it() -> None:
    assert choose_chunk() == choose_chunk([0, 4096]) == LEAST_CHUNK_BYTES
    assert choose_chunk([0, 256 << 10]) == 256 << 10
    assert choose_chunk([1 << 30]) == MOST_CHUNK_BYTES


async def a_node(tmp_path: Path, clock: Clock) -> Node:
    """One with two namespaces of two targets."""
    node = Node(tmp_path / "node", clock=clock)
    for lease, at in (("l1", FIRST), ("l2", SECOND)):
        connection = a_connection(lease, addresses=(transport_address(at),))
        node.nvme.offer(a_target(connection))
        await node.nvme.connect(connection, transport_address(at))
    return node


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return await a_node(tmp_path, SystemClock())


def a_stripe(*leases: str) -> Stripe:
    return plan_stripe("v", [a_connection(lease).namespaces[0] for lease in leases])


def step_of(node: Node, stripe: Stripe, *, drain_s: float = 0.0, force: bool = False) -> CreateStripe:
    work = Attach(id="v", connections=(), drain_s=drain_s, force=force)
    return CreateStripe(parts=node.parts, work=work, stripe=stripe)


async def test_a_stripe_is_made_and_found_again(node: Node) -> None:
    step = step_of(node, a_stripe("l1", "l2"))
    assert await step.observe(None) is None
    assert await step.do() == {"path": "/dev/mapper/farbus-v"} == await step.do()
    assert await step.observe(None) == {"path": "/dev/mapper/farbus-v"}
    await step.compensate()
    await step.compensate()
    assert node.mapper.list() == ()


async def test_one_whose_making_was_cut_off_is_made_anew_or_taken_back(node: Node) -> None:
    step = step_of(node, a_stripe("l1", "l2"))
    for go_on in (True, False):
        node.mapper.cut_off = True
        with pytest.raises(Unavailable, match="dmsetup says nothing"):
            await step.do()
        # The device is there, and has no table.
        assert node.mapper.list() == ("FARBUS-v",)
        node.mapper.cut_off = False
        assert await step.observe(None) is None
        if go_on:
            assert await step.do() == {"path": "/dev/mapper/farbus-v"} == await step.observe(None)
        await step.compensate()
        assert node.mapper.list() == ()


async def test_members_in_another_order_are_another_stripe(node: Node) -> None:
    await step_of(node, a_stripe("l1", "l2")).do()
    other = step_of(node, a_stripe("l2", "l1"))
    assert await other.observe(None) is None
    await other.do()
    found = await node.mapper.find("FARBUS-v")
    assert found is not None
    assert found.members == ("259:1", "259:0")


async def test_one_that_stands_on_something_else_is_not_replaced_while_it_is_held(node: Node) -> None:
    await step_of(node, a_stripe("l1", "l2")).do()
    node.holders.state = Look(holders=(Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/dm-0"),))
    with pytest.raises(Conflict, match="/dev/dm-0 is mounted on /data"):
        await step_of(node, a_stripe("l2", "l1")).do()
    with pytest.raises(Conflict, match="/dev/dm-0 is mounted on /data"):
        await step_of(node, a_stripe("l1", "l2"), force=True).compensate()
    assert node.mapper.list() == ("FARBUS-v",)


async def test_who_holds_it_has_time_to_let_go_unless_it_is_forced(tmp_path: Path) -> None:
    clock = FakeClock()
    node = await a_node(tmp_path, clock)
    stripe = a_stripe("l1", "l2")
    await step_of(node, stripe).do()
    node.holders.state = Look(holders=(Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/dm-0"),))
    with pytest.raises(Conflict, match="still held after 0 s"):
        await step_of(node, stripe, drain_s=10.0, force=True).compensate()
    with pytest.raises(Conflict, match="still held after 10 s"):
        await passing(clock, step_of(node, stripe, drain_s=10.0).compensate())
    going = asyncio.ensure_future(step_of(node, stripe, drain_s=10.0).compensate())
    await clock.advance(9.0)
    node.holders.state = Look()
    await passing(clock, going, seconds=2)
    assert node.mapper.list() == ()


async def test_without_a_member_nothing_is_made(node: Node) -> None:
    with pytest.raises(NotFound, match=r"nvme-uuid.* is not there"):
        await step_of(node, a_stripe("l1", "l3")).do()
    assert node.mapper.list() == ()


async def test_the_names_of_others_are_not_told(node: Node) -> None:
    place = node.nvme.directory / "sys/class/block/dm-7/dm"
    place.mkdir(parents=True)
    (place / "uuid").write_text("LVM-farbus\n")
    (place / "name").write_text("farbus-v\n")
    assert node.mapper.list() == ()
    assert await node.mapper.find("FARBUS-v") is None


def test_a_body_with_a_stripe_can_be_read(node: Node) -> None:
    work = Attach(id="v", connections=(a_connection(),), stripe=a_stripe("l1", "l2"))
    assert msgspec.json.decode(msgspec.json.encode(work), type=Attach) == work
