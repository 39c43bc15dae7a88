"""All of an emulator: chassis over one state, each in both dialects."""

from __future__ import annotations

from farbus.hotplug.fabric.emulator.chassis import Backend, EmulatedChassis, NoBackend
from farbus.hotplug.fabric.emulator.config import EmulatorConfig
from farbus.hotplug.fabric.emulator.front import Running
from farbus.hotplug.fabric.emulator.h3 import H3Front
from farbus.hotplug.fabric.emulator.redfish import RedfishFront
from farbus.hotplug.fabric.emulator.store import Store
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.linux.clock import Clock


class Emulator:
    """Chassis with their fronts, over one store. :meth:`reconcile` once before anything is asked of them."""

    def __init__(
        self,
        config: EmulatorConfig,
        store: Store,
        *,
        clock: Clock,
        credentials: Credentials | None = None,
        backends: dict[str, Backend] | None = None,
    ) -> None:
        self.chassis: dict[str, EmulatedChassis] = {}
        self.h3: dict[str, H3Front] = {}
        self.redfish: dict[str, RedfishFront] = {}
        self._running = Running()
        for number, each in enumerate(config.chassis):
            chassis = EmulatedChassis(
                each,
                store,
                clock=clock,
                backend=(backends or {}).get(each.name, NoBackend()),
                seed=config.seed + 1000 * number,
                speed=config.speed,
            )
            self.chassis[each.name] = chassis
            self.h3[each.name] = H3Front(chassis, running=self._running)
            self.redfish[each.name] = RedfishFront(chassis, clock=clock, running=self._running, credentials=credentials)

    async def reconcile(self) -> list[str]:
        """Finish or undo what an earlier process has begun; return what could not be."""
        return [trouble for chassis in self.chassis.values() for trouble in await chassis.reconcile()]

    async def stop(self) -> None:
        """End what runs, as a power cut does; the state stays."""
        await self._running.stop()
        for chassis in self.chassis.values():
            await chassis.close()
