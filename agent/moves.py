"""Devices that come to this node and go from it, as sequences of journalled steps, and who may not have them meanwhile.

The steps are those of :mod:`farbus.hotplug.sequences`; here they meet the
agent's journal.  Which devices are closed is not written down anywhere else:
it follows from the records (:func:`closed_by`), so it can't contradict them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from farbus.agent.journal import Direction, Journal, Record
from farbus.agent.reconcile import Verdict, results_of, verdict_of
from farbus.agent.steps import CallOff, Result, StepNews, StepRunner, Steps, WedgedError
from farbus.agent.turns import Turns
from farbus.errors import FarbusError, InvalidInput
from farbus.hotplug.parts import Parts, device_at
from farbus.hotplug.sequences import HotDetach, HotMove, from_body, object_of, steps_of
from farbus.model.holders import Holder
from farbus.model.pci import PciTree

_log = structlog.get_logger()

_FIRST = frozenset({"CheckRoom", "CloseDevice", "ScanBelow"})
"""Kinds of step that a move begins with: by these its records are known from those of leases and tasks."""

_CLOSES, _OPENS, _SCANS = "CloseDevice", "OpenDevice", "ScanBelow"


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


def was_done(records: Sequence[Record]) -> bool:
    """Say whether a move came to its end, in whichever boot, and nothing of it was taken back since."""
    forward = {record.position: record for record in records if record.direction is Direction.FORWARD}
    is_whole = all(position in forward and forward[position].succeeded for position in range(records[0].length))
    return is_whole and all(record.direction is Direction.FORWARD for record in records)


def superseded(known: Sequence[tuple[Sequence[Record], HotMove]]) -> frozenset[str]:
    """Return the objects of moves that are done and whose device was moved under another name since.

    A device comes by what its chassis calls it and goes by what its driver says.  Of the two the later move says where
    it is; to take up the earlier one would take back what is not its any more.  ``known`` is in the order of begin.
    """
    found = set()
    names = [_names(records, work) for records, work in known]
    for number, (records, _) in enumerate(known):
        if was_done(records) and any(names[number] & later for later in names[number + 1 :]):
            found.add(records[0].object)
    return frozenset(found)


def _names(records: Sequence[Record], work: HotMove) -> frozenset[str]:
    """Return what a moved device is called, by the request, its chassis and its driver."""
    move = work.move
    at_chassis = f"{move.chassis}/{move.serial}" if move.chassis and move.serial else ""
    called = (move.device, move.uuid, at_chassis, result_of(records).get("identity", ""))
    return frozenset(name for name in called if name)


RETRY_INTERVAL_S = 60.0
"""Between two attempts to bring to an end what could be neither finished nor undone."""


async def _nobody_told(_device: str, _reason: str) -> None:
    """Do nothing: a gate that nobody watches."""


def _nobody_asks() -> None:
    """Where nobody lists devices."""


def _nobody_follows(_: StepNews) -> None:
    """Where nobody wants to hear how far a move is."""


class AgentGate:
    """Which devices nobody may have, and who has those that are still in use.

    ``told`` is awaited with each device that closes, and why, and with an
    empty reason for each that opens: once it has returned nobody is given the
    device any more.
    """

    def __init__(
        self,
        *,
        sessions: Callable[[str], tuple[Holder, ...]] = lambda _: (),
        end_session: Callable[[Holder], Awaitable[None]] | None = None,
        told: Callable[[str, str], Awaitable[None]] = _nobody_told,
    ) -> None:
        self._closed: dict[str, str] = {}
        self.sessions = sessions
        self.end_session = end_session
        self.told = told

    def closed(self) -> dict[str, str]:
        """Return why each closed device is closed."""
        return dict(self._closed)

    async def close(self, device: str, *, reason: str) -> None:
        """Close it."""
        self._closed[device] = reason
        await self.told(device, reason)

    async def open(self, device: str) -> None:
        """Open it."""
        if self._closed.pop(device, None) is not None:
            await self.told(device, "")

    async def is_closed(self, device: str) -> bool:
        """Say whether it is closed."""
        return device in self._closed

    async def holders(self, device: str) -> tuple[Holder, ...]:
        """Return the leases by which it is used."""
        return self.sessions(device)

    async def evict(self, holder: Holder) -> None:
        """End one of them."""
        if self.end_session is not None:
            await self.end_session(holder)


class Moves:
    """Attaches and detaches.  One move of a device is under way at a time; those of several run side by side."""

    def __init__(self, *, parts: Parts, gate: AgentGate, journal: Journal, runner: StepRunner) -> None:
        self._parts = parts
        self._gate = gate
        self._journal = journal
        self._runner = runner
        self._turns = Turns()
        self._remembered: list[tuple[Sequence[Record], HotMove]] | None = None
        self.under_way: dict[str, HotMove] = {}
        """By device.  What comes and goes at its port is expected."""
        self.troubles: dict[str, str] = {}
        """What could neither be finished nor undone, by device."""
        self.stuck: dict[str, HotMove] = {}
        """The moves that these are of."""
        self.attached: dict[str, Result] = {}
        """What moves have brought to this node, by device, with address and identity."""
        self._coming: dict[str, HotMove] = {}
        """Attaches and scans that are not done, by device, also those that are stuck."""
        self.changed: Callable[[], None] = _nobody_asks
        """Called when a device has come or gone."""

    def bridges(self, *, but: str) -> frozenset[str]:
        """Return the ports where something ``but`` one device is being moved, or is stuck."""
        works = (*self.under_way.values(), *self.stuck.values())
        return frozenset(work.move.bridge for work in works if work.move.device != but)

    def coming(self, tree: PciTree) -> frozenset[str]:
        """Return the addresses of what is on the bus and may not be used yet: nobody has verified what it is."""
        found: set[str] = set()
        for work in self._coming.values():
            bridge = tree.get(work.move.bridge)
            if bridge is None:
                continue
            # Below a port there is nothing else, be it the device that is meant or another.
            there = tree.below(bridge.address) if bridge.is_port else device_at(self._parts, tree, work.move)
            found |= {function.address for function in there}
        return frozenset(found)

    def has_brought(self, device: str) -> bool:
        """Say whether a device of that name has come here by a move."""
        return any(device in (name, result.get("identity")) for name, result in self.attached.items())

    def turn(self, device: str) -> asyncio.Lock:
        """Return what whoever looks at a device and then moves it holds meanwhile."""
        return self._turns.of(device)

    def is_expected(self, address: str) -> bool:
        """Say whether a function that came or went is one that is being moved (:class:`TreeWatch`)."""
        if not self.under_way:
            # A card may bring hundreds of virtual functions at once, and each would have the bus read.
            return False
        tree = self._parts.pci.tree()
        function = tree.get(address)
        bridges = [function.parent] if function is not None else []
        # One that is gone is known by the bus that it was on.
        bridges += [port.address for port in tree.functions if port.secondary_bus == address.rpartition(":")[0]]
        return any(work.move.bridge in bridges for work in self.under_way.values())

    async def perform(
        self,
        work: HotMove,
        *,
        told: Callable[[StepNews], None] = _nobody_follows,
        call_off: CallOff | None = None,
    ) -> Result:
        """Do a move, or nothing of it.  Raises what stopped it; where it could not be undone, that."""
        device, steps = work.move.device, self._steps(work, told, call_off)
        self.under_way[device] = work
        self._note_coming(work)
        try:
            result = await self._runner.forward(steps)
        except WedgedError as error:
            # Nothing can be undone before it has ended.
            self._note_stuck(work, error)
            raise
        except Exception:
            await self._undo(work, steps)
            raise
        finally:
            self.under_way.pop(device, None)
        await self._note_done(work, result)
        return result

    async def _undo(self, work: HotMove, steps: Steps) -> None:
        try:
            await self._runner.back(steps)
        except (FarbusError, OSError) as error:
            self._note_stuck(work, error)
            raise
        self._note_free(work.move.device)
        self.changed()

    def _note_coming(self, work: HotMove) -> None:
        if not isinstance(work, HotDetach):
            self._coming[work.move.device] = work

    def _note_stuck(self, work: HotMove, error: Exception) -> None:
        self.troubles[work.move.device] = str(error)
        self.stuck[work.move.device] = work

    def _note_free(self, device: str) -> None:
        self.troubles.pop(device, None)
        self.stuck.pop(device, None)
        self._coming.pop(device, None)

    def _note_kept(self, work: HotMove) -> None:
        """Know what a move had brought, and another one was to take, for as long as it is still here."""
        if isinstance(work, HotDetach) and work.move.brought:
            there = device_at(self._parts, self._parts.pci.tree(), work.move)
            if there:
                self.attached[work.move.device] = {"address": there[0].address, "identity": work.move.device}

    async def _note_done(self, work: HotMove, result: Result) -> None:
        device = work.move.device
        self._note_free(device)
        if isinstance(work, HotDetach):
            self.attached.pop(device, None)
        else:
            self.attached[device] = result
            # A node names what has come as its drivers do, whatever it was asked for by.
            await self._gate.open(result.get("identity", ""))
        await self._end_others(device, result.get("identity", device))
        self.changed()

    async def _end_others(self, device: str, identity: str) -> None:
        """Forget the moves of a device under other names: an agent that comes later would take them back.

        What a chassis calls it is what it comes by for the first time; what its
        driver says, it goes by.
        """
        for name, result in list(self.attached.items()):
            if name != device and result.get("identity") == identity:
                del self.attached[name]
                await self._end(f"device {name}")

    async def _end(self, name: str) -> None:
        """Record that nothing is left of an object's last move."""
        try:
            await self._journal.sequence_ended(name, action=_SCANS, at=self._parts.clock.wall())
        except FarbusError as error:
            _log.error("journal not written", object=name, error=str(error))

    async def remember(self) -> None:
        """Read what earlier agents have moved, and close what may have been closed then."""
        if self._remembered is not None:
            return
        sequences = [records for records in await self._journal.sequences() if records[0].action in _FIRST]
        self._remembered = [(records, work) for records in sequences if (work := self._understood(records)) is not None]
        for records, work in self._remembered:
            # What was taken back of an attach has left nothing here that could be closed.
            if verdict_of(tuple(records), boot_id="", resumable=True) is Verdict.OVER:
                continue
            if closed_by(records):
                await self._gate.close(work.move.device, reason="it was being moved when the agent before ended")
            if not was_done(records):
                self._note_coming(work)

    async def recover(self, *, boot_id: str) -> dict[str, Result]:
        """Take up the moves of an earlier agent: bring each to one of its ends; return what is attached now, by device.

        What can't be brought to an end is a trouble and stays closed; it is
        tried again by :meth:`keep_trying`, and by whoever asks for the move again.
        """
        # All of them before the first is gone on with: a step asks whether its device is closed.
        await self.remember()
        known, self._remembered = self._remembered or [], []
        past = superseded(known)
        for records, work in known:
            if records[0].object in past:
                await self._end(records[0].object)
                continue
            async with self.turn(work.move.device):
                await self._take_up(records, work, boot_id=boot_id)
        return dict(self.attached)

    async def _take_up(self, records: Sequence[Record], work: HotMove, *, boot_id: str) -> None:
        device = work.move.device
        self.under_way[device] = work
        try:
            result = await self._runner.recover(self._steps(work), records, boot_id=boot_id)
        except (FarbusError, OSError) as error:
            if self.troubles.get(device) != str(error):
                _log.error("move not finished", device=device, error=str(error))
            self._note_stuck(work, error)
            return
        except Exception as error:
            # A defect in one mechanism must not end what the agent does for others, and each that comes after it.
            _log.exception("defect", device=device)
            self._note_stuck(work, FarbusError(f"a defect: {error!r}"))
            return
        finally:
            self.under_way.pop(device, None)
        if result is None:
            self._note_free(device)
            self._note_kept(work)
            self.changed()
        else:
            await self._note_done(work, result)

    async def last_of(self, device: str) -> tuple[Sequence[Record], HotMove] | None:
        """Return the last move of a device, by the journal."""
        for records in await self._journal.sequences():
            if records[0].object == f"device {device}" and (work := self._understood(records)) is not None:
                return records, work
        return None

    async def try_again(self, *, boot_id: str) -> None:
        """Bring to an end what is stuck, where that goes now."""
        for device in tuple(self.stuck):
            async with self.turn(device):
                await self.unstick(device, boot_id=boot_id)

    async def unstick(self, device: str, *, boot_id: str) -> None:
        """Bring one device's stuck move to an end, where that goes; who calls has its turn."""
        if device in self.stuck and (last := await self.last_of(device)) is not None:
            await self._take_up(*last, boot_id=boot_id)

    async def keep_trying(self, *, boot_id: str) -> None:
        """Do so again and again, until cancelled: a chassis comes back, a removal that hung ends."""
        while True:
            await self._parts.clock.sleep(RETRY_INTERVAL_S)
            await self.try_again(boot_id=boot_id)

    def _understood(self, records: Sequence[Record]) -> HotMove | None:
        if records[0].action not in _FIRST:
            return None
        try:
            return from_body(records[0].body)
        except InvalidInput as error:
            _log.warning("record not understood", record=f"{records[0].object}: {error}")
            return None

    def _steps(
        self,
        work: HotMove,
        told: Callable[[StepNews], None] = _nobody_follows,
        call_off: CallOff | None = None,
    ) -> Steps:
        return Steps(
            object=object_of(work.move),
            body=msgspec.json.encode(work).decode(),
            steps=steps_of(self._parts, work),
            resumable=True,
            told=told,
            call_off=call_off,
        )


def result_of(records: Sequence[Record]) -> Result:
    """Return what all steps of a recorded move gave, as one."""
    whole: Result = {}
    for _, result in sorted(results_of(tuple(records)).items()):
        whole |= result
    return whole
