"""KubeComp's testbed replayed in virtual time: which reconfigurations end before which deadline.

From data are the times of each step (:data:`KUBECOMP`), the size of the
testbed, how many reconfigurations were logged (53 with their sizes) and the
published deadline of 15 + 5 n seconds for n GPUs.  Drawn from ``seed`` are
each time and each size: the log has 72 moved GPUs in 57 reconfigurations, so a
size is 1 and with a chance of 72/57 - 1 it is 2.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from farbus.errors import FarbusError
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig
from farbus.hotplug.fabric.emulator.emulator import Emulator
from farbus.hotplug.fabric.emulator.faults import Rates
from farbus.hotplug.fabric.emulator.front import LocalTransport
from farbus.hotplug.fabric.emulator.store import Store
from farbus.hotplug.fabric.emulator.virtual import LoopClock, run_virtually
from farbus.hotplug.fabric.h3 import H3Driver
from farbus.hotplug.fabric.service import ChassisService
from farbus.model.fabric import FabricStep, StepTime, quantile
from farbus.model.value import Value

RECONFIGURATIONS = 53
LOGGED_LATE = 46
MOVED_OF = 72 / 57
GPUS = 8
PORTS = ("30h", "31h")


def published_deadline_s(gpus: int) -> float:
    """Return KubeComp's own deadline for a reconfiguration of ``gpus`` GPUs, in seconds."""
    return 15.0 + 5.0 * gpus


class Reconfiguration(Value, frozen=True, kw_only=True):
    """One replayed reconfiguration, times in virtual seconds.

    ``bare_s`` is what KubeComp's own sequence would have taken: one listing, and the steps, without verifying them.
    ``learned_deadline_s`` is the sum of the deadlines of its steps as they
    were learned before it; ``tightest`` the largest part of its deadline that one of its steps took.
    """

    gpus: int
    took_s: float
    bare_s: float
    published_deadline_s: float
    learned_deadline_s: float
    tightest: float
    failed: bool = False


class Replay(Value, frozen=True, kw_only=True):
    """A whole replay and its counts."""

    seed: int
    reconfigurations: tuple[Reconfiguration, ...]
    late_by_published: int
    late_by_published_bare: int
    """As ``late_by_published``, for the times of KubeComp's own sequence."""
    late_by_learned: int
    failed: int
    given_up: int
    """Steps that were ended at their deadline."""
    median_s: float
    median_bare_s: float
    final_deadlines_s: dict[FabricStep, float]
    assigned: int
    """GPUs that are at a port at the end, of ``GPUS``."""


def replay(*, seed: int = 0, reconfigurations: int = RECONFIGURATIONS, rates: Rates | None = None) -> Replay:
    """Run one replay."""
    return run_virtually(_replay(seed, reconfigurations, rates or Rates()))


async def _replay(seed: int, count: int, rates: Rates) -> Replay:
    config = ChassisConfig(
        name="kubecomp",
        ports=tuple(PortConfig(id=port) for port in PORTS),
        devices=tuple(DeviceConfig(id=f"00{gpu}300", port=PORTS[gpu // (GPUS // 2)]) for gpu in range(GPUS)),
        rates=rates,
    )
    store = Store(":memory:")
    clock = LoopClock()
    emulator = Emulator(EmulatorConfig(chassis=(config,), seed=seed), store, clock=clock)
    times: list[StepTime] = []
    driver = H3Driver("kubecomp", LocalTransport("kubecomp", emulator.h3["kubecomp"]), ports=dict.fromkeys(PORTS, ""))
    done = []
    async with ChassisService(driver, clock=clock, on_time=times.append).running() as service:
        drawn = random.Random(seed)  # noqa: S311 - it has to be the same every time
        for _ in range(count):
            gpus = 1 + (drawn.random() < MOVED_OF - 1)
            done.append(await _reconfigure(service, drawn, gpus, times))
        result = Replay(
            seed=seed,
            reconfigurations=tuple(done),
            late_by_published=sum(each.took_s > each.published_deadline_s for each in done),
            late_by_published_bare=sum(each.bare_s > each.published_deadline_s for each in done),
            late_by_learned=sum(each.tightest > 1 for each in done),
            failed=sum(each.failed for each in done),
            given_up=sum(not time.finished for time in times),
            median_s=quantile([each.took_s for each in done], 0.5),
            median_bare_s=quantile([each.bare_s for each in done], 0.5),
            final_deadlines_s={step: service.deadline_s(step) for step in FabricStep},
            assigned=sum(bool(port) for port in emulator.chassis["kubecomp"].assigned().values()),
        )
    await emulator.stop()
    store.close()
    return result


async def _reconfigure(
    service: ChassisService, drawn: random.Random, gpus: int, times: Sequence[StepTime]
) -> Reconfiguration:
    """Move GPUs as a reconfiguration does: each out of one node and into the other, one after the other."""
    loop = asyncio.get_running_loop()
    before, started = len(times), loop.time()
    deadlines = {step: service.deadline_s(step) for step in FabricStep}
    is_failed = False
    view = await service.list()
    sources = [port for port in PORTS if len(view.at(port)) >= gpus]
    source = drawn.choice(sources)
    target = PORTS[1 - PORTS.index(source)]
    for device in drawn.sample([device.id for device in view.at(source)], gpus):
        try:
            await service.unassign(device, source=source)
            await service.assign(device, target)
        except FarbusError:
            is_failed = True
    steps = times[before:]
    first = steps[0]
    return Reconfiguration(
        gpus=gpus,
        took_s=loop.time() - started,
        bare_s=first.seconds + sum(time.seconds for time in steps if time.step is not FabricStep.LIST),
        published_deadline_s=published_deadline_s(gpus),
        learned_deadline_s=sum(deadlines[time.step] for time in steps),
        tightest=max(time.seconds / deadlines[time.step] for time in steps),
        failed=is_failed,
    )


def to_text(result: Replay) -> str:
    """Return the counts for people."""
    count = len(result.reconfigurations)
    deadlines = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in result.final_deadlines_s.items())
    return "\n".join(
        (
            f"reconfigurations: {count}, of {GPUS} GPUs at {len(PORTS)} nodes",
            f"median: {result.median_s:.1f} s; as KubeComp does it, without verifying, {result.median_bare_s:.1f} s",
            f"longer than the published 15 + 5 n s: {result.late_by_published}; without verifying "
            f"{result.late_by_published_bare} (in the log {LOGGED_LATE} of 53)",
            f"with a step longer than its learned deadline: {result.late_by_learned}",
            f"failed: {result.failed}; GPUs at a port at the end: {result.assigned} of {GPUS}",
            f"learned deadlines at the end: {deadlines}",
        )
    )
