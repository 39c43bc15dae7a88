"""Every dialect against the emulator: what is asked for happens, or what happened is said."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from farbus.errors import NotFound, Unavailable
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Faults
from farbus.hotplug.fabric.emulator.front import LocalTransport
from farbus.hotplug.fabric.emulator.virtual import LoopClock, run_virtually
from farbus.hotplug.fabric.errors import (
    BadReply,
    ChassisSilent,
    ChassisUnavailable,
    DeviceElsewhere,
    MoveStranded,
    MoveUndone,
    OutcomeUnknown,
    StepRefused,
)
from farbus.hotplug.fabric.h3 import H3Driver
from farbus.hotplug.fabric.http import Reply, Request
from farbus.hotplug.fabric.service import ChassisService
from farbus.model.device import DeviceKind
from farbus.model.fabric import MAX_MISSING, FabricStep, StepTime
from farbus.model.value import to_json
from farbus.scheduler.reports import read_chassis
from tests.hotplug.fabric.testbed import DIALECTS, Bed, chassis_config, emulated, gpu

LIST, ASSIGN, UNASSIGN = FabricStep.LIST, FabricStep.ASSIGN, FabricStep.UNASSIGN


def virtually(work: Coroutine[Any, Any, None]) -> None:
    run_virtually(work)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_all_dialects_see_the_same_ports_and_devices() -> None:
    async def look() -> None:
        async with emulated() as bed:
            views = []
            for dialect in DIALECTS:
                async with bed.service(dialect).running() as service:
                    views.append(await service.list())
            assert [(port.id, port.node) for port in views[0].ports] == [("30h", "alpha"), ("31h", "beta")]
            for view in views:
                assert view.ports == views[0].ports
                assert [(device.id, device.handle, device.port) for device in view.devices] == [
                    (gpu(number), f"00{number}300", "30h" if number < 4 else "31h") for number in range(8)
                ]
                assert {device.kind for device in view.devices} == {DeviceKind.GPU}
            assert {device.vendor_id for device in views[1].devices} == {0x10DE}

    virtually(look())


def test_a_device_moves_from_port_to_port(dialect: str) -> None:
    async def move() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            freed = await service.unassign(gpu(1), source="alpha")
            assert freed.is_free
            assert bed.ports()[gpu(1)] == ""
            given = await service.assign(gpu(1), "beta")
            assert given.port == "31h" == bed.ports()[gpu(1)]
            assert bed.told == []

    virtually(move())


def test_steps_are_repeatable(dialect: str) -> None:
    async def repeat() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            assert (await service.assign(gpu(1), "30h")).port == "30h"
            for _ in range(2):
                assert (await service.unassign(gpu(1))).is_free
            assert bed.ports()[gpu(1)] == ""

    virtually(repeat())


def test_a_device_is_not_taken_from_another_port_unasked(dialect: str) -> None:
    async def take() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            with pytest.raises(DeviceElsewhere, match=f"chassis falcon: device {gpu(1)} is at port 30h"):
                await service.assign(gpu(1), "31h")
            with pytest.raises(DeviceElsewhere, match="is assigned to port 30h, not 31h"):
                await service.unassign(gpu(1), source="31h")
            assert bed.ports()[gpu(1)] == "30h"

    virtually(take())


def test_unknown_devices_and_ports_are_named(dialect: str) -> None:
    async def ask() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            with pytest.raises(NotFound, match="no device GPU-9"):
                await service.assign("GPU-9", "31h")
            with pytest.raises(NotFound, match="no port 99h"):
                await service.assign(gpu(1), "99h")

    virtually(ask())


HARMLESS = [
    Fault(kind=kind, step=step, number=number, after=after)
    for kind, step, number, after in [
        *[(kind, ASSIGN, 1, after) for kind in ("eof", "error", "hang", "cut") for after in (False, True)],
        *[(kind, UNASSIGN, 1, after) for kind in ("eof", "error", "hang", "cut") for after in (False, True)],
        ("false-negative", ASSIGN, 1, False),
        ("false-negative", UNASSIGN, 1, False),
        ("deny", ASSIGN, 1, False),
        *[(kind, LIST, number, False) for kind in ("eof", "error", "hang", "cut") for number in range(1, 5)],
        *[(kind, LIST, number, False) for kind in ("stale", "partial") for number in range(2, 9)],
    ]
]


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda f: f"{f.kind}-{f.step}-{f.number}{'-after' * f.after}")
def test_one_fault_does_not_keep_a_device_from_moving(dialect: str, fault: Fault) -> None:
    async def move() -> None:
        async with emulated(script=[fault], speed=1.0) as bed, bed.service(dialect).running() as service:
            await service.list()
            assert (await service.move(gpu(1), "beta")).port == "31h"
            assert bed.ports() == {gpu(number): "30h" if number in (0, 2, 3) else "31h" for number in range(8)}
            assert (await service.list()).missing == ()

    virtually(move())


@pytest.mark.parametrize("reading", range(1, 9))
def test_a_stale_reading_alone_is_not_believed(dialect: str, reading: int) -> None:
    """A device is taken from a port and can't be given back: a stale reading has it at that port still."""

    async def ask() -> None:
        faults = [*always("deny", ASSIGN), Fault(kind=FaultKind.STALE, step=LIST, number=reading)]
        async with emulated() as bed, bed.service(dialect).running() as service:
            await service.unassign(gpu(1))
            bed.chassis.faults = Faults(script=faults)
            with pytest.raises(StepRefused, match="it is still free"):
                await service.assign(gpu(1), "30h")

    virtually(ask())


def always(kind: str, step: FabricStep, start: int = 1, end: int = 60) -> list[Fault]:
    return [Fault(kind=FaultKind(kind), step=step, number=number) for number in range(start, end)]


def test_an_error_is_never_an_empty_list(dialect: str) -> None:
    async def ask() -> None:
        async with emulated(script=always("error", LIST)) as bed, bed.service(dialect).running() as service:
            with pytest.raises(ChassisUnavailable, match=r"chassis falcon: .*status 50"):
                await service.list()

    virtually(ask())


def test_devices_that_are_not_listed_any_more_are_told_as_missing(dialect: str) -> None:
    async def ask() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            await service.list()
            bed.chassis.devices = {name: each for name, each in bed.chassis.devices.items() if name != "001300"}
            del bed.chassis._rows["001300"]
            view = await service.list()
            assert [device.id for device in view.missing] == [gpu(1)]
            assert len(view.devices) == 7
            with pytest.raises(NotFound, match="was there and is not listed any more"):
                await service.assign(gpu(1), "30h")

    virtually(ask())


def test_a_chassis_that_denies_is_believed_after_reading(dialect: str) -> None:
    async def ask() -> None:
        async with emulated(script=always("deny", UNASSIGN)) as bed, bed.service(dialect).running() as service:
            with pytest.raises(
                StepRefused, match=rf"unassign {gpu(1)} from port 30h: it says no .*; it is still at port 30h"
            ):
                await service.unassign(gpu(1))
            assert bed.ports()[gpu(1)] == "30h"

    virtually(ask())


def test_a_chassis_that_hangs_is_told_as_silent(dialect: str) -> None:
    async def ask() -> None:
        async with emulated(script=always("hang", ASSIGN)) as bed, bed.service(dialect).running() as service:
            await service.unassign(gpu(1))
            with pytest.raises(ChassisSilent, match=r"no answer after .*may yet be done"):
                await service.assign(gpu(1), "31h")
            assert any(line.endswith("s: reading what became of it") for line in bed.told), bed.told

    virtually(ask())


def test_what_can_not_be_read_after_a_step_is_told_as_unknown(dialect: str) -> None:
    async def ask() -> None:
        async with emulated() as bed, bed.service(dialect).running() as service:
            await service.list()
            original = bed.chassis.unassign

            async def unassign(*arguments: Any, **options: Any) -> Any:
                bed.chassis.faults.script = always("eof", LIST, 1, 999)
                return await original(*arguments, **options)

            bed.chassis.unassign = unassign
            with pytest.raises(OutcomeUnknown, match="whether it was done is not known"):
                await service.unassign(gpu(1))

    virtually(ask())


def test_a_move_whose_second_half_fails_is_undone(dialect: str) -> None:
    async def move() -> None:
        async with emulated(script=always("deny", ASSIGN, 1, 4)) as bed, bed.service(dialect).running() as service:
            with pytest.raises(MoveUndone, match="it is back at port 30h"):
                await service.move(gpu(1), "beta")
            assert bed.ports()[gpu(1)] == "30h"
            assert service.stranded == {}

    virtually(move())


def test_a_move_that_can_not_be_undone_is_stranded_until_it_is_repaired(dialect: str) -> None:
    async def move() -> None:
        async with emulated(script=always("deny", ASSIGN, 1, 7)) as bed, bed.service(dialect).running() as service:
            with pytest.raises(MoveStranded, match=f"farbus fabric assign {gpu(1)} 31h goes on") as caught:
                await service.move(gpu(1), "beta")
            assert (caught.value.stranded.source, caught.value.stranded.target) == ("30h", "31h")
            assert bed.ports()[gpu(1)] == ""
            assert list(service.stranded) == [gpu(1)]
            await service.assign(gpu(1), "31h")
            assert service.stranded == {}
            assert bed.ports()[gpu(1)] == "31h"

    virtually(move())


def test_a_stale_reading_does_not_strike_a_stranded_device_out() -> None:
    async def move() -> None:
        async with emulated(script=always("deny", ASSIGN, 1, 7)) as bed, bed.service("h3").running() as service:
            with pytest.raises(MoveStranded):
                await service.move(gpu(1), "beta")
            bed.chassis.faults = Faults(script=[Fault(kind=FaultKind.STALE, step=LIST, number=1)])
            assert (await service.list()).device(gpu(1)).port == "30h"
            assert list(service.stranded) == [gpu(1)]
            # Repaired by somebody else.
            assert (await bed.chassis.assign("001300", "31h")).done
            for _ in range(2):
                await service.list()
            assert service.stranded == {}

    virtually(move())


def test_a_first_listing_that_lacks_a_device_is_not_the_last_word(dialect: str) -> None:
    async def ask() -> None:
        partial = [Fault(kind=FaultKind.PARTIAL, step=LIST, number=number) for number in range(1, 8)]
        for number in range(7):
            script = partial[number : number + 1]
            async with emulated(script=script) as bed, bed.service(dialect).running() as service:
                for each in range(8):
                    await service.unassign(gpu(each))

    virtually(ask())


def test_an_assignment_that_comes_late_ends_a_move_well() -> None:
    """The chassis works on after its client has given up; going back then meets what was asked for first."""

    async def move() -> None:
        late = [Fault(kind=FaultKind.HANG, step=ASSIGN, number=number, after=True) for number in (1, 2)]
        async with emulated(script=late, speed=20.0, serial=False) as bed:
            async with bed.service("h3").running() as service:
                device = await service.move(gpu(1), "beta")
            assert device.port == "31h" == bed.ports()[gpu(1)]

    virtually(move())


def test_a_zone_that_changed_meanwhile_is_read_again() -> None:
    """Compare and swap: what another writer has added since the zone was read is not written over."""

    class Meddling(LocalTransport):
        meddled = False

        async def exchange(self, request: Request) -> Reply:
            if request.method == "PATCH" and not self.meddled:
                self.meddled = True
                assert (await bed.chassis.assign("002300", "31h")).done
            return await super().exchange(request)

    async def collide() -> None:
        async with bed.running(), bed.service("zones").running() as service:
            for number in (1, 2):
                assert (await bed.chassis.unassign(f"00{number}300")).done
            service._driver._client._transport = Meddling("falcon", bed.fronts["redfish"])
            await service.assign(gpu(1), "31h")
            assert bed.ports()[gpu(1)] == bed.ports()[gpu(2)] == "31h"
            assert "412" in bed.told[0]

    bed = Bed(":memory:", chassis_config())
    virtually(collide())


def test_moves_run_at_once_where_the_chassis_can() -> None:
    async def move() -> None:
        async with emulated(speed=1.0, serial=False) as bed, bed.service("zones", parallel=4).running() as service:
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(service.move(gpu(number), "beta") for number in range(4)))
            took = asyncio.get_running_loop().time() - started
            assert set(bed.ports().values()) == {"31h"}
            slowest_alone = 13.4 + 18.2 + 10 * 8.81
            assert took < slowest_alone

    virtually(move())


@pytest.mark.parametrize("dialect", ["zones", "connections", "blocks", "composed"])
def test_who_waited_for_a_device_does_not_take_it_from_where_it_came_meanwhile(dialect: str) -> None:
    """What was read before the wait is past: another step of the same device has ended in between."""
    hang = Fault(kind=FaultKind.HANG, step=UNASSIGN)

    async def ask() -> None:
        async with (
            emulated(speed=1.0, serial=False, script=[hang]) as bed,
            bed.service(dialect, parallel=4).running() as service,
        ):
            steps = []
            for step in (
                service.unassign(gpu(1), source="30h"),
                service.assign(gpu(1), "31h"),
                service.unassign(gpu(1), source="30h"),
            ):
                steps.append(asyncio.create_task(step))
                # Longer than a listing takes, and less than the one that hangs: both others have read it at 30h.
                await asyncio.sleep(15)
            assert [(await step).port for step in steps[:2]] == ["", "31h"]
            with pytest.raises(DeviceElsewhere, match="is assigned to port 31h, not 30h"):
                await steps[2]
            assert bed.ports()[gpu(1)] == "31h"
            asked = bed.chassis.faults._requests[UNASSIGN]
            assert asked == 2, "the one that was left unanswered was asked again, and nothing else"

    virtually(ask())


def test_two_clients_never_both_get_a_device(dialect: str) -> None:
    async def race() -> None:
        async with emulated(speed=1.0) as bed:
            async with bed.service(dialect).running() as one, bed.service("h3").running() as other:
                await one.unassign(gpu(1))
                results = await asyncio.gather(
                    one.assign(gpu(1), "30h"), other.assign(gpu(1), "31h"), return_exceptions=True
                )
            failed = [result for result in results if isinstance(result, BaseException)]
            assert [type(each) for each in failed] == [DeviceElsewhere]

    virtually(race())


def test_calls_to_a_serial_chassis_wait_for_their_turn() -> None:
    async def measure() -> None:
        times: list[StepTime] = []
        async with emulated(speed=1.0) as bed:
            service = bed.service("h3")
            service._on_time = times.append
            async with service.running():
                await asyncio.gather(*(service.unassign(gpu(number)) for number in range(4)))
        slowest = 13.4
        assert max(time.seconds for time in times if time.step is UNASSIGN) <= slowest

    virtually(measure())


def test_a_caller_who_leaves_does_not_cut_a_step_off() -> None:
    async def leave() -> None:
        async with emulated(speed=1.0) as bed, bed.service("h3").running() as service:
            leaving = asyncio.create_task(service.unassign(gpu(1)))
            await asyncio.sleep(8)
            leaving.cancel()
            assert (await service.list()).device(gpu(1)).is_free

    virtually(leave())


def test_a_service_that_ends_refuses_what_waits() -> None:
    async def end() -> None:
        async with emulated(speed=1.0) as bed:
            async with bed.service("h3").running() as service:
                waiting = [asyncio.create_task(service.unassign(gpu(number))) for number in range(3)]
                await asyncio.sleep(1)
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, OutcomeUnknown) for result in results)
            with pytest.raises(Unavailable, match="not served here now"):
                await service.list()

    virtually(end())


def test_a_service_that_ends_while_it_reads_for_nobody_leaves_nothing_to_complain_of() -> None:
    async def leave() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with emulated(speed=1.0) as bed:
            async with bed.service("h3").running() as service:
                caller = asyncio.create_task(service.list())
                await asyncio.sleep(0.1)
                caller.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await caller
            del service, caller
        gc.collect()
        assert complaints == []

    virtually(leave())


@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each != "h3"])
def test_a_device_is_not_taken_from_its_port_for_one_that_the_chassis_does_not_have(dialect: str) -> None:
    async def move() -> None:
        async with emulated() as bed:
            driver = bed.driver(dialect, ports={"30h": "alpha", "31": "beta"})
            async with bed.service(driver).running() as service:
                for ask in (service.move, service.assign):
                    with pytest.raises(NotFound, match="port 31 is configured, and the chassis has none of that name"):
                        await ask(gpu(1), "beta")
            assert bed.told == []
            assert bed.ports()[gpu(1)] == "30h"

    virtually(move())


def test_a_session_that_the_chassis_forgot_is_opened_anew() -> None:
    async def forget() -> None:
        async with emulated() as bed, bed.service("zones").running() as service:
            await service.list()
            bed.emulator.redfish["falcon"]._sessions._sessions.clear()
            assert len((await service.list()).devices) == 8

    virtually(forget())


def test_a_killed_emulator_has_the_old_state_or_the_new_one(dialect: str, tmp_path: Any) -> None:
    async def kill(at: int) -> None:
        writes = 0

        def on_write(_: str) -> None:
            nonlocal writes
            writes += 1
            if writes == at:
                raise asyncio.CancelledError("killed here")

        bed = Bed(tmp_path / f"{at}.db", chassis_config())
        await bed.start(on_write=on_write)
        async with bed.service(dialect).running() as service:
            work = asyncio.create_task(service.unassign(gpu(1)))
            await asyncio.sleep(0)
            await asyncio.wait([work], timeout=1)
            await bed.stop()
            await bed.start()
            assert bed.ports()[gpu(1)] in ("", "30h")
            assert all(bed.chassis.row(name).pending is None for name in bed.chassis.devices)
            await asyncio.wait([work])
            assert (await service.unassign(gpu(1))).is_free
            assert bed.ports()[gpu(1)] == ""
            await bed.stop()

    for at in range(1, 7):
        virtually(kill(at))


def test_callers_who_wait_for_a_listing_share_one_reading() -> None:
    async def ask() -> None:
        async with emulated() as bed, bed.service("h3").running() as service:
            reads = 0
            read = service._driver.read

            async def count() -> Any:
                nonlocal reads
                reads += 1
                return await read()

            service._driver.read = count  # type: ignore[method-assign]
            views = await asyncio.gather(*(service.list() for _ in range(5)))
            assert (reads, len(set(map(id, views)))) == (1, 1)

    virtually(ask())


def test_a_caller_who_leaves_does_not_end_the_listing_of_others() -> None:
    async def ask() -> None:
        async with emulated() as bed, bed.service("h3").running() as service:
            leaving, staying = asyncio.ensure_future(service.list()), asyncio.ensure_future(service.list())
            await asyncio.sleep(0)
            leaving.cancel()
            assert len((await staying).devices) == 8
            assert leaving.cancelled()

    virtually(ask())


def test_a_reading_that_gives_a_device_twice_is_an_error_and_nothing_is_assigned(dialect: str) -> None:
    async def ask() -> None:
        async with emulated() as bed:
            service = bed.service(dialect)
            read = service._driver.read

            async def again() -> Any:
                view = await read()
                first = view.devices[0]
                other = msgspec.structs.replace(first, handle=f"{first.handle}-2", id=first.id.swapcase(), port="")
                return msgspec.structs.replace(view, devices=(*view.devices, other))

            service._driver.read = again  # type: ignore[method-assign]
            before = bed.ports()
            async with service.running():
                for work in (service.list(), service.assign(gpu(1), "31h")):
                    with pytest.raises(BadReply, match=r"chassis falcon: devices .* differ in case alone"):
                        await work
            assert bed.ports() == before

    virtually(ask())


class Listing:
    """A way to an H3 chassis that lists what it is told to."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.rows = rows

    async def exchange(self, request: Request) -> Reply:
        return Reply(200, {}, msgspec.json.encode(self.rows))

    async def close(self) -> None:
        """Nothing is open."""


EXCESSIVE = {
    "a long UUID": ([{"Dev_GID": "1", "OB_GPU_GUID": "a" * 256, "dev_type": "GPU"}], "a name of more than 256"),
    "a port for each of many devices": (
        [{"Dev_GID": f"{number}", "Port_GID": f"p{number}"} for number in range(4096)],
        "4097 ports, which no chassis has",
    ),
    "many long names": (
        [{"Dev_GID": f"{number:04}{'d' * 252}", "Port#": "s" * 200} for number in range(4096)],
        "bytes of names, which no chassis has",
    ),
}


@pytest.mark.parametrize("name", EXCESSIVE)
def test_more_than_a_scheduler_takes_is_no_reading(name: str) -> None:
    """It would end the session of the agent that tells it, and of each that serves the chassis after that."""
    rows, words = EXCESSIVE[name]

    async def ask() -> None:
        driver = H3Driver("falcon", Listing(rows), ports={"30h": "alpha"})
        async with ChassisService(driver, clock=LoopClock()).running() as service:
            with pytest.raises(BadReply, match=words):
                await service.list()

    virtually(ask())


def test_a_chassis_that_renames_its_devices_each_time_is_told_as_far_as_a_scheduler_takes_it() -> None:
    async def ask() -> None:
        chassis = Listing([])
        driver = H3Driver("falcon", chassis, ports={"30h": "alpha"})
        async with ChassisService(driver, clock=LoopClock()).running() as service:
            for turn in range(4):
                chassis.rows = [{"Dev_GID": f"{turn}-{number}"} for number in range(1500)]
                view = await service.list()
            assert (len(view.devices), len(view.missing)) == (1500, MAX_MISSING)
            assert read_chassis("alpha", to_json(view), to_json(service.history))[0] == view

    virtually(ask())
