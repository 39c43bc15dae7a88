"""The paths to storage of other nodes that this node's tasks use: which work, and those that do not come back alone.

Linux gives a path up some time after it was lost (``ctrl_loss_tmo``), and one
that was silent when storage was attached it has never had.  Both are
connected again from here, as long as another path of the same lease is left:
where none is, it is no matter of paths any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from farbus.agent.steps import StepRunner, Steps
from farbus.errors import FarbusError
from farbus.linux.clock import Clock
from farbus.model.nvmeof import Connection, Controller, ControllerState, TransportAddress
from farbus.model.value import Value, to_json
from farbus.nvmeof.initiator import GOING, MendPath, of_connection
from farbus.nvmeof.parts import Attach, InitiatorParts

_log = structlog.get_logger()

LOOK_S = 15.0
"""Between two looks at the paths; the kernel itself tries a lost one every 2 s."""

LOOKS_BEFORE_TOLD = 2
"""Looks in a row at which a path does not work before anybody is told: one that comes back at once is no news."""

FIRST_WAIT_S = 15.0
LAST_WAIT_S = 600.0
"""From one try to connect a path again to the next, twice as long each time: each try is in the journal."""


class UsedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """A lease's connection, and by what it may be proven, empty where this agent does not know."""

    connection: Connection
    storage: str
    key: str = ""

    def __repr__(self) -> str:
        return f"UsedPaths({self.connection.nqn})"


class PathTrouble(Value, frozen=True, kw_only=True):
    """Paths of a lease do not work, in words; empty once all do."""

    lease: str
    trouble: str


class _Try(msgspec.Struct):
    """When a path is tried again, and how long after that."""

    at: float
    wait_s: float = FIRST_WAIT_S


class PathWatch:
    """Looks at the paths of the leases that ``used`` returns; ``told`` hears what does not work, at each look."""

    def __init__(
        self,
        *,
        parts: InitiatorParts,
        runner: StepRunner,
        clock: Clock,
        used: Callable[[], Iterable[UsedPaths]],
        told: Callable[[PathTrouble], None],
    ) -> None:
        self._parts = parts
        self._runner = runner
        self._clock = clock
        self._used = used
        self._told = told
        self._worked: set[str] = set()
        """Leases of which a path has been seen to work: others are still being attached."""
        self._lame: dict[str, int] = {}
        """At how many looks in a row not all paths of a lease worked."""
        self._tries: dict[tuple[str, TransportAddress], _Try] = {}

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look once: tell, and mend what can be mended."""
        found = tuple(self._used())
        leases = {one.connection.name.lease for one in found}
        self._worked &= leases
        self._lame = {lease: count for lease, count in self._lame.items() if lease in leases}
        self._tries = {key: tried for key, tried in self._tries.items() if key[0] in leases}
        # Once for all of them: a node with hundreds of leases has more than as many.
        there = self._parts.nvme.controllers()
        for one in found:
            controllers = of_connection(there, one.connection)
            if any(controller.state is ControllerState.LIVE for controller in controllers):
                self._worked.add(one.connection.name.lease)
            if one.connection.name.lease in self._worked:
                self._tell(one, controllers)
                await self._mend(one, controllers)

    def _tell(self, one: UsedPaths, controllers: tuple[Controller, ...]) -> None:
        lease, addresses = one.connection.name.lease, one.connection.addresses
        states = {address: _state(one.connection, address, controllers) for address in addresses}
        lame = [f"{address} is {state}" for address, state in states.items() if state != ControllerState.LIVE]
        before = self._lame.get(lease, 0)
        self._lame[lease] = before + 1 if lame else 0
        if lame and before + 1 >= LOOKS_BEFORE_TOLD:
            works = len(addresses) - len(lame)
            told = (
                f"of {len(addresses)} paths to storage {one.storage} {works or 'none'} can be used: {'; '.join(lame)}"
            )
            self._told(PathTrouble(lease=lease, trouble=told))
            if before + 1 == LOOKS_BEFORE_TOLD:
                _log.warning("paths of storage lost", lease=lease, trouble=told)
        elif not lame and before >= LOOKS_BEFORE_TOLD:
            self._told(PathTrouble(lease=lease, trouble=""))
            _log.info("all paths of storage can be used", lease=lease)

    async def _mend(self, one: UsedPaths, controllers: tuple[Controller, ...]) -> None:
        if all(controller.state in GOING for controller in controllers):
            return
        lease, now = one.connection.name.lease, self._clock.monotonic()
        for address in one.connection.addresses:
            if any(controller.reaches(one.connection, address) for controller in controllers):
                self._tries.pop((lease, address), None)
                continue
            tried = self._tries.setdefault((lease, address), _Try(at=now))
            if now < tried.at:
                continue
            tried.at, tried.wait_s = now + tried.wait_s, min(2 * tried.wait_s, LAST_WAIT_S)
            work = Attach(id=lease, connections=(one.connection,))
            step = MendPath(parts=self._parts, work=work, connection=one.connection, address=address, key=one.key)
            steps = Steps(object=f"path {one.connection.nqn} {address}", body=to_json(work).decode(), steps=(step,))
            try:
                await self._runner.perform(steps)
            except (FarbusError, OSError) as error:
                _log.info("path not connected again", lease=lease, address=str(address), reason=str(error))
            except Exception:
                # What one path has met must not end what is done for the others, nor the agent.
                _log.exception("defect", lease=lease, address=str(address))


def _state(connection: Connection, address: TransportAddress, controllers: Iterable[Controller]) -> str:
    found = [controller.state for controller in controllers if controller.reaches(connection, address)]
    return found[0].value if found else "not connected"
