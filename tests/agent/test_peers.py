"""Leases between two nodes while the scheduler is away, with clocks that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from farbus.agent.actions import Report, ReportLeaseEnded, Work
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    Event,
    LeasesRenewed,
    LeasesVoided,
    NodeRestored,
    PreparedLease,
    RestoredDevices,
    SessionOpened,
    TimePassed,
)
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.peers import MAX_ASKED, Peers
from farbus.agent.session import Backoff
from farbus.api.identity import Identity, Role
from farbus.errors import InvalidInput, NotPermitted, Unavailable
from farbus.linux.clock import FakeClock
from farbus.model.device import Route
from farbus.model.lease import Lease, LeasedDevice, PeerLease, PeerReply, PeerRequest

TTL_S = 16.0
STEP_S = 0.5


def lease(number: str = "l1", *, client: str = "c", device: str = "d", epoch: int = 3) -> Lease:
    return Lease(
        id=number,
        job="j1",
        task="main.0",
        user="ann",
        client_node=client,
        device_node=device,
        route=Route.LOCAL if client == device else Route.REMOTE,
        devices=(LeasedDevice(device=f"GPU-{number}", epoch=epoch),),
        term=1,
        secret="00" * 32,
    )


class Agent:
    """A node's machine, its clock and its peers; work succeeds at once."""

    def __init__(self, name: str, membership: Membership, network: Network, *, monotonic: float) -> None:
        self.name = name
        self.clock = FakeClock(monotonic=monotonic)
        self.machine = NodeMachine(node=name)
        self.membership = membership
        self.reports: list[Report] = []
        self.changed = asyncio.Event()
        self.peers = Peers(
            machine=self.machine,
            membership=membership,
            asker=Line(network, name),
            clock=self.clock,
            post=self.post,
            new_backoff=lambda: Backoff(random_source=random.Random(1)),
        )
        self.peers.endpoint = f"{name}:1"
        self.post(SessionOpened(lease_ttl_s=TTL_S, now=self.now))

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def post(self, event: Event) -> None:
        for action in self.machine.handle(event):
            if isinstance(action, Work):
                self.post(ActionDone(serial=action.serial, ok=True))
            elif isinstance(action, ReportLeaseEnded):
                self.reports.append(action)
                self.peers.report(action)
        self.machine.validate()
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[NodeMachine], bool]) -> None:
        while not condition(self.machine):
            await self.changed.wait()

    def holds(self, *, device_side: bool, number: str = "l1") -> bool:
        return any(side.lease.id == number and side.device_side is device_side for side in self.machine.lease_sides())

    def expires_in_s(self) -> float:
        (side,) = self.machine.lease_sides()
        return side.expires_at - self.now

    def ended(self) -> list[str]:
        return [report.reason for report in self.reports if isinstance(report, ReportLeaseEnded)]


class Network:
    """Carries questions between agents, or does not."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.asked: list[tuple[str, str, PeerRequest]] = []
        self.cut = False
        self.silent = False

    async def carry(self, source: str, target: str, request: PeerRequest) -> PeerReply:
        self.asked.append((source, target, request))
        if self.cut:
            raise Unavailable(f"no route to {target}")
        if self.silent:
            await asyncio.Event().wait()
        return await self.agents[target].peers.renew(Identity(name=source, role=Role.NODE), request)


class Line:
    """A network as one node sees it."""

    def __init__(self, network: Network, source: str) -> None:
        self._network = network
        self._source = source

    async def renew(self, node: str, endpoint: str, request: PeerRequest) -> PeerReply:
        assert endpoint == f"{node}:1"
        return await self._network.carry(self._source, node, request)


class Pair:
    """Node d has the devices of l1, node c uses them; their clocks have nothing in common."""

    def __init__(self, make_membership: Callable[[str], Membership]) -> None:
        self.network = Network()
        self.c = Agent("c", make_membership("c"), self.network, monotonic=50.0)
        self.d = Agent("d", make_membership("d"), self.network, monotonic=90_000.0)
        self.network.agents = {"c": self.c, "d": self.d}
        self.c.membership.learn("d", "d:1")
        self.d.membership.learn("c", "c:1")

    def grant(self, *, to_client: bool = True) -> None:
        self.d.post(DevicesRequested(command="p", lease=lease(), now=self.d.now))
        if to_client:
            prepared = (PreparedLease(lease=lease(), endpoint="d:7000"),)
            self.c.post(
                ClientRequested(command="c", job="j1", task="main.0", user="ann", leases=prepared, now=self.c.now)
            )

    async def pass_time(self, seconds: float, *agents: Agent) -> None:
        """Let time pass on both nodes, or only on some of them."""
        for _ in range(round(seconds / STEP_S)):
            for agent in agents or (self.c, self.d):
                await agent.clock.advance(STEP_S)
                agent.post(TimePassed(now=agent.now))
            for _ in range(10):
                await asyncio.sleep(0)

    def scheduler_renews(self) -> None:
        for agent in (self.c, self.d):
            agent.post(LeasesRenewed(lease_ids=("l1",), now=agent.now))


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(lambda name: Membership(tmp_path / f"{name}.json"))
    running: list[asyncio.Task[None]] = [
        asyncio.create_task(agent.peers.run(agent.until)) for agent in (pair.c, pair.d)
    ]
    yield pair
    for task in running:
        assert not task.done(), task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_two_nodes_keep_their_lease_without_a_scheduler(pair: Pair) -> None:
    pair.grant()
    await pair.pass_time(10 * TTL_S)
    assert pair.c.holds(device_side=False)
    assert pair.d.holds(device_side=True)


async def test_nobody_asks_while_the_scheduler_renews(pair: Pair) -> None:
    pair.grant()
    for _ in range(50):
        await pair.pass_time(TTL_S / 4)
        pair.scheduler_renews()
    assert pair.network.asked == []


async def test_the_client_never_believes_longer_than_the_device_side(pair: Pair) -> None:
    pair.grant()
    carry = pair.network.carry

    async def carry_slowly(source: str, target: str, request: PeerRequest) -> PeerReply:
        await pair.c.clock.sleep(2 * STEP_S)
        reply = await carry(source, target, request)
        await pair.c.clock.sleep(STEP_S)
        return reply

    pair.network.carry = carry_slowly  # type: ignore[method-assign]
    for _ in range(100):
        await pair.pass_time(STEP_S)
        assert pair.c.expires_in_s() <= pair.d.expires_in_s()
    assert pair.network.asked


async def test_the_lease_ends_on_both_sides_when_the_nodes_are_cut_off_for_the_lease_time(pair: Pair) -> None:
    pair.grant()
    await pair.pass_time(2 * TTL_S)
    pair.network.cut = True
    await pair.pass_time(TTL_S)
    assert not pair.c.holds(device_side=False)
    assert not pair.d.holds(device_side=True)
    assert pair.d.ended() == ["lease l1 has ended: it was not renewed for 16 s"]


async def test_a_cut_shorter_than_half_the_lease_time_ends_nothing(pair: Pair) -> None:
    pair.grant()
    for _ in range(4):
        pair.network.cut = True
        await pair.pass_time(TTL_S / 2 - 2)
        pair.network.cut = False
        await pair.pass_time(TTL_S)
    assert pair.c.holds(device_side=False)
    assert pair.d.holds(device_side=True)


async def test_tries_become_rarer_while_the_other_node_is_away(pair: Pair) -> None:
    pair.grant()
    pair.network.cut = True
    await pair.pass_time(TTL_S)
    asked_by_c = [source for source, _, _ in pair.network.asked if source == "c"]
    assert 3 <= len(asked_by_c) <= 8


async def test_a_peer_that_accepts_and_never_answers_is_asked_again_until_the_lease_ends(pair: Pair) -> None:
    pair.grant()
    pair.network.silent = True
    await pair.pass_time(TTL_S - 1)
    assert len([source for source, _, _ in pair.network.asked if source == "c"]) > 1
    await pair.pass_time(1)
    assert not pair.c.holds(device_side=False)
    assert not pair.d.holds(device_side=True)


async def test_a_peer_that_answers_again_in_time_keeps_the_lease(pair: Pair) -> None:
    pair.grant()
    pair.network.silent = True
    await pair.pass_time(TTL_S * 0.7)
    pair.network.silent = False
    await pair.pass_time(3 * TTL_S)
    assert pair.c.holds(device_side=False)
    assert pair.d.holds(device_side=True)


async def test_the_device_side_asks_where_only_its_client_has_a_scheduler(pair: Pair) -> None:
    pair.grant()
    for _ in range(20):
        await pair.pass_time(TTL_S / 4)
        pair.c.post(LeasesRenewed(lease_ids=("l1",), now=pair.c.now))
    assert pair.d.holds(device_side=True)
    assert {source for source, _, _ in pair.network.asked} == {"d"}


async def test_a_client_that_was_never_prepared_keeps_nothing_alive_and_ends_nothing_early(pair: Pair) -> None:
    pair.grant(to_client=False)
    await pair.pass_time(TTL_S - 1)
    assert pair.d.holds(device_side=True)
    await pair.pass_time(1)
    assert not pair.d.holds(device_side=True)


async def test_a_lease_that_the_device_side_gave_up_is_void_for_its_client(pair: Pair) -> None:
    pair.grant()
    pair.d.post(DevicesReleased(command="u", lease_id="l1"))
    await pair.pass_time(TTL_S / 2 + 1)
    assert not pair.c.holds(device_side=False)
    assert "node d, which has its devices, holds it no more" in pair.c.ended()[0]


async def test_a_side_that_ends_by_itself_ends_the_other(pair: Pair) -> None:
    pair.grant()
    pair.c.post(LeasesVoided(lease_ids=("l1",), reason="the agent was stopped"))
    await pair.pass_time(2)
    assert not pair.d.holds(device_side=True)
    assert pair.d.ended() == ["lease l1 has ended: node c has ended its side"]


async def test_an_end_is_told_again_until_the_other_node_has_heard_it(pair: Pair) -> None:
    pair.grant()
    pair.network.cut = True
    pair.c.post(LeasesVoided(lease_ids=("l1",), reason="the agent was stopped"))
    await pair.pass_time(3)
    pair.network.cut = False
    await pair.pass_time(3)
    assert not pair.d.holds(device_side=True)


async def test_an_end_is_not_told_any_more_once_the_lease_is_held_again(pair: Pair) -> None:
    pair.network.cut = True
    cut_off = RestoredDevices(lease=lease().without_secret(), lost="it was not ready when the agent of node d ended")
    pair.d.post(NodeRestored(now=pair.d.now, lease_ttl_s=TTL_S, devices=(cut_off,)))
    await pair.pass_time(1)
    assert pair.d.ended()
    # The scheduler asks the agent that has come back for the same lease: nobody has had it yet.
    pair.grant()
    pair.network.cut = False
    await pair.pass_time(TTL_S)
    assert pair.c.holds(device_side=False)
    assert pair.c.ended() == []


async def test_what_the_scheduler_takes_back_is_not_told_by_the_peer(pair: Pair) -> None:
    pair.grant()
    pair.c.post(ClientReleased(command="u", job="j1", task="main.0"))
    await pair.pass_time(2)
    assert pair.network.asked == []


async def test_a_lease_within_one_node_renews_itself(pair: Pair) -> None:
    own = lease(client="d", device="d")
    pair.d.post(DevicesRequested(command="p", lease=own, now=pair.d.now))
    prepared = (PreparedLease(lease=own),)
    pair.d.post(ClientRequested(command="c", job="j1", task="main.0", user="ann", leases=prepared, now=pair.d.now))
    await pair.pass_time(5 * TTL_S, pair.d)
    assert pair.d.holds(device_side=True)
    assert pair.d.holds(device_side=False)
    assert pair.network.asked == []


async def test_an_agent_stopped_for_longer_than_the_lease_time_does_not_get_it_back(pair: Pair) -> None:
    """SIGSTOP and SIGCONT of the device's node: its clock has gone on; what waits for it is an old question."""
    pair.grant()
    await pair.d.clock.advance(TTL_S)
    reply = await ask(pair, PeerLease(lease_id="l1", device_side=False, devices=lease().devices))
    assert reply.void == ("l1",)
    # A renewal that was under way when it was stopped comes too late as well.
    pair.d.post(LeasesRenewed(lease_ids=("l1",), now=pair.d.now))
    pair.d.post(TimePassed(now=pair.d.now))
    assert not pair.d.holds(device_side=True)


async def test_a_jump_of_the_wall_clock_changes_nothing(pair: Pair) -> None:
    pair.grant()
    await pair.pass_time(TTL_S)
    for agent in (pair.c, pair.d):
        agent.clock.jump_wall(-86_400.0 * 365)
    await pair.pass_time(TTL_S)
    for agent in (pair.c, pair.d):
        agent.clock.jump_wall(86_400.0 * 3650)
    await pair.pass_time(TTL_S)
    assert pair.c.holds(device_side=False)
    assert pair.d.holds(device_side=True)


async def ask(pair: Pair, *leases: PeerLease, caller: str = "c", released: tuple[PeerLease, ...] = ()) -> PeerReply:
    return await pair.d.peers.renew(
        Identity(name=caller, role=Role.NODE), PeerRequest(leases=leases, released=released)
    )


@pytest.mark.parametrize("as_released", [False, True])
async def test_a_third_node_can_neither_renew_nor_end_a_lease(pair: Pair, as_released: bool) -> None:
    pair.grant()
    before = pair.d.expires_in_s()
    claim = PeerLease(lease_id="l1", device_side=False, devices=lease().devices)
    with pytest.raises(NotPermitted, match="lease l1 is not between node x and this one"):
        await ask(pair, *(() if as_released else (claim,)), caller="x", released=(claim,) if as_released else ())
    assert pair.d.expires_in_s() == before


@pytest.mark.parametrize(
    "claim",
    [
        PeerLease(lease_id="l2", device_side=False, devices=lease().devices),
        PeerLease(lease_id="l1", device_side=False, devices=lease(epoch=2).devices),
        PeerLease(lease_id="l1", device_side=False, devices=lease(epoch=4).devices),
        PeerLease(lease_id="l1", device_side=False, devices=()),
        PeerLease(lease_id="l1", device_side=True, devices=lease().devices),
    ],
    ids=["unknown", "older epoch", "newer epoch", "no devices", "the wrong side"],
)
async def test_what_is_not_held_just_so_is_void(pair: Pair, claim: PeerLease) -> None:
    pair.grant()
    await pair.pass_time(STEP_S)
    before = pair.d.expires_in_s()
    assert await ask(pair, claim) == PeerReply(void=(claim.lease_id,))
    assert pair.d.expires_in_s() == before


async def test_a_release_of_an_older_epoch_ends_nothing(pair: Pair) -> None:
    pair.grant()
    await ask(pair, released=(PeerLease(lease_id="l1", device_side=False, devices=lease(epoch=2).devices),))
    assert pair.d.holds(device_side=True)


async def test_a_question_that_is_too_long_is_refused(pair: Pair) -> None:
    claim = PeerLease(lease_id="l1", device_side=False, devices=())
    with pytest.raises(InvalidInput, match="more than 10000 leases"):
        await ask(pair, *(claim for _ in range(MAX_ASKED + 1)))


async def test_who_asks_tells_where_it_serves(pair: Pair) -> None:
    await pair.d.peers.renew(Identity(name="new", role=Role.NODE), PeerRequest(peer_endpoint="new:9"))
    assert pair.d.membership.endpoint_of("new") == "new:9"


async def test_a_defect_in_a_question_is_a_trouble_like_others(pair: Pair) -> None:
    pair.grant()
    carry = pair.network.carry

    async def break_down(_source: str, _target: str, _request: PeerRequest) -> PeerReply:
        raise ValueError("a planted defect")

    pair.network.carry = break_down  # type: ignore[method-assign]
    await pair.pass_time(TTL_S * 0.7)
    pair.network.carry = carry  # type: ignore[method-assign]
    await pair.pass_time(2 * TTL_S)
    assert pair.c.holds(device_side=False)


async def test_an_answer_about_leases_that_were_not_asked_for_is_ignored(pair: Pair) -> None:
    pair.grant()

    async def lie(_source: str, _target: str, request: PeerRequest) -> PeerReply:
        return PeerReply(renewed=("l9",), void=("l8",))

    pair.network.carry = lie  # type: ignore[method-assign]
    other = lease("l8", device="e")
    pair.c.post(
        ClientRequested(
            command="c2", job="j2", task="main.0", user="ann", leases=(PreparedLease(lease=other),), now=pair.c.now
        )
    )
    await pair.pass_time(TTL_S / 2 + 1)
    assert pair.c.holds(device_side=False, number="l8")
