"""One chassis, served: calls wait for their turn, steps are verified by reading, times are measured, deadlines learned.

What is believed, and why:

* An answer is a hint.  A step is done when a reading says so.
* A reading may be stale once (a cache that is renewed by being asked).  So one
  reading is enough where it agrees with an accepted answer; what contradicts
  it, or stands alone, is believed when a second one in a row agrees.
* A device that is not listed any more is told as missing after
  ``CONFIRM_READS`` readings, and never just left out.
* Every step is repeatable: before it is asked for again, the chassis is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from farbus.errors import FarbusError, NotFound, Unavailable
from farbus.hotplug.fabric.driver import Answer, Driver
from farbus.hotplug.fabric.errors import (
    BadReply,
    ChassisBusy,
    ChassisRefused,
    ChassisSilent,
    ChassisUnavailable,
    DeviceElsewhere,
    DeviceVanished,
    MoveStranded,
    MoveUndone,
    OutcomeUnknown,
    StepRefused,
)
from farbus.linux.clock import Clock
from farbus.model.fabric import (
    MAX_MISSING,
    ChassisView,
    FabricDevice,
    FabricStep,
    StepHistory,
    StepTime,
    StrandedDevice,
)

MAX_WAITING = 256
"""Calls that may wait for their turn: at half a minute each that is two hours, longer than anybody waits."""

READ_ATTEMPTS = 5
CONFIRM_READS = 3
"""Readings that must lack a known device before it is told as missing."""

VERIFY_READS = 3
"""Readings in a row that must show the old state before an accepted step counts as not done."""

MAX_SETTLE_READS = 10
"""Readings that may contradict each other before that is an error of its own."""

FRESH_S = 5.0
"""Seconds for which a reading does instead of another before a device is assigned: a chassis refuses one that is taken.

Not before it is unassigned: H3's chassis takes a device from whichever port has it.
"""

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 10.0
"""Between attempts: the first, and what doubling it leads to."""


class Heard(enum.StrEnum):
    """What came of asking, before anything was read."""

    ACCEPTED = "accepted"
    DENIED = "denied"
    BUSY = "busy"
    BROKEN = "broken"
    SILENT = "silent"


ATTEMPTS = {
    # KubeComp needed up to ten calls where several were made at once.
    Heard.BUSY: 10,
    Heard.BROKEN: 5,
    Heard.DENIED: 3,
    Heard.ACCEPTED: 2,
    # Each costs a deadline.
    Heard.SILENT: 2,
}
"""How often a step is asked for that ends so every time."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Call:
    work: Callable[[], Awaitable[Any]]
    done: asyncio.Future[Any]


def _nothing(_: object) -> None:
    """Where nobody wants to be told."""


class ChassisService:
    """A :class:`farbus.hotplug.fabric.driver.Fabric` over a driver, owned by one process at a time.

    Inside ``async with service.running():`` its workers take calls in their
    order, as many at once as the driver says; two steps of one device never
    overlap.  ``on_time`` is called with each measured time, so that its owner
    can keep ``history``; ``on_view`` with each reading; ``tell`` with one line about whatever had to be tried
    again.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        clock: Clock,
        history: StepHistory | None = None,
        on_time: Callable[[StepTime], None] = _nothing,
        on_view: Callable[[ChassisView], None] = _nothing,
        tell: Callable[[str], None] = _nothing,
    ) -> None:
        self.chassis = driver.chassis
        self.history = history or StepHistory()
        self.stranded: dict[str, StrandedDevice] = {}
        self._driver = driver
        self._clock = clock
        self._on_time = on_time
        self._on_view = on_view
        self._tell = tell
        self._queue: asyncio.Queue[_Call] = asyncio.Queue(MAX_WAITING)
        self._known: dict[str, FabricDevice] = {}
        self._missing: dict[str, FabricDevice] = {}
        self._seen_at: dict[str, str] = {}
        """Of stranded devices: the port where the newest reading has each."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._last: tuple[float, ChassisView] | None = None
        """When the newest reading ended, and what it gave; None once something was asked for since."""
        self._is_running = False
        self._listing: asyncio.Future[ChassisView] | None = None
        """The listing that waits as the last of all calls; done or None where none does."""
        self._listeners = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ChassisService]:
        """Serve calls inside the block. At its end what has begun is left to the chassis, what waits is refused."""
        # No task group: it would wrap the errors of the block in a group, and workers raise none.
        workers = [
            asyncio.create_task(self._work(), name=f"chassis {self.chassis} {number}")
            for number in range(self._driver.parallel)
        ]
        self._is_running = True
        try:
            yield self
        finally:
            self._is_running = False
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            while not self._queue.empty():
                self._refuse(self._queue.get_nowait())
            await self._driver.close()

    def expected_s(self, step: FabricStep) -> float:
        """See :class:`Fabric`."""
        return self.history.expected_s(step)

    def deadline_s(self, step: FabricStep) -> float:
        """See :class:`Fabric`."""
        return self.history.deadline_s(step)

    async def list(self) -> ChassisView:
        """See :class:`Fabric`. Callers share a reading that has not begun, unless a step was asked for in between."""
        listing = self._listing
        if listing is None or listing.done():
            listing = self._queued(self._list)
            self._listing, self._listeners = listing, 0
        self._listeners += 1
        try:
            # One caller who leaves does not end what others wait for.
            return await asyncio.shield(listing)
        except asyncio.CancelledError:
            if self._listing is listing:
                self._listeners -= 1
                if not self._listeners:
                    listing.cancel()
            raise

    async def _list(self) -> ChassisView:
        # Who comes now could be told what was there before the call: that is the next reading's.
        self._listing = None
        return await self._read()

    async def assign(self, device: str, port: str) -> FabricDevice:
        """See :class:`Fabric`."""
        return await self._call(lambda: self._assign(device, port))

    async def unassign(self, device: str, *, source: str = "") -> FabricDevice:
        """See :class:`Fabric`."""
        return await self._call(lambda: self._unassign(device, source))

    async def move(self, device: str, port: str) -> FabricDevice:
        """See :class:`Fabric`."""
        return await self._call(lambda: self._move(device, port))

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        self._listing = None
        return await self._queued(work)

    def _queued(self, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        if not self._is_running:
            raise Unavailable(f"chassis {self.chassis}: is not served here now")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Call(work, done))
        except asyncio.QueueFull:
            raise Unavailable(
                f"chassis {self.chassis}: {MAX_WAITING} calls wait for it already", hint="try again later"
            ) from None
        return done

    async def _work(self) -> None:
        while True:
            call = await self._queue.get()
            if call.done.cancelled():
                continue
            try:
                result = await call.work()
            except asyncio.CancelledError:
                self._refuse(call)
                raise
            except Exception as error:
                self._fail(call, error)
            else:
                if not call.done.done():
                    call.done.set_result(result)

    def _refuse(self, call: _Call) -> None:
        self._fail(
            call, OutcomeUnknown(f"chassis {self.chassis}: no longer served here", hint="read it before anything else")
        )

    @staticmethod
    def _fail(call: _Call, error: Exception) -> None:
        if not call.done.done():
            call.done.set_exception(error)
            # Asked for here once: of a listing all callers may have left, and asyncio would print it for nobody.
            call.done.exception()

    # Reading.

    async def _read(self) -> ChassisView:
        """Read until it succeeds and no known device is lacking by chance."""
        view = await self._read_once()
        for _ in range(CONFIRM_READS - 1):
            lacking = self._lacking(view) - self._missing.keys()
            if not lacking:
                break
            self._tell(f"chassis {self.chassis}: not listed: {', '.join(sorted(lacking))}: reading again")
            view = await self._read_once()
        for name in self._lacking(view):
            self._missing.setdefault(name, self._known[name])
        for device in view.devices:
            self._missing.pop(device.id, None)
            self._known[device.id] = device
            self._note_stranded(device)
        while len(self._missing) > MAX_MISSING:
            # The one that has been missing the longest.
            name = next(iter(self._missing))
            del self._missing[name], self._known[name]
        view = msgspec.structs.replace(view, missing=tuple(self._missing[name] for name in sorted(self._missing)))
        self._last = (self._clock.monotonic(), view)
        self._on_view(view)
        return view

    def _note_stranded(self, device: FabricDevice) -> None:
        """Strike out a stranded device that two readings in a row have at a port: one alone may be stale."""
        if device.id not in self.stranded:
            return
        if device.port and self._seen_at.get(device.id) == device.port:
            self._rescued(device.id)
        else:
            self._seen_at[device.id] = device.port

    def _rescued(self, device: str) -> None:
        self.stranded.pop(device, None)
        self._seen_at.pop(device, None)

    async def _listed(self, name: str, *, lately: bool = False) -> tuple[ChassisView, FabricDevice]:
        """Return a reading that has the device of that name; raise :class:`NotFound` when a second has it neither."""
        view = await (self._read_lately() if lately else self._read())
        try:
            return view, view.device(name)
        except NotFound:
            # What was never seen before could not be missed: the first reading may lack it by chance.
            view = await self._read()
            return view, view.device(name)

    async def _read_lately(self) -> ChassisView:
        """Return the newest reading while it is fresh, else read."""
        if self._last is not None and self._clock.monotonic() - self._last[0] < FRESH_S:
            return self._last[1]
        return await self._read()

    def _lacking(self, view: ChassisView) -> set[str]:
        return self._known.keys() - {device.id for device in view.devices}

    async def _read_once(self) -> ChassisView:
        """Read once with success; what fails is tried again, ``READ_ATTEMPTS`` times."""
        for attempt in range(1, READ_ATTEMPTS + 1):
            started = self._clock.monotonic()
            deadline_s = self.deadline_s(FabricStep.LIST)
            try:
                async with asyncio.timeout(deadline_s):
                    view = await self._driver.read()
                    if told := view.contradiction() or view.excess():
                        raise BadReply(f"chassis {self.chassis}: {told}")
            except TimeoutError as error:
                self._measure(FabricStep.LIST, deadline_s, finished=False)
                failure: FarbusError = ChassisSilent(f"chassis {self.chassis}: not read after {deadline_s:.0f} s")
                failure.__cause__ = error
            except (ChassisUnavailable, BadReply) as error:
                failure = error
            else:
                self._measure(FabricStep.LIST, self._clock.monotonic() - started)
                return view
            if attempt < READ_ATTEMPTS:
                if attempt == 1:
                    self._tell(f"{failure.message}: reading again")
                await self._pause(attempt)
        raise failure

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)))

    def _measure(self, step: FabricStep, seconds: float, *, finished: bool = True) -> None:
        time = StepTime(step=step, seconds=seconds, finished=finished)
        self.history = self.history.with_time(time)
        self._on_time(time)

    # Steps.

    async def _assign(self, name: str, port_name: str) -> FabricDevice:
        device, port = await self._find(name, port_name)
        async with self._turn(device) as now:
            device = await self._surely(now, lambda at: at == "")
            if device.port == port:
                return device
            if device.port:
                raise DeviceElsewhere(
                    f"chassis {self.chassis}: device {device.id} is at port {device.port}, not free for {port}",
                    at=device.port,
                    hint="unassign it there first, when no node uses it",
                )
            return await self._step(FabricStep.ASSIGN, device, port)

    async def _unassign(self, name: str, source: str) -> FabricDevice:
        view, device = await self._listed(name)
        source = view.port(source).id if source else ""
        async with self._turn(device) as now:
            device = await self._surely(now, lambda at: at == source if source else at != "")
            if not device.port:
                return device
            if source and device.port != source:
                raise DeviceElsewhere(
                    f"chassis {self.chassis}: device {device.id} is assigned to port {device.port}, not {source}",
                    at=device.port,
                    hint="somebody has moved it meanwhile: look before you take it from there",
                )
            return await self._step(FabricStep.UNASSIGN, device, "")

    @contextlib.asynccontextmanager
    async def _turn(self, device: FabricDevice) -> AsyncIterator[FabricDevice]:
        """Have a device to oneself; it is read again by who has waited: another step has ended meanwhile."""
        lock = self._locks.setdefault(device.id, asyncio.Lock())
        has_waited = lock.locked()
        async with lock:
            yield await self._device_again(device) if has_waited else device

    async def _find(self, name: str, port_name: str) -> tuple[FabricDevice, str]:
        view, device = await self._listed(name, lately=True)
        port = view.port(port_name).id
        if not self._driver.has_port(port):
            # As a device, it may be lacking by chance.
            view, device = await self._listed(name)
            if not self._driver.has_port(port):
                raise NotFound(
                    f"chassis {self.chassis}: port {port} is configured, and the chassis has none of that name",
                    hint="correct ports in the fabric's configuration; farbus fabric ports shows the chassis' own too",
                )
        return device, port

    async def _surely(self, device: FabricDevice, is_usual: Callable[[str], bool]) -> FabricDevice:
        """Return ``device`` as two readings in a row have it, unless it is where a step needs it to be.

        Nothing will be asked of the chassis then, so nothing else would find out that the reading was stale.
        """
        for _ in range(MAX_SETTLE_READS):
            if is_usual(device.port):
                return device
            again = await self._device_again(device)
            if again.port == device.port:
                return again
            device = again
        raise self._unsteady(device)

    def _unsteady(self, device: FabricDevice) -> FarbusError:
        return BadReply(
            f"chassis {self.chassis}: device {device.id} is elsewhere in each of {MAX_SETTLE_READS} readings",
            hint="does somebody else move it?",
        )

    async def _device_again(self, device: FabricDevice) -> FabricDevice:
        try:
            return (await self._read()).device(device.id)
        except NotFound as error:
            raise DeviceVanished(f"chassis {self.chassis}: device {device.id} is not listed any more") from error

    async def _step(self, step: FabricStep, device: FabricDevice, wanted: str) -> FabricDevice:
        """Ask for a step until a reading shows that it is done; raise what is known when it is not.

        ``device`` was read before; ``wanted`` is the port where it shall be, empty for none.
        """
        before = device.port
        asked: dict[Heard, int] = {}
        attempt = 0
        while True:
            attempt += 1
            heard, seconds, words = await self._ask(step, device, wanted)
            try:
                now = await self._settle(device, wanted, heard)
            except (ChassisUnavailable, ChassisSilent, ChassisRefused, BadReply) as error:
                what = f"chassis {self.chassis}: {_what(step, device, wanted)}: {words}"
                raise OutcomeUnknown(
                    f"{what}, and it can't be read: {error.message}",
                    hint="whether it was done is not known; read the chassis before anything else is done",
                ) from error
            if now.port == wanted:
                if wanted:
                    self._rescued(device.id)
                if heard in (Heard.ACCEPTED, Heard.DENIED):
                    self._measure(step, seconds)
                return now
            if now.port != before:
                raise DeviceElsewhere(
                    f"chassis {self.chassis}: {_what(step, device, wanted)}: it is at "
                    f"{f'port {now.port}' if now.port else 'no port'} now",
                    at=now.port,
                    hint="somebody else moves devices of this chassis",
                )
            asked[heard] = asked.get(heard, 0) + 1
            if asked[heard] >= ATTEMPTS[heard]:
                raise self._failure(step, device, wanted, heard, words)
            self._tell(f"chassis {self.chassis}: {_what(step, device, wanted)}: {words}, and not done: asking again")
            await self._pause(attempt)
            device = now

    async def _ask(self, step: FabricStep, device: FabricDevice, wanted: str) -> tuple[Heard, float, str]:
        """Ask once; return what was heard, after how many seconds, and in which words."""
        started = self._clock.monotonic()
        deadline_s = self.deadline_s(step)
        self._last = None
        try:
            async with asyncio.timeout(deadline_s):
                if step is FabricStep.ASSIGN:
                    answer = await self._driver.ask_assign(device, wanted)
                else:
                    answer = await self._driver.ask_unassign(device)
        except TimeoutError:
            self._measure(step, deadline_s, finished=False)
            words = f"no answer after {deadline_s:.0f} s"
            self._tell(f"chassis {self.chassis}: {_what(step, device, wanted)}: {words}: reading what became of it")
            return Heard.SILENT, deadline_s, words
        except ChassisBusy as error:
            answer, heard = Answer(False, error.message), Heard.BUSY
        except (ChassisUnavailable, BadReply) as error:
            answer, heard = Answer(False, error.message), Heard.BROKEN
        else:
            heard = Heard.ACCEPTED if answer.accepted else Heard.DENIED
        words = answer.remark.removeprefix(f"chassis {self.chassis}: ")
        if heard is Heard.ACCEPTED:
            words = "it says that it is done"
        elif heard is Heard.DENIED:
            words = f"it says no ({words})" if words else "it says no"
        return heard, self._clock.monotonic() - started, words

    async def _settle(self, device: FabricDevice, wanted: str, heard: Heard) -> FabricDevice:
        """Read what became of a step; see the module's text for what is believed."""
        in_a_row = 0
        last: str | None = None
        needed = {
            wanted: 1 if heard is Heard.ACCEPTED else 2,
            device.port: VERIFY_READS if heard is Heard.ACCEPTED else 2,
        }
        for _ in range(MAX_SETTLE_READS):
            now = await self._device_again(device)
            in_a_row = in_a_row + 1 if now.port == last else 1
            last = now.port
            if in_a_row >= needed.get(now.port, 2):
                return now
            if now.port != wanted:
                await self._pause(in_a_row)
        raise self._unsteady(device)

    def _failure(self, step: FabricStep, device: FabricDevice, wanted: str, heard: Heard, words: str) -> FarbusError:
        what = f"chassis {self.chassis}: {_what(step, device, wanted)}: {words}"
        at = f"it is still at port {device.port}" if device.port else "it is still free"
        match heard:
            case Heard.DENIED:
                return StepRefused(f"{what}; {at}", hint="look at the chassis' own log")
            case Heard.BUSY:
                return ChassisBusy(f"{what}; {at}", hint="try again later")
            case Heard.SILENT:
                return ChassisSilent(f"{what}; {at}, and may yet be done", hint="read the chassis before trying again")
            case Heard.ACCEPTED:
                return BadReply(f"{what}, but {at}", hint="look at the chassis' own log")
            case Heard.BROKEN:
                return ChassisUnavailable(f"{what}; {at}", hint="try again later")

    # Moving.

    async def _move(self, name: str, port_name: str) -> FabricDevice:
        device, target = await self._find(name, port_name)
        device = await self._surely(device, lambda at: at not in ("", target))
        source = device.port
        if source == target:
            return device
        if not source:
            return await self._assign(device.id, target)
        try:
            await self._unassign(device.id, source)
        except (OutcomeUnknown, ChassisSilent) as error:
            # It may have been taken away; the next reading that has it at a port strikes this out.
            self._strand(device, source, target, error)
            raise
        try:
            return await self._assign(device.id, target)
        except FarbusError as error:
            return await self._put_back(device, source, target, error)

    def _strand(self, device: FabricDevice, source: str, target: str, cause: FarbusError) -> StrandedDevice:
        stranded = StrandedDevice(
            chassis=self.chassis, device=device.id, source=source, target=target, cause=cause.message
        )
        self.stranded[device.id] = stranded
        self._seen_at.pop(device.id, None)
        return stranded

    async def _put_back(self, device: FabricDevice, source: str, target: str, cause: FarbusError) -> FabricDevice:
        """Give a device back to ``source``, since ``target`` could not have it; raise what it has come to."""
        self._tell(f"{cause.message}: giving it back to port {source}")
        stranded = self._strand(device, source, target, cause)
        try:
            await self._assign(device.id, source)
        except DeviceElsewhere as error:
            if error.at != target:
                raise
            # What was asked for, and looked as if it would not come, has come.
            self._rescued(device.id)
            return msgspec.structs.replace(device, port=target)
        except FarbusError as error:
            raise MoveStranded(
                msgspec.structs.replace(stranded, cause=f"{cause.message}; and back: {error.message}")
            ) from error
        raise MoveUndone(f"{cause.message}; it is back at port {source}", hint=cause.hint) from cause


def _what(step: FabricStep, device: FabricDevice, wanted: str) -> str:
    if step is FabricStep.ASSIGN:
        return f"assign {device.id} to port {wanted}"
    return f"unassign {device.id} from port {device.port}"
