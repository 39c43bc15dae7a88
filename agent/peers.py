"""Keeps leases while the scheduler is away: the two agents of a lease renew it with each other.

A side whose lease has not been renewed for a while asks the agent of the other
side: the client's side first, at half of the lease time; the device's side, in
case its client has a scheduler and it has none, at a quarter before the end.
While the scheduler renews, nobody asks.

The device's side has the last word: it renews only what it holds, has not
expired, and is of the same epochs, and counts from when it was asked; the
client's side counts from before it asked.  So no client believes in a lease
longer than the node that has the devices, by monotonic time on both.  A lease
between two sides of one node renews itself.

A side that has ended by itself is told to the other, which ends too.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from farbus.agent.actions import Report, ReportLeaseEnded
from farbus.agent.chassis import ChassisDesk
from farbus.agent.events import Event, LeasesRenewed, LeasesVoided
from farbus.agent.machine import LeaseSide, NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.session import Backoff
from farbus.api.identity import Identity
from farbus.api.peer import PeerHandler
from farbus.errors import FarbusError, InvalidInput, NotPermitted, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.model.fabric import ChassisReply, ChassisRequest
from farbus.model.lease import PeerLease, PeerReply, PeerRequest

_log = structlog.get_logger()

CLIENT_ASKS_AT = 0.5
"""Part of the lease time that is left when the client's side asks: two heartbeats were missed, several tries remain."""
DEVICE_ASKS_AT = 0.25
"""Part that is left when the device's side asks: only where the client's side has not."""
LOOKS_PER_LEASE = 20
"""Looks at the leases in a lease time, while any is held."""
LOOK_LEAST_S = 0.05
"""Not more often than this, whatever the lease time."""
ANSWER_PART = 0.125
"""Part of the lease time that an answer may take, so that a peer that never answers leaves time for other tries."""
MAX_ASKED = 10_000
"""Leases in one request: all that a node can hold."""


class Asker(Protocol):
    """Asks other agents: :class:`farbus.api.peer.PeerClient`."""

    async def renew(self, node: str, endpoint: str, request: PeerRequest) -> PeerReply:
        """Return the answer; raise :class:`FarbusError` when there is none."""
        ...


@dataclass
class _Peer:
    """What is under way with another node."""

    backoff: Backoff
    not_before: float = 0.0
    asking: bool = False
    told: str = ""
    """The trouble that was logged last, so that an outage is one line and not hundreds."""
    released: dict[str, tuple[PeerLease, float]] = field(default_factory=dict)
    """Sides that ended here and that it has not heard of, and until when it may believe in them."""


class Peers(PeerHandler):
    """Both ends: asks other agents in :meth:`run`, answers them in :meth:`renew`."""

    def __init__(
        self,
        *,
        machine: NodeMachine,
        membership: Membership,
        asker: Asker,
        clock: Clock,
        post: Callable[[Event], None],
        new_backoff: Callable[[], Backoff] = Backoff,
        chassis: ChassisDesk | None = None,
    ) -> None:
        self._chassis = chassis
        self._machine = machine
        self._membership = membership
        self._asker = asker
        self._clock = clock
        self._post = post
        self._peers: defaultdict[str, _Peer] = defaultdict(lambda: _Peer(new_backoff()))
        self.endpoint = ""
        """Where this agent serves others; they are told with each request."""

    # --- answering -----------------------------------------------------------------------

    async def renew(self, caller: Identity, request: PeerRequest) -> PeerReply:
        """Answer another node; see :class:`farbus.api.peer.PeerHandler`."""
        if len(request.leases) + len(request.released) > MAX_ASKED:
            raise InvalidInput(f"node {caller.name} asks for more than {MAX_ASKED} leases at once")
        now = self._clock.monotonic()
        # By the other side: the caller's device side is met by this node's client side.
        mine = {(side.lease.id, not side.device_side): side for side in self._machine.lease_sides()}
        renewed, void, extended, ended = [], [], [], []
        for asked in (*request.leases, *request.released):
            side = mine.get((asked.lease_id, asked.device_side))
            if side is not None and _other_node(side) != caller.name:
                raise NotPermitted(f"lease {asked.lease_id} is not between node {caller.name} and this one")
        for asked in request.leases:
            side = mine.get((asked.lease_id, asked.device_side))
            if side is None or not side.wanted or side.expires_at <= now or side.lease.devices != asked.devices:
                void.append(asked.lease_id)
                continue
            renewed.append(asked.lease_id)
            if side.device_side:
                extended.append(asked.lease_id)
        for asked in request.released:
            side = mine.get((asked.lease_id, asked.device_side))
            if side is not None and side.wanted and side.lease.devices == asked.devices:
                ended.append(asked.lease_id)
        self._membership.learn(caller.name, request.peer_endpoint)
        if extended:
            self._post(LeasesRenewed(lease_ids=tuple(extended), now=now))
        if ended:
            self._post(LeasesVoided(lease_ids=tuple(ended), reason=f"node {caller.name} has ended its side"))
        return PeerReply(renewed=tuple(renewed), void=tuple(void))

    async def ask_chassis(self, caller: Identity, request: ChassisRequest) -> ChassisReply:
        """Ask a chassis that this agent serves, for another node."""
        if self._chassis is None:
            return await super().ask_chassis(caller, request)
        return await self._chassis.answer(caller, request)

    # --- asking --------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Note a side that ended by itself, for the other node."""
        if not isinstance(report, ReportLeaseEnded):
            return
        lease = report.lease
        node = lease.client_node if report.device_side else lease.device_node
        if node == self._machine.node:
            return
        side = PeerLease(lease_id=lease.id, device_side=report.device_side, devices=lease.devices)
        # Afterwards it has expired there.
        until = self._clock.monotonic() + self._machine.lease_ttl_s
        self._peers[node].released[lease.id] = (side, until)

    async def run(self, until: Callable[[Callable[[NodeMachine], bool]], Awaitable[None]]) -> None:
        """Ask until cancelled; ``until`` returns once a condition holds of the machine (AgentService.until)."""
        async with asyncio.TaskGroup() as group:
            while True:
                await until(lambda machine: any(machine.lease_sides()) or self._has_news())
                self.look(group)
                await self._clock.sleep(max(LOOK_LEAST_S, self._machine.lease_ttl_s / LOOKS_PER_LEASE))

    def _has_news(self) -> bool:
        return any(peer.released for peer in self._peers.values())

    def look(self, group: asyncio.TaskGroup) -> None:
        """Renew what is due: ask the nodes concerned, in tasks of ``group``."""
        now, ttl = self._clock.monotonic(), self._machine.lease_ttl_s
        due = [side for side in self._machine.lease_sides() if side.wanted and _is_due(side, now, ttl)]
        own = {side.lease.id for side in due if _other_node(side) == self._machine.node}
        if own:
            self._post(LeasesRenewed(lease_ids=tuple(sorted(own)), now=now))
        by_node: defaultdict[str, list[LeaseSide]] = defaultdict(list)
        for side in due:
            if side.lease.id not in own:
                by_node[_other_node(side)].append(side)
        # What was cut off by the end of an agent may have been prepared once more, as the same lease.
        held = {(side.lease.id, side.device_side) for side in self._machine.lease_sides() if side.wanted}
        for node, peer in self._peers.items():
            peer.released = {
                name: (side, until)
                for name, (side, until) in peer.released.items()
                if until > now and (name, side.device_side) not in held
            }
            if peer.released:
                by_node[node] += []
        for node, sides in by_node.items():
            peer = self._peers[node]
            if not peer.asking and peer.not_before <= now:
                peer.asking = True
                group.create_task(self._ask(node, peer, sides), name=f"peer {node}")

    async def _ask(self, node: str, peer: _Peer, sides: list[LeaseSide]) -> None:
        asked_at = self._clock.monotonic()
        request = PeerRequest(
            leases=tuple(
                PeerLease(lease_id=side.lease.id, device_side=side.device_side, devices=side.lease.devices)
                for side in sides
            ),
            released=tuple(side for side, _ in peer.released.values()),
            peer_endpoint=self.endpoint,
        )
        try:
            reply = await self._answer(node, request)
        except FarbusError as error:
            self._fail(node, peer, str(error))
        except Exception as error:
            # A defect in this must not end what the agent does for others.
            _log.exception("defect", node=node)
            self._fail(node, peer, repr(error))
        else:
            if peer.told:
                _log.info("leases renewed with their other node again", node=node)
            peer.told = ""
            peer.backoff.reset()
            for released in request.released:
                peer.released.pop(released.lease_id, None)
            self._take(node, sides, reply, asked_at)
        finally:
            peer.asking = False

    def _fail(self, node: str, peer: _Peer, reason: str) -> None:
        peer.not_before = self._clock.monotonic() + peer.backoff.next_s()
        if peer.told != reason:
            peer.told = reason
            _log.warning("leases not renewed with their other node", node=node, reason=reason)

    def _take(self, node: str, sides: Iterable[LeaseSide], reply: PeerReply, asked_at: float) -> None:
        # Only what was asked: a node has no say in the leases of others.
        asked = {side.lease.id: side for side in sides}
        renewed = tuple(lease_id for lease_id in reply.renewed if lease_id in asked)
        # The device's side decides alone when it ends: a client that does not know the
        # lease (yet) only fails to renew it.
        void = tuple(lease_id for lease_id in reply.void if lease_id in asked and not asked[lease_id].device_side)
        if renewed:
            self._post(LeasesRenewed(lease_ids=renewed, now=asked_at))
        if void:
            self._post(LeasesVoided(lease_ids=void, reason=f"node {node}, which has its devices, holds it no more"))

    async def _answer(self, node: str, request: PeerRequest) -> PeerReply:
        """Ask, for no longer than :data:`ANSWER_PART` of a lease time."""
        endpoint = self._membership.endpoint_of(node)
        if not endpoint:
            raise Unavailable(f"node {node} has not told where its agent serves others", hint="upgrade its agent")
        limit_s = self._machine.lease_ttl_s * ANSWER_PART
        answer = asyncio.create_task(self._asker.renew(node, endpoint, request), name=f"renew with {node}")
        timer = asyncio.create_task(self._clock.sleep(limit_s), name=f"deadline of {node}")
        try:
            await asyncio.wait({answer, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise TimedOut(f"the agent of node {node} at {endpoint} did not answer in {limit_s:g} s")
            return answer.result()
        finally:
            for task in (answer, timer):
                task.cancel()
            await asyncio.gather(answer, timer, return_exceptions=True)


def _other_node(side: LeaseSide) -> str:
    return side.lease.client_node if side.device_side else side.lease.device_node


def _is_due(side: LeaseSide, now: float, ttl_s: float) -> bool:
    part = DEVICE_ASKS_AT if side.device_side and side.lease.client_node != side.lease.device_node else CLIENT_ASKS_AT
    return now < side.expires_at <= now + part * ttl_s
