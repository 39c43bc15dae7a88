"""The Redfish driver against services that are wrong: each is an error of one line, and nothing is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from farbus.errors import FarbusError, InvalidInput
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.emulator.front import LocalTransport
from farbus.hotplug.fabric.emulator.virtual import LoopClock, run_virtually
from farbus.hotplug.fabric.errors import BadReply, ChassisBusy, ChassisRefused
from farbus.hotplug.fabric.http import Reply, Request
from farbus.hotplug.fabric.redfish import RedfishDriver
from farbus.hotplug.fabric.service import ChassisService
from farbus.model.fabric import RedfishStyle
from tests.hotplug.fabric.testbed import NODES, USER, Bed, chassis_config, gpu

V1 = "/redfish/v1"
ZONES = f"{V1}/Fabrics/falcon/Zones?$expand=.($levels=1)"
ENDPOINTS = f"{V1}/Fabrics/falcon/Endpoints?$expand=.($levels=1)"
DEVICES = f"{V1}/Chassis/falcon/PCIeDevices?$expand=.($levels=1)"


class Tampering(LocalTransport):
    """A way to the emulator on which replies are changed."""

    def __init__(self, bed: Bed, change: Callable[[Request, Reply], Reply]) -> None:
        super().__init__("falcon", bed.fronts["redfish"])
        self.change = change
        self.asked: list[str] = []

    async def exchange(self, request: Request) -> Reply:
        self.asked.append(str(request))
        return self.change(request, await super().exchange(request))


def at(path: str, change: Callable[[Any], Any]) -> Callable[[Request, Reply], Reply]:
    """Change the resource at ``path``."""

    def tamper(request: Request, reply: Reply) -> Reply:
        if request.method != "GET" or request.path != path:
            return reply
        return Reply(reply.status, reply.headers, msgspec.json.encode(change(msgspec.json.decode(reply.body))))

    return tamper


def driver_of(bed: Bed, change: Callable[[Request, Reply], Reply], **options: Any) -> RedfishDriver:
    return RedfishDriver("falcon", Tampering(bed, change), clock=LoopClock(), credentials=USER, ports=NODES, **options)


def virtually(work: Coroutine[Any, Any, None]) -> None:
    run_virtually(work)


def both_zones_have(endpoint: str) -> Callable[[Any], Any]:
    def change(zones: Any) -> Any:
        for zone in zones["Members"]:
            zone["Links"]["Endpoints"].append({"@odata.id": f"{V1}/Fabrics/falcon/Endpoints/{endpoint}"})
        return zones

    return change


def first_member(**changes: Any) -> Callable[[Any], Any]:
    def change(collection: Any) -> Any:
        collection["Members"][0] |= changes
        return collection

    return change


def other_endpoint(page: Any, *, role: str) -> Any:
    """Return the endpoint of a port or a device once more, under another URI: that of another switch."""
    first = next(each for each in page["Members"] if each["ConnectedEntities"][0]["EntityRole"] == role)
    return first | {"@odata.id": f"{first['@odata.id']}-again", "Id": f"{first['Id']}-again"}


def without(page: Any, name: str) -> Any:
    """Return a collection that lacks one member, and counts no more than it lists."""
    members = [each for each in page["Members"] if each["Id"] != name]
    assert len(members) == len(page["Members"]) - 1
    return page | {"Members": members, "Members@odata.count": len(members)}


HOSTILE = {
    "a device in two zones": (
        at(ZONES, both_zones_have("device-001300")),
        "device 001300 is assigned to several ports",
    ),
    "a link to elsewhere": (
        at(f"{V1}/", lambda root: root | {"Chassis": {"@odata.id": "http://evil.example/redfish/v1/Chassis"}}),
        "is no URI of a Redfish resource",
    ),
    "a link out of the service": (
        at(f"{V1}/", lambda root: root | {"Chassis": {"@odata.id": f"{V1}/../../etc/passwd"}}),
        "is no URI of a Redfish resource",
    ),
    "a link with a line end": (
        at(f"{V1}/", lambda root: root | {"Chassis": {"@odata.id": f"{V1}/Chassis\r\nX-Auth-Token: a"}}),
        "is no URI of a Redfish resource",
    ),
    "a long link": (
        at(f"{V1}/", lambda root: root | {"Chassis": {"@odata.id": f"{V1}/{'a' * 5000}"}}),
        "is no URI of a Redfish resource",
    ),
    "pages without end": (
        at(DEVICES, lambda page: page | {"Members": [], "Members@odata.nextLink": DEVICES}),
        "more than 64 pages",
    ),
    "members without end": (
        at(DEVICES, lambda page: page | {"Members": page["Members"] * 1000}),
        "more than 4096 members",
    ),
    "the same device twice": (
        at(DEVICES, lambda page: page | {"Members": page["Members"] + page["Members"][:1]}),
        "is listed twice",
    ),
    "members that are numbers": (at(DEVICES, lambda page: page | {"Members": [7]}), "reply can't be used"),
    "no members": (at(DEVICES, lambda _: {}), "missing required field `Members`"),
    "an id with a control character": (at(DEVICES, first_member(Id="a\x1b[2J")), "Id of a device is"),
    "a serial number that is a list": (at(DEVICES, first_member(SerialNumber=[])), "Expected `str | null`"),
    "a port with a strange name": (
        at(ENDPOINTS, first_member(Links={"ConnectedPorts": [{"@odata.id": "/a/\x07"}]})),
        "a port is called",
    ),
    "two endpoints of one port": (
        at(ENDPOINTS, lambda page: page | {"Members": [*page["Members"], other_endpoint(page, role="Initiator")]}),
        "is listed twice: /redfish/v1/Fabrics/falcon/Endpoints/",
    ),
    "two endpoints of one device": (
        at(ENDPOINTS, lambda page: page | {"Members": [*page["Members"], other_endpoint(page, role="Target")]}),
        "is listed twice: /redfish/v1/Fabrics/falcon/Endpoints/",
    ),
    "fewer members than it counts": (
        at(DEVICES, lambda page: page | {"Members": page["Members"][:3]}),
        "/redfish/v1/Chassis/falcon/PCIeDevices: lists 3 of 8 members",
    ),
    "no zones, though it counts them": (at(ZONES, lambda page: page | {"Members": []}), "Zones: lists 0 of 2 members"),
    "a device's endpoint that is assigned and not listed": (
        at(ENDPOINTS, lambda page: without(page, "device-001300")),
        "endpoint /redfish/v1/Fabrics/falcon/Endpoints/device-001300 is assigned, and not listed",
    ),
    "a port's endpoint that has devices and is not listed": (
        at(ENDPOINTS, lambda page: without(page, "port-30h")),
        "endpoint /redfish/v1/Fabrics/falcon/Endpoints/port-30h is assigned, and not listed",
    ),
    "no fabrics": (
        at(f"{V1}/", lambda root: {name: each for name, each in root.items() if name != "Fabrics"}),
        "its service has no Fabrics",
    ),
    "a null root": (at(f"{V1}/", lambda _: None), "reply can't be used"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_service_that_contradicts_itself_is_not_read(name: str) -> None:
    change, words = HOSTILE[name]

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            with pytest.raises(BadReply) as caught:
                await driver_of(bed, change).read()
        text = str(caught.value)
        assert text.startswith("chassis falcon: ")
        assert words in text
        assert text.isprintable()

    virtually(read())


def test_several_chassis_in_one_service_need_a_name() -> None:
    def twice(page: Any) -> Any:
        return page | {"Members": [*page["Members"], page["Members"][0] | {"Id": "other"}]}

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        change = at(f"{V1}/Chassis?$expand=.($levels=1)", twice)
        async with bed.running():
            with pytest.raises(InvalidInput, match="has several: falcon, other; set chassis_id"):
                await driver_of(bed, change).read()
            assert len((await driver_of(bed, change, chassis_id="falcon").read()).devices) == 8

    virtually(read())


def test_a_service_that_can_not_expand_is_read_one_by_one() -> None:
    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            expanded = await driver_of(bed, lambda _, reply: reply).read()
            plain = driver_of(bed, at(f"{V1}/", lambda root: root | {"ProtocolFeaturesSupported": {}}))
            assert await plain.read() == expanded

    virtually(read())


def test_pages_are_followed() -> None:
    def cut(request: Request, reply: Reply) -> Reply:
        if not request.path.startswith(f"{V1}/Chassis/falcon/PCIeDevices?"):
            return reply
        page = msgspec.json.decode(reply.body)
        if "$skip" in request.path:
            page["Members"] = page["Members"][3:]
        else:
            page |= {"Members": page["Members"][:3], "Members@odata.nextLink": f"{DEVICES}&$skip=3"}
        return Reply(reply.status, reply.headers, msgspec.json.encode(page))

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            assert len((await driver_of(bed, cut).read()).devices) == 8

    virtually(read())


def test_of_devices_that_are_renamed_each_time_no_more_is_kept_than_is_listed() -> None:
    readings = 0

    def rename(page: Any) -> Any:
        nonlocal readings
        readings += 1
        return first_member(SerialNumber=f"S{readings}")(page)

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, at(DEVICES, rename))
            for _ in range(3):
                await driver.read()
            assert len(driver._functions) == 8

    virtually(read())


def without_etag(request: Request, reply: Reply) -> Reply:
    if "/Zones/" not in request.path:
        return reply
    zone = msgspec.json.decode(reply.body)
    del zone["@odata.etag"]
    return Reply(reply.status, {"content-type": "application/json"}, msgspec.json.encode(zone))


def without_monitor(request: Request, reply: Reply) -> Reply:
    return Reply(202, {}, b"") if request.method == "PATCH" else reply


def monitor_elsewhere(request: Request, reply: Reply) -> Reply:
    return Reply(202, {"location": "http://evil.example/task"}, b"") if request.method == "PATCH" else reply


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (without_etag, BadReply, "has no ETag, so writers could collide"),
        (without_monitor, BadReply, "accepted without a task monitor"),
        (monitor_elsewhere, BadReply, "is no URI of a Redfish resource"),
        (lambda r, reply: Reply(412, {}, b"") if r.method == "PATCH" else reply, ChassisBusy, "status 412"),
        (lambda r, reply: Reply(403, {}, b"") if r.method == "PATCH" else reply, ChassisRefused, "status 403"),
    ],
)
def test_changes_that_can_not_be_followed_are_errors(
    change: Callable[[Request, Reply], Reply], kind: type[FarbusError], words: str
) -> None:
    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, change)
            device = (await driver.read()).device(gpu(1))
            with pytest.raises(kind, match=words):
                await driver.ask_unassign(device)

    virtually(ask())


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_is_told_by_its_own_uri_is_asked_until_it_has_ended(fails: bool) -> None:
    """Its URI answers 200 all the while, where a monitor answers 202 until the end."""
    states = iter(["New", "Pending", "Running", "Exception" if fails else "Completed"])

    def told(request: Request, reply: Reply) -> Reply:
        if "TaskMonitors" not in request.path or reply.status == 202:
            return reply
        task = {"@odata.type": "#Task.v1_7_0.Task", "TaskState": next(states), "Messages": [{"Message": "Half."}]}
        return Reply(200, {"content-type": "application/json"}, msgspec.json.encode(task))

    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, told)
            device = (await driver.read()).device(gpu(1))
            assert await driver.ask_unassign(device) == Answer(not fails, "Half." if fails else "")
            assert list(states) == []

    virtually(ask())


def test_a_task_that_never_ends_is_asked_ever_less() -> None:
    def running(request: Request, reply: Reply) -> Reply:
        if "TaskMonitors" not in request.path:
            return reply
        return Reply(202, {"location": request.path, "retry-after": "99999999"}, b"")

    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, running)
            device = (await driver.read()).device(gpu(1))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(600):
                    await driver.ask_unassign(device)
            asked = [line for line in driver._client._transport.asked if "TaskMonitors" in line]  # type: ignore[attr-defined]
            assert 50 <= len(asked) <= 60

    virtually(ask())


@pytest.mark.parametrize("token", ["", "a\r\nb", "\u00e4", "a" * 5000])
def test_a_session_without_a_usable_token_is_refused(token: str) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        return Reply(201, {"x-auth-token": token}, b"{}") if request.path.endswith("/Sessions") else reply

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            with pytest.raises(BadReply, match="session without a usable token"):
                await driver_of(bed, change).read()

    virtually(read())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b'{"error": {"message": "See it.", "@Message.ExtendedInfo": [{"Message": "Busy."}]}}',
            "Busy",
        ),
        (b'{"error": {"code": "Base.1.18.X", "message": "See it."}}', "See it"),
        (b'{"error": {"code": "Base.1.18.X"}}', '{"error": {"code": "Base.1.18.X"}}'),
        (b"<html>busy</html>", "<html>busy</html>"),
    ],
)
def test_of_an_error_the_messages_are_told(body: bytes, words: str) -> None:
    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            with pytest.raises(ChassisBusy) as caught:
                await driver_of(bed, lambda request, reply: Reply(503, {}, body)).read()
            assert str(caught.value).endswith(f": status 503: {words}")

    virtually(read())


@pytest.mark.parametrize("style", list(RedfishStyle))
def test_changes_may_be_answered_at_once(style: RedfishStyle) -> None:
    async def ask() -> None:
        bed = Bed(":memory:", chassis_config(tasks=False))
        async with bed.running(), bed.service(style.value).running() as service:
            assert (await service.move(gpu(1), "beta")).port == "31h"

    virtually(ask())


@pytest.mark.parametrize("style", [RedfishStyle.BLOCKS, RedfishStyle.COMPOSED])
def test_a_device_in_two_resource_blocks_is_neither_free_nor_at_the_last_one(style: RedfishStyle) -> None:
    def again(page: Any) -> Any:
        first = next(each for each in page["Members"] if each["Links"].get("PCIeDevices"))
        other = first | {"@odata.id": f"{first['@odata.id']}-again", "Id": f"{first['Id']}-again"}
        other["Links"] = first["Links"] | {"ComputerSystems": []}
        return page | {"Members": [*page["Members"], other]}

    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        change = at(f"{V1}/CompositionService/ResourceBlocks?$expand=.($levels=1)", again)
        async with bed.running():
            with pytest.raises(BadReply, match=r"device \w+ is listed twice: .*/ResourceBlocks/"):
                await driver_of(bed, change, style=style).read()

    virtually(read())


def test_a_device_in_a_system_that_is_not_listed_is_not_free() -> None:
    async def read() -> None:
        bed = Bed(":memory:", chassis_config())
        change = at(f"{V1}/Systems?$expand=.($levels=1)", lambda page: without(page, "30h"))
        async with bed.running():
            with pytest.raises(BadReply, match="device 000300 is in system /redfish/v1/Systems/30h, which is not list"):
                await driver_of(bed, change, style=RedfishStyle.BLOCKS).read()

    virtually(read())


@pytest.mark.parametrize("etag", ['"1"\r\nX-Auth-Token: mine', '"\N{SNOWMAN}"', '"' + "1" * 10_000 + '"'])
def test_an_etag_that_can_not_be_a_header_is_not_sent(etag: str) -> None:
    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())

        def change(request: Request, reply: Reply) -> Reply:
            if request.method != "GET" or "/Zones/" not in request.path:
                return reply
            zone = msgspec.json.decode(reply.body) | {"@odata.etag": etag}
            headers = {name: value for name, value in reply.headers.items() if name != "etag"}
            return Reply(reply.status, headers, msgspec.json.encode(zone))

        async with bed.running():
            driver = driver_of(bed, change)
            device = (await driver.read()).device(gpu(1))
            with pytest.raises(BadReply, match="the resource has the ETag"):
                await driver.ask_unassign(device)
            assert bed.ports()[gpu(1)] == "30h"

    virtually(ask())


def shared(path: str, what: str, key: str) -> Callable[[Request, Reply], Reply]:
    """Have the first of a collection's members, also read by itself, stand for the next one's device, too."""
    kept: dict[str, Any] = {}

    def tamper(request: Request, reply: Reply) -> Reply:
        if request.method != "GET" or not request.path.startswith(path):
            return reply
        body = msgspec.json.decode(reply.body)
        if "Members" not in body:
            return Reply(reply.status, reply.headers, msgspec.json.encode(kept.get(request.path, body)))
        first, second = [each for each in body["Members"] if what in each["@odata.id"]][:2]
        mine, others = (each if key in each else each["Links"] for each in (first, second))
        mine[key], others[key] = [*mine[key], *others[key]], []
        kept[first["@odata.id"]] = first
        return Reply(reply.status, reply.headers, msgspec.json.encode(body))

    return tamper


SHARED = {
    RedfishStyle.ZONES: (f"{V1}/Fabrics/falcon/Endpoints", "/device-", "ConnectedEntities"),
    RedfishStyle.CONNECTIONS: (f"{V1}/Fabrics/falcon/Connections", "/Connections/", "TargetEndpoints"),
    RedfishStyle.BLOCKS: (f"{V1}/CompositionService/ResourceBlocks", "/ResourceBlocks/00", "PCIeDevices"),
    RedfishStyle.COMPOSED: (f"{V1}/CompositionService/ResourceBlocks", "/ResourceBlocks/00", "PCIeDevices"),
}


@pytest.mark.parametrize("style", SHARED)
def test_a_device_that_shares_what_stands_for_it_takes_no_other_along(style: RedfishStyle) -> None:
    """The other one would go from under the node that uses it."""

    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, shared(*SHARED[style]), style=style)
            view = await driver.read()
            assert view.device(gpu(0)).port == view.device(gpu(1)).port == "30h"
            with pytest.raises(BadReply, match="none of them can be moved without the others"):
                await driver.ask_unassign(view.device(gpu(0)))
            assert bed.ports()[gpu(0)] == bed.ports()[gpu(1)] == "30h"

    virtually(ask())


def with_slashes(request: Request, reply: Reply) -> Reply:
    """Have each link to what is a member of a collection end in a slash, which the members' own names do not."""

    def change(value: Any, *, inside: bool = False) -> Any:
        if isinstance(value, list):
            return [change(each, inside=inside) for each in value]
        if not isinstance(value, dict):
            return value
        if inside and value.keys() == {"@odata.id"}:
            return {"@odata.id": value["@odata.id"] + "/"}
        return {
            key: change(each, inside=inside or key in ("Links", "ConnectedEntities", "ComputerSystems"))
            for key, each in value.items()
        }

    if request.method != "GET" or not reply.body:
        return reply
    return Reply(reply.status, reply.headers, msgspec.json.encode(change(msgspec.json.decode(reply.body))))


@pytest.mark.parametrize("style", list(RedfishStyle))
def test_a_link_that_ends_in_a_slash_is_to_the_same_resource(style: RedfishStyle) -> None:
    async def ask() -> None:
        bed = Bed(":memory:", chassis_config(tasks=False))
        async with bed.running():
            driver = driver_of(bed, with_slashes, style=style)
            view = await driver.read()
            plain = await driver_of(bed, lambda _, reply: reply, style=style).read()
            assert view.devices == plain.devices
            assert view.device(gpu(0)).port == "30h"
            assert await driver.ask_unassign(view.device(gpu(0))) == Answer(True)
            assert bed.ports()[gpu(0)] == ""
            assert await driver.ask_assign((await driver.read()).device(gpu(0)), "31h") == Answer(True)
            assert bed.ports()[gpu(0)] == "31h"

    virtually(ask())


def test_a_connection_that_leads_elsewhere_by_now_is_left_alone() -> None:
    async def ask() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running():
            driver = driver_of(bed, lambda _, reply: reply, style=RedfishStyle.CONNECTIONS)
            before = (await driver.read()).device(gpu(1))
            # Somebody else moves it to another port, and this driver has read that since.
            assert (await bed.chassis.unassign("001300")).done
            assert (await bed.chassis.assign("001300", "31h")).done
            await driver.read()
            with pytest.raises(ChassisBusy, match=r"connection of device .* leads elsewhere meanwhile"):
                await driver.ask_unassign(before)
            assert bed.ports()[gpu(1)] == "31h"

    virtually(ask())


def test_a_chassis_that_does_not_answer_the_end_of_a_session_keeps_nobody() -> None:
    class Hanging(LocalTransport):
        async def exchange(self, request: Request) -> Reply:
            if request.method == "DELETE":
                await asyncio.get_running_loop().create_future()
            return await super().exchange(request)

    async def end() -> None:
        bed = Bed(":memory:", chassis_config())
        async with bed.running(), asyncio.timeout(60):
            transport = Hanging("falcon", bed.fronts["redfish"])
            driver = RedfishDriver("falcon", transport, clock=LoopClock(), credentials=USER, ports=NODES)
            async with ChassisService(driver, clock=LoopClock()).running() as service:
                await service.list()

    virtually(end())
