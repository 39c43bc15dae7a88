"""Random histories of leases, targets and paths: whatever has happened, what is handed over is right."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.errors import FarbusError
from farbus.linux.clock import FakeClock
from farbus.model.nvmeof import Connection, ControllerState, namespace_identity
from farbus.nvmeof.parts import Attach
from farbus.nvmeof.sequences import steps_of
from tests.nvmeof.attaching import FIRST, SECOND, Node, a_connection, a_target

LEASES, EPOCHS = ("l1", "l2"), (1, 2)

CONNECTIONS = st.builds(
    # Two volumes: each lease may be given either.
    lambda lease, epoch, volume: msgspec.structs.replace(
        a_connection(lease, epoch),
        namespaces=(
            msgspec.structs.replace(a_connection().namespaces[0], identity=namespace_identity(volume)),
        ),
    ),
    st.sampled_from(LEASES),
    st.sampled_from(EPOCHS),
    st.sampled_from(("scratch", "data")),
)  # fmt: skip

OFFERS = st.sampled_from(("whole", "whole", "over one path", "not"))
"""How the target has it by then."""

EVENTS = st.one_of(
    st.tuples(st.just("withdraw"), CONNECTIONS),
    st.tuples(st.just("attach"), CONNECTIONS, OFFERS, st.just(4)),
    st.tuples(st.just("attach"), CONNECTIONS, OFFERS, st.just(4)),
    st.tuples(st.just("attach, cut off"), CONNECTIONS, OFFERS, st.integers(0, 4)),
    st.tuples(st.just("detach"), CONNECTIONS),
    st.tuples(st.just("path lost"), st.integers(0, 3)),
    st.tuples(st.just("path given up"), st.integers(0, 3)),
    st.tuples(st.just("half-made"), st.booleans()),
)


class World:
    """A node, and what is true of it after each event."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.node = Node(directory, clock=self.clock)
        foreign = a_connection("foreign")
        self.node.nvme.offer(a_target(foreign, nqn="nqn.2014-08.org.example:x", host_nqn="nqn.2014-08.org.example:h"))
        self.node.nvme._add(
            {
                "transport": "tcp", "traddr": "10.0.0.2", "trsvcid": "4420", "nqn": "nqn.2014-08.org.example:x",
                "hostnqn": "nqn.2014-08.org.example:h", "hostid": "x", "ctrl_loss_tmo": 1, "reconnect_delay": 1,
                "keep_alive_tmo": 1,
            }
        )  # fmt: skip
        self.foreign = self.node.nvme.controllers()

    async def passing(self, doing: object) -> None:
        """Let a coroutine end, with as much time as it wants."""
        task = asyncio.ensure_future(doing)  # type: ignore[call-overload]
        while not task.done():
            for _ in range(10):
                await asyncio.sleep(0)
            if not task.done():
                await self.clock.advance(1.0)
        await task

    async def attach(self, connection: Connection, steps: int = 4) -> None:
        for step in steps_of(self.node.parts, Attach(id="x", connections=(connection,)))[:steps]:
            if await step.observe(None) is None:
                await step.do()

    async def detach(self, connection: Connection) -> None:
        for step in reversed(steps_of(self.node.parts, Attach(id="x", connections=(connection,)))):
            await step.compensate()

    def ours(self) -> list[str]:
        return [one.name for one in self.node.nvme.controllers() if one not in self.foreign]

    async def happens(self, what: str, *about: object) -> None:
        nvme = self.node.nvme
        if what in ("path lost", "path given up"):
            (number,) = about
            names = self.ours()
            assert isinstance(number, int)
            if number < len(names):
                if what == "path lost":
                    nvme.set_state(names[number], ControllerState.CONNECTING)
                else:
                    nvme.lose(names[number])
        elif what == "half-made":
            nvme.half_made = bool(about[0])
        else:
            connection = about[0]
            assert isinstance(connection, Connection)
            if what == "withdraw":
                nvme.withdraw(connection.nqn)
            elif what.startswith("attach"):
                _, offer, steps = about
                assert isinstance(steps, int)
                if offer != "not":
                    nvme.offer(a_target(connection, cut=() if offer == "whole" else (SECOND,)))
                if await self._try(self.attach(connection, steps)) and steps == 4:
                    self.is_handed_over(connection)
            elif await self._try(self.detach(connection)):
                self.is_gone(connection)

    async def _try(self, doing: object) -> bool:
        told = ""
        try:
            await self.passing(doing)
        except FarbusError as error:
            told = str(error)
        assert "\n" not in told
        return not told

    def is_handed_over(self, connection: Connection) -> None:
        """The path leads to a device of this subsystem, with this identity; no other epoch of the lease is here."""
        identity = connection.namespaces[0].identity
        controllers = self.node.nvme.controllers()
        device = self.node.nvme.leads_to(identity.by_id)
        assert device
        of_lease = {one.nqn for one in controllers if one.host_nqn == connection.name.host_nqn and one.nqn}
        assert of_lease == {connection.nqn}
        found = {
            (one.nqn, path.uuid) for one in controllers for path in one.namespaces if path.device == device
        }  # fmt: skip
        assert found == {(connection.nqn, identity.uuid)}
        assert any(
            one.state is ControllerState.LIVE and str(one.address) in (FIRST, SECOND)
            for one in controllers
            if one.nqn == connection.nqn
        )

    def is_gone(self, connection: Connection) -> None:
        assert not [one for one in self.node.nvme.controllers() if one.nqn == connection.nqn]


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, max_size=12))
def test_whatever_has_happened_what_is_handed_over_is_right(events: list[tuple[object, ...]]) -> None:
    async def live(directory: Path) -> None:
        world = World(directory / "node")
        for what, *about in events:
            await world.happens(str(what), *about)
            assert world.foreign[0] in world.node.nvme.controllers()
        # In the end all of it can be taken away.
        world.node.nvme.half_made = False
        for lease in LEASES:
            for epoch in EPOCHS:
                await world.passing(world.detach(a_connection(lease, epoch)))
        assert world.node.nvme.controllers() == world.foreign

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(live(Path(directory)))
