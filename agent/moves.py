"""Devices that come to this node and go from it, as sequences of journalled steps, and who may not have them meanwhile.

The steps are those of :mod:`farbus.hotplug.sequences`; here they meet the
agent's journal.  Which devices are closed is not written down anywhere else:
it follows from the records (:func:`closed_by`), so it can't contradict them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from farbus.agent.journal import Direction, Journal, Record
from farbus.agent.steps import Result, StepRunner, Steps, WedgedError
from farbus.errors import FarbusError, InvalidInput
from farbus.hotplug.parts import Parts
from farbus.hotplug.sequences import HotMove, from_body, object_of, steps_of
from farbus.model.holders import Holder

_log = structlog.get_logger()

_FIRST = frozenset({"CheckRoom", "CloseDevice"})
"""Kinds of step that a move begins with: by these its records are known from those of leases and tasks."""

_CLOSES, _OPENS = "CloseDevice", "OpenDevice"


def closed_by(records: Sequence[Record]) -> bool:
    """Say whether a device is closed by the records of its last move.

    A detach closes it with its first step, an attach opens it with its last;
    whoever was cut off in the middle of either may have done it, and a device
    that nobody may have is the safe side.
    """
    detaching = records[0].action == _CLOSES
    for record in reversed(records):
        if record.action not in (_CLOSES, _OPENS):
            continue
        done = record.succeeded
        if record.direction is Direction.BACK:
            return not (detaching and done)
        return detaching or not done
    return not detaching


class AgentGate:
    """Which devices nobody may have, and who has those that are still in use."""

    def __init__(
        self,
        *,
        sessions: Callable[[str], tuple[Holder, ...]] = lambda _: (),
        end_session: Callable[[Holder], Awaitable[None]] | None = None,
    ) -> None:
        self._closed: dict[str, str] = {}
        self._sessions = sessions
        self._end_session = end_session

    def closed(self) -> dict[str, str]:
        """Return why each closed device is closed."""
        return dict(self._closed)

    async def close(self, device: str, *, reason: str) -> None:
        """Close it."""
        self._closed[device] = reason

    async def open(self, device: str) -> None:
        """Open it."""
        self._closed.pop(device, None)

    async def is_closed(self, device: str) -> bool:
        """Say whether it is closed."""
        return device in self._closed

    async def holders(self, device: str) -> tuple[Holder, ...]:
        """Return the leases by which it is used."""
        return self._sessions(device)

    async def evict(self, holder: Holder) -> None:
        """End one of them."""
        if self._end_session is not None:
            await self._end_session(holder)


class Moves:
    """Attaches and detaches.  One move of a device is under way at a time; those of several run side by side."""

    def __init__(self, *, parts: Parts, gate: AgentGate, journal: Journal, runner: StepRunner) -> None:
        self._parts = parts
        self._gate = gate
        self._journal = journal
        self._runner = runner
        self._under_way: set[str] = set()
        """Ports where something is being moved: what comes and goes there is expected."""
        self.troubles: dict[str, str] = {}
        """What could neither be finished nor undone, by device."""

    def is_expected(self, address: str) -> bool:
        """Say whether a function that came or went is one that is being moved (:class:`TreeWatch`)."""
        tree = self._parts.pci.tree()
        function = tree.get(address)
        bridges = [function.parent] if function is not None else []
        # One that is gone is known by the bus that it was on.
        bridges += [port.address for port in tree.functions if port.secondary_bus == address.rpartition(":")[0]]
        return any(bridge in self._under_way for bridge in bridges)

    async def perform(self, work: HotMove) -> Result:
        """Do a move, or nothing of it.  Raises what stopped it; where it could not be undone, that."""
        device, steps = work.move.device, self._steps(work)
        self._under_way.add(work.move.bridge)
        try:
            result = await self._runner.forward(steps)
        except WedgedError as error:
            # Nothing can be undone before it has ended.
            self.troubles[device] = str(error)
            raise
        except Exception:
            await self._undo(device, steps)
            raise
        finally:
            self._under_way.discard(work.move.bridge)
        self.troubles.pop(device, None)
        return result

    async def _undo(self, device: str, steps: Steps) -> None:
        try:
            await self._runner.back(steps)
        except FarbusError as error:
            self.troubles[device] = str(error)
            raise

    async def recover(self, *, boot_id: str) -> dict[str, Result]:
        """Take up the moves of an earlier agent: bring each to one of its ends; return what is attached now, by device.

        What can't be brought to an end is a trouble and stays closed; it is
        tried again by whoever asks for the move again.
        """
        attached: dict[str, Result] = {}
        sequences = [records for records in await self._journal.sequences() if records[0].action in _FIRST]
        # All of them before the first is gone on with: a step asks whether its device is closed.
        known = [(records, work) for records in sequences if (work := self._understood(records)) is not None]
        for records, work in known:
            if closed_by(records):
                await self._gate.close(work.move.device, reason="it was being moved when the agent before ended")
        for records, work in known:
            device = work.move.device
            self._under_way.add(work.move.bridge)
            try:
                result = await self._runner.recover(self._steps(work), records, boot_id=boot_id)
            except (FarbusError, OSError) as error:
                self.troubles[device] = str(error)
                _log.error("move not finished", device=device, error=str(error))
                continue
            finally:
                self._under_way.discard(work.move.bridge)
            if result is not None and "identity" in result:
                attached[device] = result
        return attached

    def _understood(self, records: Sequence[Record]) -> HotMove | None:
        try:
            return from_body(records[0].body)
        except InvalidInput as error:
            _log.warning("record not understood", record=f"{records[0].object}: {error}")
            return None

    def _steps(self, work: HotMove) -> Steps:
        body = msgspec.json.encode(work).decode()
        return Steps(object=object_of(work.move), body=body, steps=steps_of(self._parts, work), resumable=True)
