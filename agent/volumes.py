"""What is asked of volumes whose parts are on this node's drives: made, made larger, removed.

Each order is a sequence of journalled steps (:mod:`farbus.nvmeof.volumes`), one
at a time for a part.  It may be asked for again and again: what is there
already is done.  The truth about what there is are the logical volumes
themselves; a record that is done says nothing any more.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from farbus.agent.journal import Journal
from farbus.agent.journal import Sequence as Records
from farbus.agent.reconcile import Verdict, results_of, verdict_of
from farbus.agent.steps import StepRunner, Steps
from farbus.agent.turns import Turns
from farbus.errors import FarbusError, InvalidInput, NotFound
from farbus.linux.clock import Clock
from farbus.model.storage import identity_of
from farbus.model.value import Value
from farbus.model.volume import MAX_PARTS, VolumePart, check_volume_name
from farbus.nvmeof.target import TargetParts
from farbus.nvmeof.volumes import (
    DropWork,
    MakeWork,
    RemoveWork,
    ResizeWork,
    VolumeParts,
    VolumeWork,
    from_body,
    identity,
    object_of,
    resumable,
    rooms,
    steps_of,
)

_log = structlog.get_logger()

WIPE_AGAIN_S = 60.0
"""Between two tries to wipe what could not be wiped."""

MAX_DRIVES = 128
"""Drives of one part: as many as lvm2 stripes over."""


class VolumeVerb(enum.StrEnum):
    """What is asked for."""

    MAKE = "make"
    RESIZE = "resize"
    REMOVE = "remove"


class VolumeOrder(Value, frozen=True, kw_only=True):
    """Something is asked of a part of a volume."""

    verb: VolumeVerb
    part: VolumePart

    def __str__(self) -> str:
        return f"{self.verb} {self.part.device}"

    def check(self) -> None:
        """Raise :class:`InvalidInput` for what can't be."""
        part = self.part
        check_volume_name(part.volume, field="volume")
        if not (0 < part.parts <= MAX_PARTS and 0 <= part.part < part.parts):
            raise InvalidInput(f"{self}: part {part.part} of {part.parts}")
        if self.verb is VolumeVerb.REMOVE:
            return
        if part.size_bytes <= 0:
            raise InvalidInput(f"{self}: {part.size_bytes} bytes")
        if not 0 < len(part.drives) <= MAX_DRIVES or len(set(part.drives)) < len(part.drives):
            raise InvalidInput(f"{self}: it takes 1 to {MAX_DRIVES} drives, each once")


class GrowOrder(Value, frozen=True, kw_only=True):
    """A volume that a task uses here has become larger: its part has ``size_bytes``."""

    job: str
    task: str
    volume: str
    size_bytes: int

    def __str__(self) -> str:
        return f"grow volume {self.volume} of {self.job}/{self.task}"


async def why_not(order: VolumeOrder | GrowOrder, doing: Awaitable[None]) -> str:
    """Wait for what an order asks for; return why it could not be done, in one line, or an empty string."""
    try:
        await doing
    except FarbusError as error:
        return str(error)
    except OSError as error:
        return f"{order}: {error}"
    except Exception as error:
        # A defect in one mechanism must not end what the agent does for others.
        _log.exception("defect", order=str(order))
        return f"{order}: a defect: {error!r}"
    return ""


class Volumes:
    """Does what is asked of this node's parts of volumes.

    ``close`` and ``open`` say of a device that no lease may have it any more,
    and that one may again; ``lease_of`` tells which has it.  ``changed`` is
    awaited before an answer: the node's devices are told first.
    """

    def __init__(
        self,
        *,
        boot_id: str,
        journal: Journal,
        runner: StepRunner,
        parts: VolumeParts,
        target: TargetParts,
        close: Callable[[str, str], Awaitable[None]],
        open: Callable[[str], Awaitable[None]],
        lease_of: Callable[[str], str],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._boot_id = boot_id
        self._journal = journal
        self._runner = runner
        self._parts = parts
        self._target = target
        self._close = close
        self._open = open
        self._lease_of = lease_of
        self._changed = changed
        self._turns = Turns()
        self.recovered = asyncio.Event()
        """Set once what an earlier agent has left is finished, or undone."""

    async def perform(self, order: VolumeOrder) -> str:
        """Do it; return why it could not be done, in one line, or an empty string."""
        await self.recovered.wait()
        try:
            order.check()
        except InvalidInput as error:
            return str(error)
        async with self._turns.of(order.part.device):
            told = await self._in_turn(order)
        if told:
            _log.warning("volume not changed", order=str(order), error=told)
        else:
            _log.info("volume changed", order=str(order))
        return told

    def turn(self, work: VolumeWork) -> asyncio.Lock:
        """Return what whoever works on a part of a volume, or on a lease's room, has meanwhile."""
        part = work.part.device if isinstance(work, MakeWork | ResizeWork | RemoveWork) else object_of(work)
        return self._turns.of(part)

    async def _in_turn(self, order: VolumeOrder) -> str:
        device = order.part.device
        if order.verb is not VolumeVerb.REMOVE:
            return await self._do(order)
        await self._close(device, "it is being removed")
        try:
            if lease := self._lease_of(device):
                return f"{order}: lease {lease} has it; end what uses it first"
            return await self._do(order)
        finally:
            # Of one that is gone the name may come again.
            await self._open(device)

    async def _do(self, order: VolumeOrder) -> str:
        try:
            return await why_not(order, self._carry_out(order))
        finally:
            await self._changed()

    async def _carry_out(self, order: VolumeOrder) -> None:
        work = await self._work(order)
        await self._runner.perform(self._steps(work))
        if order.verb is VolumeVerb.RESIZE:
            await self._tell_size(work)

    async def _work(self, order: VolumeOrder) -> VolumeWork:
        part = order.part
        found = await self._parts.lvm.find(identity_of(part))
        match order.verb:
            case VolumeVerb.MAKE:
                return MakeWork(part=part)
            case VolumeVerb.REMOVE:
                # Told by what is there: who asks may not know it.
                return RemoveWork(part=msgspec.structs.replace(part, size_bytes=found.size_bytes if found else 0))
        if found is None:
            raise NotFound(f"{order}: this node does not store it", hint="farbus volume list shows who does")
        # What was cut off before counts from where it had ended then.
        before = found.unwiped_from if found.unwiped_from > 0 else found.size_bytes
        return ResizeWork(part=msgspec.structs.replace(part, drives=found.drives), before_bytes=before)

    async def _tell_size(self, work: VolumeWork) -> None:
        """Have the kernel tell initiators of a part's new size."""
        found = await self._parts.lvm.find(identity(work))
        if found is None:
            return
        for subsystem in (await self._target.nvmet.target()).subsystems:
            for namespace in subsystem.namespaces:
                if subsystem.is_ours and namespace.device == found.path:
                    await self._target.nvmet.revalidate_size(subsystem.nqn, namespace.nsid)

    def _steps(self, work: VolumeWork) -> Steps:
        return Steps(
            object=object_of(work),
            body=msgspec.json.encode(work).decode(),
            steps=steps_of(self._parts, work),
            resumable=resumable(work),
        )

    async def recover(self, group: asyncio.TaskGroup) -> None:
        """Bring to an end what an earlier agent was doing; what it had done is left as it is, whatever became of it.

        Each part has its own task, which has its turn before anybody asks for anything.
        """
        try:
            for records in await self._journal.sequences():
                if records[0].action not in _FIRST:
                    continue
                try:
                    work = from_body(records[0].body)
                except InvalidInput as error:
                    _log.warning("record not understood", record=f"{records[0].object}: {error}")
                    continue
                verdict = verdict_of(records, boot_id=self._boot_id, resumable=resumable(work))
                if verdict not in (Verdict.FORWARD, Verdict.BACK):
                    continue
                self._runner.continue_from(records)
                turn = self.turn(work)
                await turn.acquire()
                group.create_task(self._take_up(work, verdict, records, turn), name=f"take up {object_of(work)}")
        finally:
            self.recovered.set()

    async def _take_up(self, work: VolumeWork, verdict: Verdict, records: Records, turn: asyncio.Lock) -> None:
        steps = self._steps(work)
        try:
            if verdict is Verdict.FORWARD:
                await self._forward_or_back(steps, results_of(records))
            else:
                await self._runner.back(steps)
        except (FarbusError, OSError) as error:
            # The scheduler asks for it again, or for its removal.
            _log.error("neither finished nor undone", object=steps.object, error=str(error))
        except Exception:
            # A defect in one mechanism must not end what the agent does for others, and each that comes after it.
            _log.exception("defect", object=steps.object)
        else:
            _log.info("finished or undone", object=steps.object)
        finally:
            turn.release()
        await self._changed()

    async def _forward_or_back(self, steps: Steps, known: dict[int, dict[str, str]]) -> None:
        try:
            await self._runner.forward(steps, known=known)
        except FarbusError as error:
            _log.warning("not gone on with", object=steps.object, error=str(error))
            await self._runner.back(steps)


_FIRST = frozenset({"CreatePart", "ExtendPart", "RetirePart"})
"""Kinds of step that work on volumes begins with: by these its records are known from those of leases."""


class Wiper:
    """Wipes and removes the room of leases that are over, one after the other, behind everybody's back.

    Whose it was does not wait for it: it may take as long as its drives take to
    be written.  What is to be wiped says so on the drives, so nothing is forgotten.
    """

    def __init__(
        self,
        *,
        runner: StepRunner,
        parts: VolumeParts,
        clock: Clock,
        turn: Callable[[VolumeWork], asyncio.Lock],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._runner = runner
        self._turn = turn
        self._parts = parts
        self._clock = clock
        self._changed = changed
        self._soon = asyncio.Event()
        self.troubles: dict[str, str] = {}
        """What can't be wiped, by lease, with why."""

    async def ended(self) -> None:
        """Hear that room is to be wiped; return once the node's devices say that it is not free yet."""
        await self._changed()
        self._soon.set()

    async def run(self) -> None:
        """Wipe whatever there is, until cancelled; what can't be is tried again."""
        while True:
            self._soon.clear()
            left = await self.wipe_all()
            if not left:
                await self._soon.wait()
                continue
            timer = asyncio.create_task(self._clock.sleep(WIPE_AGAIN_S), name="wipe again")
            soon = asyncio.create_task(self._soon.wait(), name="wipe soon")
            try:
                await asyncio.wait({timer, soon}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                soon.cancel()

    async def wipe_all(self) -> bool:
        """Wipe and remove what is marked; say whether anything is left."""
        left = False
        try:
            found = [room for room in await rooms(self._parts) if room.going]
        except FarbusError as error:
            _log.warning("room of leases not looked at", reason=str(error))
            return True
        for room in found:
            work = DropWork(lease=room.identity.lease, size_bytes=room.size_bytes)
            steps = Steps(
                object=object_of(work), body=msgspec.json.encode(work).decode(), steps=steps_of(self._parts, work)
            )
            try:
                async with self._turn(work):
                    await self._runner.perform(steps)
            except (FarbusError, OSError) as error:
                left = True
                if self.troubles.get(work.lease) != str(error):
                    _log.error("room not wiped", lease=work.lease, error=str(error))
                self.troubles[work.lease] = str(error)
                continue
            self.troubles.pop(work.lease, None)
            _log.info("room wiped", lease=work.lease, bytes=room.size_bytes)
            await self._changed()
        return left
