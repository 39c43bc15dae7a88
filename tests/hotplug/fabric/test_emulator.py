"""The emulator itself: what its dialects look like to a client that is not ours."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.errors import InvalidInput
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, EmulatorConfig, PortConfig, check
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Faults, Rates
from farbus.hotplug.fabric.emulator.latency import Measured
from farbus.hotplug.fabric.emulator.virtual import run_virtually
from farbus.hotplug.fabric.http import Reply, Request
from farbus.model.fabric import FabricStep
from tests.hotplug.fabric.testbed import USER, Bed, chassis_config, emulated

V1 = "/redfish/v1"

REQUIRED: dict[str, tuple[str, ...]] = {
    # What the schemas require beside @odata.id, @odata.type, Id and Name (DSP8010).
    "ServiceRoot": ("Links",),
    "Chassis": ("ChassisType",),
    "ResourceBlock": ("CompositionStatus", "ResourceBlockType"),
    "Zone": (),
    "Endpoint": (),
    "Connection": (),
    "Fabric": (),
    "Switch": ("SwitchType",),
    "Port": (),
    "PCIeDevice": (),
    "PCIeFunction": (),
    "ComputerSystem": (),
    "CompositionService": (),
    "SessionService": (),
    "Session": (),
    "TaskService": (),
    "Task": (),
}


def virtually(work: Coroutine[Any, Any, None]) -> None:
    run_virtually(work)


class Client:
    """Speaks Redfish without a driver."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.token = ""

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        all_of_them = {"X-Auth-Token": self.token} | {name.replace("_", "-"): each for name, each in headers.items()}
        return await self._bed.emulator.redfish["falcon"].exchange(Request(method, path, body, all_of_them))

    async def log_in(self) -> None:
        body = {"UserName": USER.user, "Password": USER.password}
        reply = await self.ask("POST", f"{V1}/SessionService/Sessions", body)
        assert reply.status == 201
        assert reply.headers["location"].startswith(f"{V1}/SessionService/Sessions/")
        self.token = reply.headers["x-auth-token"]

    async def get(self, path: str) -> Any:
        reply = await self.ask("GET", path)
        assert reply.status == 200, path
        return msgspec.json.decode(reply.body)

    async def finish(self, reply: Reply) -> Reply:
        assert reply.status == 202
        while reply.status == 202:
            monitor = reply.headers["location"]
            await asyncio.sleep(1)
            reply = await self.ask("GET", monitor)
        return reply


def links(value: Any) -> set[str]:
    """Return all URIs that a resource refers to."""
    if isinstance(value, dict):
        own = {value["@odata.id"]} if isinstance(value.get("@odata.id"), str) else set()
        return own.union(*(links(each) for each in value.values()))
    if isinstance(value, list):
        return set().union(*(links(each) for each in value))
    return set()


def test_every_link_leads_to_a_resource_with_what_its_schema_requires() -> None:
    async def crawl() -> None:
        async with emulated() as bed:
            client = Client(bed)
            await client.log_in()
            zone = await client.ask("GET", f"{V1}/Fabrics/falcon/Zones/31h")
            wanted = {"Links": msgspec.json.decode(zone.body)["Links"]}
            await client.finish(
                await client.ask("PATCH", f"{V1}/Fabrics/falcon/Zones/31h", wanted, If_Match=zone.headers["etag"])
            )
            seen: dict[str, Any] = {}
            left = {f"{V1}/"}
            while left:
                path = left.pop()
                seen[path] = await client.get(path)
                left |= links(seen[path]) - seen.keys()
            kinds = set()
            for path, resource in seen.items():
                assert resource["@odata.id"] == path
                kind = resource["@odata.type"].removeprefix("#").split(".")[0]
                kinds.add(kind)
                assert resource["Name"]
                if "Members" in resource:
                    assert resource["Members@odata.count"] == len(resource["Members"])
                    continue
                assert resource["Id"]
                assert all(name in resource for name in REQUIRED[kind]), path
            assert REQUIRED.keys() <= kinds

    virtually(crawl())


def test_expanded_members_are_the_members() -> None:
    async def expand() -> None:
        async with emulated() as bed:
            client = Client(bed)
            await client.log_in()
            expanded = await client.get(f"{V1}/Chassis/falcon/PCIeDevices?$expand=.($levels=1)")
            assert len(expanded["Members"]) == 8
            for member in expanded["Members"]:
                assert member == await client.get(member["@odata.id"])

    virtually(expand())


def test_a_zone_is_written_only_over_what_was_read() -> None:
    async def write() -> None:
        async with emulated(speed=1.0) as bed:
            client = Client(bed)
            await client.log_in()
            path = f"{V1}/Fabrics/falcon/Zones/30h"
            reply = await client.ask("GET", path)
            zone, etag = msgspec.json.decode(reply.body), reply.headers["etag"]
            assert zone["@odata.etag"] == etag
            less = {"Links": {"Endpoints": zone["Links"]["Endpoints"][:-1]}}
            assert (await client.ask("PATCH", path, less)).status == 428
            assert (await client.finish(await client.ask("PATCH", path, less, If_Match=etag))).status == 204
            assert (await client.ask("PATCH", path, less, If_Match=etag)).status == 412
            assert len((await client.get(path))["Links"]["Endpoints"]) == 4

    virtually(write())


def test_headers_of_bytes_that_are_no_text_are_of_nobody() -> None:
    """The server hands them on with lone surrogates."""

    async def ask() -> None:
        async with emulated() as bed:
            client = Client(bed)
            await client.log_in()
            zone = f"{V1}/Fabrics/falcon/Zones/30h"
            body = {"Links": {"Endpoints": [{"@odata.id": "/port-30h"}]}}
            assert (await client.ask("PATCH", zone, body, If_Match="\udce4")).status == 412
            stranger = Request("GET", zone, None, {"X-Auth-Token": "\udcff"})
            assert (await bed.emulator.redfish["falcon"].exchange(stranger)).status == 401

    virtually(ask())


def test_a_task_is_running_until_it_is_completed() -> None:
    async def watch() -> None:
        async with emulated(speed=1.0, serial=False) as bed:
            client = Client(bed)
            await client.log_in()
            reply = await client.ask("DELETE", f"{V1}/Fabrics/falcon/Connections/001300")
            task = msgspec.json.decode(reply.body)
            assert (reply.status, task["TaskState"]) == (202, "Running")
            block = f"{V1}/CompositionService/ResourceBlocks/001300"
            await asyncio.sleep(1)
            assert (await client.get(block))["CompositionStatus"]["CompositionState"] == "Composing"
            assert (await client.finish(reply)).status == 204
            assert (await client.get(task["@odata.id"]))["TaskState"] == "Completed"
            assert (await client.get(block))["CompositionStatus"]["CompositionState"] == "Unused"

    virtually(watch())


def test_a_task_that_fails_says_why() -> None:
    async def fail() -> None:
        async with emulated() as bed:
            client = Client(bed)
            await client.log_in()
            ends = [{"@odata.id": f"{V1}/Fabrics/falcon/Endpoints/{name}"} for name in ("port-31h", "device-001300")]
            body = {"Links": {"InitiatorEndpoints": ends[:1], "TargetEndpoints": ends[1:]}}
            reply = await client.finish(await client.ask("POST", f"{V1}/Fabrics/falcon/Connections", body))
            assert reply.status == 409
            error = msgspec.json.decode(reply.body)["error"]
            assert error["@Message.ExtendedInfo"][0]["Message"] == "device 001300 is assigned to port 30h"

    virtually(fail())


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/Nothing", None, 404),
        ("GET", "/Chassis/other", None, 404),
        ("PUT", "/Chassis/falcon", {}, 405),
        ("DELETE", "/Chassis/falcon", None, 405),
        ("PATCH", "/Fabrics/falcon/Zones/99h", {}, 404),
        ("PATCH", "/Fabrics/falcon/Zones/30h", {"Links": {"Endpoints": []}}, 400),
        ("PATCH", "/Fabrics/falcon/Zones/30h", {"Links": []}, 400),
        ("PATCH", "/Fabrics/falcon/Zones/30h", [], 400),
        ("POST", "/Fabrics/falcon/Connections", {}, 400),
        ("POST", "/Fabrics/falcon/Connections", {"Links": {"InitiatorEndpoints": [7]}}, 400),
        ("POST", "/Systems/30h/Actions/ComputerSystem.AddResourceBlock", {}, 400),
        ("POST", "/Systems/30h/Actions/ComputerSystem.AddResourceBlock", {"ResourceBlock": "x"}, 400),
    ],
)
def test_wrong_requests_change_nothing(method: str, path: str, body: Any, status: int) -> None:
    async def ask() -> None:
        async with emulated() as bed:
            before = bed.ports()
            client = Client(bed)
            await client.log_in()
            assert (await client.ask(method, V1 + path, body, If_Match="*")).status == status
            assert bed.ports() == before

    virtually(ask())


def test_h3_lists_flat_maps_of_strings_as_plain_text() -> None:
    async def ask() -> None:
        async with emulated() as bed:
            h3 = bed.emulator.h3["falcon"]
            reply = await h3.exchange(Request("GET", "/h3api/v1/resources"))
            rows = msgspec.json.decode(reply.body, type=list[dict[str, str]])
            assert reply.headers["content-type"] == "text/plain"
            assert {key for row in rows for key in row} == {
                "dev_type", "Dev_GID", "OB_GPU_GUID", "Host_Port#", "Port#", "Port_GID",
            }  # fmt: skip
            body = {"gep": "0", "dev_gid": "001300"}
            reply = await h3.exchange(Request("DELETE", "/h3api/v1/allocation", body))
            said = msgspec.json.decode(reply.body)
            assert (said["Result"], sorted(said)) == ([True], ["Action", "Remark", "Result"])
            reply = await h3.exchange(Request("POST", "/h3api/v1/allocation", body | {"port_gid": "31h"}))
            assert msgspec.json.decode(reply.body)["Result"] == [True]
            assert (await h3.exchange(Request("GET", "/"))).status == 404
            assert (await h3.exchange(Request("PUT", "/h3api/v1/allocation"))).status == 405

    virtually(ask())


def test_a_serial_chassis_does_one_thing_after_the_other() -> None:
    async def race(serial: bool) -> float:
        async with emulated(speed=1.0, serial=serial) as bed:
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(bed.chassis.unassign(f"00{number}300") for number in range(4)))
            return asyncio.get_running_loop().time() - started

    fastest, slowest = 5.01, 13.4
    assert run_virtually(race(True)) >= 4 * fastest
    assert run_virtually(race(False)) <= slowest


def test_rates_are_met_and_seeded() -> None:
    rates = Rates(eof=0.1, stale=0.05, false_negative=0.2)
    drawn = [Faults(rates=rates, seed=4) for _ in range(2)]
    for faults in drawn:
        for _ in range(4000):
            faults.draw(FabricStep.ASSIGN)
    assert drawn[0].injected == drawn[1].injected
    kinds = [fault.kind for fault in drawn[0].injected]
    assert kinds.count(FaultKind.EOF) == pytest.approx(400, rel=0.15)
    assert kinds.count(FaultKind.FALSE_NEGATIVE) == pytest.approx(800, rel=0.15)
    # What can't happen to a step does not.
    assert FaultKind.STALE not in kinds


def test_untrue_listings_are_followed_by_true_ones() -> None:
    faults = Faults(rates=Rates(stale=0.5, partial=0.5), seed=4)
    drawn = [faults.draw(FabricStep.LIST) is not None for _ in range(100)]
    assert any(drawn)
    assert not any(one and other for one, other in itertools.pairwise(drawn))


def test_a_script_goes_before_rates() -> None:
    script = [Fault(kind=FaultKind.DENY, step=FabricStep.ASSIGN, number=2)]
    faults = Faults(script=script)
    assert [faults.draw(FabricStep.ASSIGN) for _ in range(3)] == [None, script[0], None]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EmulatorConfig(chassis=()), "has no chassis; docs/fabric.md shows one"),
        (EmulatorConfig(chassis=(chassis_config(), chassis_config())), "falcon is there twice"),
        (EmulatorConfig(chassis=(chassis_config(),), speed=-1), "speed"),
        (
            EmulatorConfig(chassis=(ChassisConfig(name="a", ports=(PortConfig(id="1", qmp="x"),)),)),
            "a QMP socket without slots",
        ),
        (
            EmulatorConfig(chassis=(chassis_config(ports=()),)),
            "there is no port 30h",
        ),
        (EmulatorConfig(chassis=(chassis_config(name="a/b"),)), "chassis a/b: 'a/b' is no id"),
        (EmulatorConfig(chassis=(chassis_config(devices=(DeviceConfig(id=""),)),)), "'' is no id"),
        (EmulatorConfig(chassis=(chassis_config(ports=(PortConfig(id="30:h"),), devices=()),)), "'30:h' is no id"),
        (
            EmulatorConfig(chassis=(chassis_config(devices=(DeviceConfig(id="1", vendor_id=-1),)),)),
            "vendor_id or device_id is not of 16 bits",
        ),
        (EmulatorConfig(chassis=(chassis_config(h3="127.0.0.1:99999"),)), "h3: 127.0.0.1:99999: not HOST:PORT"),
        (EmulatorConfig(chassis=(chassis_config(h3="x:1", redfish="x:y"),)), "redfish: x:y: not HOST:PORT"),
        (EmulatorConfig(chassis=(chassis_config(rates=Rates(eof=1.5)),)), "faults: eof = 1.5 is not from 0 to 1"),
        (
            EmulatorConfig(chassis=(chassis_config(rates=Rates(cut=float("nan"))),)),
            "faults: cut = nan is not from 0 to 1",
        ),
        (
            EmulatorConfig(chassis=(chassis_config(rates=Rates(eof=0.6, hang=0.6)),)),
            "the sum of all rates is more than 1",
        ),
        (
            EmulatorConfig(chassis=(chassis_config(script=(Fault(kind=FaultKind.EOF, number=0),)),)),
            "fault eof at list 0",
        ),
        (
            EmulatorConfig(chassis=(chassis_config(script=(Fault(kind=FaultKind.STALE, step=FabricStep.ASSIGN),)),)),
            "fault stale at assign 1: there is none",
        ),
        (
            EmulatorConfig(
                chassis=(
                    chassis_config(
                        latency={FabricStep.ASSIGN: Measured(mean_s=5, sd_s=1, min_s=9, p50_s=5, p90_s=6, max_s=10)}
                    ),
                )
            ),
            "latency.assign: not 0 <= min_s",
        ),
        (EmulatorConfig(chassis=(chassis_config(name="fal/con"),)), "'fal/con' is no id"),
        (EmulatorConfig(chassis=(chassis_config(),)), "chassis falcon: is served nowhere"),
    ],
)
def test_configurations_that_can_not_be_are_refused(config: EmulatorConfig, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check(config, name="emulator.toml")


def test_a_device_that_was_in_no_guest_can_be_assigned_when_its_port_is_not_configured_any_more(tmp_path: Path) -> None:
    async def rename() -> None:
        async with emulated(tmp_path / "state.db") as bed:
            await bed.stop()
            bed.config = chassis_config(
                ports=(PortConfig(id="40h", node="alpha"), PortConfig(id="31h", node="beta")),
                devices=tuple(msgspec.structs.replace(each, port="") for each in chassis_config().devices),
            )
            await bed.start()
            chassis = bed.emulator.chassis["falcon"]
            assert await chassis.reconcile() == []
            assert chassis.assigned()["000300"] == ""
            assert (await chassis.assign("000300", "40h")).done

    virtually(rename())


def test_a_system_is_composed_changed_and_given_back(tmp_path: Path) -> None:
    async def compose() -> None:
        blocks = f"{V1}/CompositionService/ResourceBlocks"

        def of(*names: str) -> Any:
            return {"Links": {"ResourceBlocks": [{"@odata.id": f"{blocks}/{name}"} for name in names]}}

        async with emulated(tmp_path / "state.db") as bed:
            client = Client(bed)
            await client.log_in()
            system = f"{V1}/Systems/30h"
            assert (await client.ask("POST", f"{V1}/Systems", of("node:30h"))).status == 409
            assert (await client.ask("DELETE", system, If_Match='"old"')).status == 412
            assert (await client.finish(await client.ask("DELETE", system))).status == 204
            assert (await client.ask("GET", system)).status == 404
            await bed.stop()
            await bed.start()
            await client.log_in()
            assert (await client.ask("GET", system)).status == 404
            assert (await client.ask("POST", f"{V1}/Systems", of("001300"))).status == 400
            made = await client.finish(await client.ask("POST", f"{V1}/Systems", of("node:30h", "001300")))
            assert (made.status, made.headers["location"]) == (201, system)
            etag = (await client.ask("GET", system)).headers["etag"]
            assert (await client.ask("PATCH", system, of("node:30h"))).status == 428
            more = of("node:30h", "002300")
            assert (await client.finish(await client.ask("PATCH", system, more, If_Match=etag))).status == 204
            assert (await client.ask("PATCH", system, more, If_Match=etag)).status == 412
            assert (await client.get(system))["Links"] == more["Links"]
            await client.finish(await client.ask("DELETE", system))
            gpus = {"Processors": {"Members": [{"@Redfish.RequestedCount": 2, "ProcessorType": "GPU"}]}}
            assert (await client.finish(await client.ask("POST", f"{V1}/Systems", gpus))).status == 201
            assert len((await client.get(system))["Links"]["ResourceBlocks"]) == 3

    virtually(compose())


def test_each_fault_is_told() -> None:
    faults = Faults(script=[Fault(kind=FaultKind.HANG, step=FabricStep.ASSIGN, number=2, after=True)])
    told: list[str] = []
    faults.told = lambda fault: told.append(str(fault))
    for _ in range(3):
        faults.draw(FabricStep.ASSIGN)
    assert told == ["hang at assign 2, after it was done"]
