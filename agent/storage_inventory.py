"""What a node stores for others: drives of its volume group, parts of volumes on them, and how they fare.

lvm2 is asked when something has changed, and else every few minutes; the health
of drives is read as seldom.  How fast a drive is stands in the settings, or is
measured once in its life here, as a step of the journal.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.journal import Journal
from farbus.agent.reconcile import results_of
from farbus.agent.steps import Result, StepRunner, Steps
from farbus.errors import FarbusError
from farbus.linux.clock import Clock
from farbus.linux.drive_speed import DriveSpeed
from farbus.linux.lvm import Lvm
from farbus.linux.nvme import NvmeFabrics
from farbus.linux.side_by_side import side_by_side
from farbus.model.device import Device, DeviceKind
from farbus.model.nvmeof import SmartLog
from farbus.model.storage import LogicalVolume, StorageDrive
from farbus.model.volume import GOOD, HEALTH, part_id

_log = structlog.get_logger()

ASK_S = 300.0
"""How often lvm2 is asked where nothing is known to have changed: it reads every drive."""

SMART_S = 600.0
"""How often drives are asked how they fare."""

SMART_DEADLINE_S = 10.0

SMART_AT_ONCE = 16
"""Drives that are asked at a time: a shelf of them that does not answer holds up a look for some deadlines, not all."""

HEALTH_CHARACTERS = 1000
"""Most that is told of what is wrong with a drive or a part: a part may be on 64 drives, and the scheduler takes no
report with more than 4,096 characters of anything."""

MEASURE_DEADLINE_S = 30.0
"""Longest for half a second of reading: a drive may sleep, or be full of others' work."""

CONFIGURED, MEASURED = "configured", "measured"


@dataclass(frozen=True, kw_only=True)
class MeasureDrive:
    """How fast a drive reads is on record."""

    speed: DriveSpeed
    drive: StorageDrive
    kind: str = "MeasureDrive"
    deadline_s: float = MEASURE_DEADLINE_S
    lasting: bool = True

    @property
    def identity(self) -> str:
        """The drive."""
        return f"drive {self.drive.id}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The drive."""
        return (self.drive.id,)

    async def observe(self, known: Result | None) -> Result | None:
        """A drive does not become another one."""
        return known

    async def do(self) -> Result:
        """Read for a moment."""
        return {"bytes_per_s": str(await self.speed.read_bytes_per_s(self.drive.path))}

    async def compensate(self) -> None:
        """Nothing was changed."""


class StorageInventory:
    """Looks at the volume group, and remembers what it has seen."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        lvm: Lvm,
        nvme: NvmeFabrics,
        speed: DriveSpeed,
        journal: Journal,
        runner: StepRunner,
        clock: Clock,
    ) -> None:
        self._config = config
        self._lvm = lvm
        self._nvme = nvme
        self._speed = speed
        self._journal = journal
        self._runner = runner
        self._clock = clock
        self._asked_at: float | None = None
        self._changed = True
        self._speeds: dict[str, int] | None = None
        self._smart_at: dict[str, float] = {}
        self.drives: tuple[StorageDrive, ...] = ()
        self.volumes: tuple[LogicalVolume, ...] = ()
        self.smart: dict[str, SmartLog] = {}
        """What each drive has said of its health, by its id."""
        self._unmeasured: dict[str, str] = {}
        self._told: dict[str, str] = {}

    def changed(self) -> None:
        """Have lvm2 asked with the next look."""
        self._changed = True

    async def offer(self, found: Sequence[Device]) -> tuple[Device, ...]:
        """Return the node's devices with the group's drives as they are offered, and the parts of volumes.

        Raises what kept lvm2 from being asked.
        """
        now = self._clock.monotonic()
        if self._changed or self._asked_at is None or now - self._asked_at >= ASK_S:
            # What changes meanwhile is seen by the next look.
            self._changed = False
            try:
                self.drives, self.volumes = await self._lvm.drives(), await self._lvm.volumes()
            except FarbusError:
                self._changed = True
                raise
            self._asked_at = now
        group = {drive.id: drive for drive in self.drives}
        self._forget_but({drive.id for drive in self.drives if not drive.missing})
        await side_by_side(lambda drive: self._look_at_health(drive, now), self.drives, most=SMART_AT_ONCE)
        for name, trouble in self.troubles().items():
            if self._told.get(name) != trouble:
                _log.warning("drive in trouble", drive=name, reason=trouble)
        self._told = self.troubles()
        offered = [await self._offered(device, group[device.id]) if device.id in group else device for device in found]
        return (*offered, *self._parts())

    def _forget_but(self, here: Collection[str]) -> None:
        """Of drives that are not here nothing is told: another node may have one by now."""
        for kept in (self.smart, self._smart_at, self._unmeasured):
            for drive in kept.keys() - here:
                del kept[drive]

    def troubles(self) -> dict[str, str]:
        """Return what is wrong with drives of the group, in words, by their ids."""
        found = {drive.id: "it is missing" for drive in self.drives if drive.missing}
        for name, log in self.smart.items():
            if log.troubles:
                found.setdefault(name, "; ".join(log.troubles))
        return found | {name: why for name, why in self._unmeasured.items() if name not in found}

    def _health(self, drives: Sequence[str]) -> str:
        troubles = self.troubles()
        return _in_words("; ".join(f"{drive}: {troubles[drive]}" for drive in drives if drive in troubles)) or GOOD

    async def _offered(self, device: Device, drive: StorageDrive) -> Device:
        rate, source = await self._bandwidth(device, drive)
        return msgspec.structs.replace(
            device,
            memory_bytes=drive.free_bytes + self._given(drive.id),
            bandwidth_bytes_per_s=rate,
            attributes={
                **device.attributes,
                "volume_group": self._config.volume_group,
                "bandwidth": source,
                HEALTH: _in_words(self.troubles().get(device.id, GOOD)),
            },
        )

    def _given(self, drive: str) -> int:
        """Return the bytes of a drive that volumes and leases have: neither what is being wiped, nor anybody else's."""
        return sum(
            volume.size_bytes // len(volume.drives)
            for volume in self.volumes
            if drive in volume.drives and not volume.going
        )

    def _parts(self) -> tuple[Device, ...]:
        return tuple(
            Device(
                id=part_id(volume.identity.volume, volume.identity.part),
                kind=DeviceKind.VOLUME,
                model="volume",
                memory_bytes=volume.size_bytes,
                attributes={
                    "size": str(volume.size_bytes),
                    "parts": str(volume.identity.parts),
                    "drives": ",".join(volume.drives),
                    HEALTH: self._health(volume.drives),
                },
            )
            for volume in self.volumes
            # Of one that is being made nobody has heard yet; what is added to one is wiped behind its end.
            if volume.identity.volume and not volume.going and volume.unwiped_from != 0
        )

    # How fast.

    async def _bandwidth(self, device: Device, drive: StorageDrive) -> tuple[int, str]:
        for pattern, rate in self._config.drive_bandwidth.items():
            if fnmatch.fnmatchcase(device.id, pattern) or fnmatch.fnmatchcase(device.model.lower(), pattern.lower()):
                return rate, CONFIGURED
        if drive.missing:
            return 0, MEASURED
        if self._speeds is None:
            self._speeds = await self._recorded()
        if drive.id not in self._speeds:
            steps = Steps(object=f"drive {drive.id}", body="{}", steps=(MeasureDrive(speed=self._speed, drive=drive),))
            try:
                result = await self._runner.forward(steps)
            except FarbusError as error:
                # It is offered when it can be read.
                self._unmeasured[drive.id] = str(error)
                return 0, MEASURED
            self._unmeasured.pop(drive.id, None)
            self._speeds[drive.id] = int(result["bytes_per_s"])
            _log.info("drive measured", drive=drive.id, bytes_per_s=self._speeds[drive.id])
        return self._speeds[drive.id], MEASURED

    async def _recorded(self) -> dict[str, int]:
        found = {}
        for records in await self._journal.sequences():
            if records[0].action == "MeasureDrive" and (result := results_of(records).get(0)) is not None:
                found[records[0].object.removeprefix("drive ")] = int(result["bytes_per_s"])
        return found

    # How it fares.

    async def _look_at_health(self, drive: StorageDrive, now: float) -> None:
        at = self._smart_at.get(drive.id)
        if not drive.controller or (at is not None and now - at < SMART_S):
            return
        self._smart_at[drive.id] = now
        try:
            async with asyncio.timeout(SMART_DEADLINE_S):
                self.smart[drive.id] = await self._nvme.smart_log(drive.controller)
        except TimeoutError:
            _log.warning("health of a drive not read", drive=drive.id, reason=f"no answer in {SMART_DEADLINE_S:g} s")
        except FarbusError as error:
            _log.warning("health of a drive not read", drive=drive.id, reason=str(error))


def _in_words(text: str) -> str:
    """Return what is wrong as far as others take it: on one line, and not for ever."""
    line = "".join(one if one.isprintable() else " " for one in text)
    return line if len(line) <= HEALTH_CHARACTERS else f"{line[: HEALTH_CHARACTERS - 3]}..."
