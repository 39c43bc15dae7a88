"""A chassis over the network: hostile replies, TLS, sessions, faults of connections. Real sockets, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from farbus.errors import FarbusError, InvalidInput, NotPermitted
from farbus.hotplug.fabric import http
from farbus.hotplug.fabric.config import ChassisAccess, make_driver, read_config, read_credentials
from farbus.hotplug.fabric.driver import Driver
from farbus.hotplug.fabric.emulator.config import EmulatorConfig
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind
from farbus.hotplug.fabric.emulator.run import BackendKind, serving
from farbus.hotplug.fabric.emulator.server import make_certificate
from farbus.hotplug.fabric.errors import BadReply, ChassisRefused, ChassisUnavailable
from farbus.hotplug.fabric.h3 import H3Driver, KnownDevice
from farbus.hotplug.fabric.http import HttpTransport, Reply, Request, check_status
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.hotplug.fabric.service import ChassisService
from farbus.linux.clock import SystemClock
from farbus.model.fabric import Dialect, FabricStep, RedfishStyle
from tests.hotplug.fabric.testbed import NODES, chassis_config, gpu

OK = b"HTTP/1.1 200 OK\r\n"


@contextlib.asynccontextmanager
async def answering(reply: bytes | Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Serve the same bytes to everybody, and end the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n\r\n")
            if length := re.search(rb"Content-Length: (\d+)", asked):
                await reader.readexactly(int(length[1]))
            writer.write(reply if isinstance(reply, bytes) else reply(asked))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def h3_driver(url: str) -> AsyncIterator[Driver]:
    driver = H3Driver("falcon", HttpTransport("falcon", url), ports=NODES)
    try:
        yield driver
    finally:
        await driver.close()


def body(data: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers).encode()
    return OK + lines + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data


GOOD = b'{"dev_type":"GPU","Dev_GID":"001300","OB_GPU_GUID":"","Host_Port#":"","Port#":"1","Port_GID":""}'


def listing_and(reply: bytes) -> Callable[[bytes], bytes]:
    """Answer a listing of one device, and ``reply`` to what is asked to be done with it."""
    return lambda asked: body(b"[" + GOOD + b"]" if asked.startswith(b"GET") else reply)


HOSTILE = {
    "empty": (body(b""), BadReply, "reply can't be used"),
    "not JSON": (body(b"<html>busy</html>"), BadReply, "reply can't be used"),
    "cut JSON": (body(b"[" + GOOD[:40]), BadReply, "reply can't be used"),
    "cut connection": (OK + b"Content-Length: 999\r\n\r\n[", ChassisUnavailable, "connection broke: half a reply"),
    "nothing": (b"", ChassisUnavailable, "connection broke"),
    "half a head": (OK[:9], ChassisUnavailable, "connection broke"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", BadReply, "not HTTP"),
    "an object": (body(b"{}"), BadReply, "Expected `array`"),
    "numbers": (body(b'[{"Dev_GID":7}]'), BadReply, "Expected `str`"),
    "null": (body(b"null"), BadReply, "Expected `array`"),
    "no id": (body(b"[{}]"), BadReply, "Dev_GID of a device is ''"),
    "control characters": (body(b'[{"Dev_GID":"a\\u001b[2J\\nb"}]'), BadReply, "Dev_GID of a device is"),
    "a long id": (body(b'[{"Dev_GID":"' + b"a" * 5000 + b'"}]'), BadReply, "Dev_GID of a device is"),
    "twice": (body(b"[" + GOOD + b"," + GOOD + b"]"), BadReply, "device 001300 is listed twice"),
    "too many": (body(b"[" + b",".join([GOOD] * 5000) + b"]"), BadReply, "5000 devices"),
    "deep": (body(b"[" * 100_000), BadReply, "reply can't be used"),
    "UTF-16": (body("[]".encode("utf-16"), "Content-Type: text/plain; charset=utf-16"), BadReply, "in utf-16, not"),
    "bytes that are no UTF-8": (body(b'[{"Dev_GID":"\xff\xfe"}]'), BadReply, "reply can't be used"),
    "compressed": (body(b"\x1f\x8b\x08\x00", "Content-Encoding: gzip"), BadReply, "is compressed"),
    "a redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        BadReply,
        "redirects are not followed",
    ),
    "an error": (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops", ChassisUnavailable, "status 500: oops"),
    "an error of many lines": (
        b"HTTP/1.1 500 Oh\r\nContent-Length: 2011\r\n\r\n" + b"a\nb\x1b[31m\r\nc" + b"x" * 2000,
        ChassisUnavailable,
        "status 500: a b",
    ),
    "forbidden": (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", ChassisRefused, "status 403"),
    "no such path": (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", BadReply, "status 404"),
    "a head without end": (OK + b"X: " + b"a" * 100_000, BadReply, "not HTTP"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_replies_are_errors_of_one_line_that_name_the_chassis(name: str) -> None:
    reply, kind, words = HOSTILE[name]
    async with answering(reply) as url, h3_driver(url) as driver:
        with pytest.raises(kind) as caught:
            await driver.read()
    text = str(caught.value)
    assert text.startswith("chassis falcon: ")
    assert words in text
    assert text.isprintable()
    assert len(text) < 500


@pytest.mark.parametrize("announced", [True, False])
async def test_a_huge_reply_is_left_at_the_limit(announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 1 << 20)
    head = b"Content-Length: 999999999999\r\n\r\n" if announced else b"\r\n"
    async with answering(OK + head + b" " * (3 << 20)) as url, h3_driver(url) as driver:
        with pytest.raises(BadReply, match="larger than 1 MiB"):
            await driver.read()


async def test_nobody_there_is_told() -> None:
    async with answering(b"") as url:
        pass
    async with h3_driver(url) as driver:
        with pytest.raises(ChassisUnavailable, match="chassis falcon: can't be reached: Connect") as caught:
            await driver.read()
    assert "its url" in caught.value.hint


@pytest.mark.parametrize(
    "reply", [b'{"Result":[]}', b'{"Result":[true,false]}', b'{"Result":[false],"Remark":"a\\nb"}']
)
async def test_only_a_result_that_is_all_true_is_a_yes(reply: bytes) -> None:
    view = body(b"[" + GOOD + b"]")
    async with (
        answering(lambda asked: view if asked.startswith(b"GET") else body(reply)) as url,
        h3_driver(url) as driver,
    ):
        device = (await driver.read()).devices[0]
        answer = await driver.ask_assign(device, "30h")
    assert not answer.accepted
    assert "\n" not in answer.remark


async def test_a_result_that_is_no_list_can_not_be_used() -> None:
    view = body(b"[" + GOOD + b"]")
    async with (
        answering(lambda asked: view if asked.startswith(b"GET") else body(b'{"Result":true}')) as url,
        h3_driver(url) as driver,
    ):
        device = (await driver.read()).devices[0]
        with pytest.raises(BadReply, match="Expected `array`"):
            await driver.ask_assign(device, "30h")


# The emulator over sockets.


class Site:
    def __init__(self, directory: Path, urls: dict[str, str]) -> None:
        self.directory = directory
        self.urls = urls
        self.certificate = str(directory / "state" / "redfish.crt")
        self.credentials = str(directory / "credentials")

    def access(self, dialect: Dialect, **changes: object) -> ChassisAccess:
        access = ChassisAccess(name="falcon", dialect=dialect, url=self.urls[dialect], ports=NODES)
        if dialect is Dialect.REDFISH:
            access = msgspec.structs.replace(access, certificate=self.certificate, credentials=self.credentials)
        return msgspec.structs.replace(access, **changes)

    @contextlib.asynccontextmanager
    async def service(self, access: ChassisAccess) -> AsyncIterator[ChassisService]:
        driver = make_driver(access, clock=SystemClock())
        async with ChassisService(driver, clock=SystemClock()).running() as service:
            yield service


@contextlib.asynccontextmanager
async def site(directory: Path, **changes: object) -> AsyncIterator[Site]:
    credentials = directory / "credentials"
    credentials.write_text('user = "operator"\npassword = "secret"\n')
    credentials.chmod(0o600)
    chassis = chassis_config(h3="127.0.0.1:0", redfish="127.0.0.1:0", **changes)
    config = EmulatorConfig(chassis=(chassis,), speed=0.0, credentials="credentials")
    async with serving(config, directory, backend=BackendKind.NONE, tell=lambda _: None) as served:
        yield Site(directory, {each.dialect: each.url for each in served})


async def test_both_dialects_over_sockets_change_the_same_state(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        assert here.urls["redfish"].startswith("https://")
        async with here.service(here.access(Dialect.H3)) as h3, here.service(here.access(Dialect.REDFISH)) as redfish:
            assert (await h3.unassign(gpu(1))).is_free
            assert (await redfish.assign(gpu(1), "beta")).port == "31h"
            assert (await h3.list()).device(gpu(1)).port == "31h"


async def test_state_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with site(tmp_path) as here, here.service(here.access(Dialect.H3)) as service:
        await service.move(gpu(1), "beta")
    async with site(tmp_path) as here, here.service(here.access(Dialect.H3)) as service:
        assert (await service.list()).device(gpu(1)).port == "31h"


async def test_two_emulators_do_not_share_a_state(tmp_path: Path) -> None:
    async with site(tmp_path):
        with pytest.raises(FarbusError, match="is in use by process"):
            async with site(tmp_path):
                pass


@pytest.mark.parametrize("kind", ["eof", "error", "cut"])
@pytest.mark.parametrize("dialect", list(Dialect))
async def test_broken_connections_are_survived(tmp_path: Path, dialect: Dialect, kind: str) -> None:
    script = [Fault(kind=FaultKind(kind), step=step, number=1, after=True) for step in FabricStep]
    async with site(tmp_path, script=tuple(script)) as here, here.service(here.access(dialect)) as service:
        assert (await service.move(gpu(1), "beta")).port == "31h"


@pytest.mark.parametrize("style", list(RedfishStyle))
async def test_each_style_of_redfish_works_over_tls(tmp_path: Path, style: RedfishStyle) -> None:
    async with site(tmp_path) as here, here.service(here.access(Dialect.REDFISH, style=style)) as service:
        assert (await service.move(gpu(1), "beta")).port == "31h"


async def test_another_certificate_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificate, _ = make_certificate(other, now=datetime.datetime.now().timestamp())
    async with (
        site(tmp_path) as here,
        here.service(here.access(Dialect.REDFISH, certificate=str(certificate))) as service,
    ):
        with pytest.raises(ChassisRefused, match="its certificate is not the one that is known"):
            await service.list()


async def test_a_certificate_without_a_known_authority_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as here, here.service(here.access(Dialect.REDFISH, certificate="")) as service:
        with pytest.raises(ChassisRefused, match="by no authority that this system trusts; name it by certificate"):
            await service.list()


async def test_a_certificate_by_another_authority_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    authority, _ = make_certificate(other, now=datetime.datetime.now().timestamp())
    async with site(tmp_path) as here:
        access = here.access(Dialect.REDFISH, certificate="", authority=str(authority))
        async with here.service(access) as service:
            with pytest.raises(ChassisRefused, match="is not by the known authority"):
                await service.list()


async def test_what_speaks_no_tls_is_told_in_words_of_tls(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        access = here.access(Dialect.REDFISH, url=here.urls["h3"].replace("http:", "https:"))
        async with here.service(access) as service:
            with pytest.raises(
                ChassisRefused, match=r"no TLS with it: .*is the port of its url that of https"
            ) as caught:
                await service.list()
    assert "<" not in str(caught.value)


async def test_a_chassis_that_asks_for_credentials_where_none_are_configured_is_refused_with_the_cure(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as here, here.service(here.access(Dialect.REDFISH, credentials="")) as service:
        with pytest.raises(ChassisRefused, match="no credentials are configured; name a file by credentials"):
            await service.list()


@pytest.mark.parametrize(
    ("text", "words"), [(None, "none.crt: No such file.*path"), ("nothing", "none.crt: is none in PEM; one begins")]
)
@pytest.mark.parametrize("setting", ["certificate", "authority"])
def test_a_file_that_is_no_certificate_is_told(tmp_path: Path, setting: str, text: str | None, words: str) -> None:
    path = tmp_path / "none.crt"
    if text is not None:
        path.write_text(text)
    access = ChassisAccess(name="falcon", dialect=Dialect.REDFISH, url="https://127.0.0.1:1")
    with pytest.raises(InvalidInput, match=words):
        make_driver(msgspec.structs.replace(access, **{setting: str(path)}), clock=SystemClock())


def test_paths_are_those_of_the_files_directory(tmp_path: Path) -> None:
    (tmp_path / "fabric.toml").write_text(
        'history = "times"\n[[chassis]]\nname = "falcon"\ndialect = "redfish"\nurl = "https://127.0.0.1:1"\n'
        'certificate = "a.crt"\ncredentials = "/etc/farbus/b"\n'
    )
    config = read_config(str(tmp_path / "fabric.toml"))
    (access,) = config.chassis
    assert (config.history, access.certificate) == (str(tmp_path / "times"), str(tmp_path / "a.crt"))
    assert (access.authority, access.credentials) == ("", "/etc/farbus/b")


async def test_an_authority_does_instead_of_a_pinned_certificate(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        access = here.access(Dialect.REDFISH, certificate="", authority=here.certificate)
        async with here.service(access) as service:
            assert len((await service.list()).devices) == 8


async def test_a_wrong_password_is_told_without_the_password(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        wrong = tmp_path / "wrong"
        wrong.write_text('user = "operator"\npassword = "hunter2"\n')
        wrong.chmod(0o600)
        async with here.service(here.access(Dialect.REDFISH, credentials=str(wrong))) as service:
            with pytest.raises(ChassisRefused, match="user operator can't log in") as caught:
                await service.list()
    assert "hunter2" not in repr(caught.value)


async def test_without_a_session_nothing_but_the_root_is_served(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        transport = HttpTransport("falcon", here.urls["redfish"], pinned=here.certificate)
        try:
            assert (await transport.exchange(Request("GET", "/redfish/v1/"))).status == 200
            for path in ("Chassis", "Fabrics", "Systems", "SessionService/Sessions", "TaskService/TaskMonitors/1"):
                assert (await transport.exchange(Request("GET", f"/redfish/v1/{path}"))).status == 401
            assert (
                await transport.exchange(Request("PATCH", "/redfish/v1/Fabrics/falcon/Zones/30h", {}))
            ).status == 401
        finally:
            await transport.close()


async def test_a_request_that_can_not_be_decompressed_is_a_bad_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as here:
        transport = HttpTransport("falcon", here.access(Dialect.H3).url)
        try:
            request = Request("POST", "/h3api/v1/allocation", {}, {"Content-Encoding": "gzip"})
            assert (await transport.exchange(request)).status == 400
        finally:
            await transport.close()
    assert len(caplog.records) == 1
    (line,) = caplog.text.splitlines()
    assert "Can not decode content-encoding: gzip" in line


async def test_what_is_no_request_is_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with site(tmp_path) as here:
        url = urlsplit(here.access(Dialect.H3).url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n")
        assert (await reader.readline()).endswith(b" 400 Bad Request\r\n")
        writer.close()
    (line,) = caplog.text.splitlines()
    assert "127.0.0.1" in line


async def test_sessions_are_closed_at_the_end(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        for _ in range(3):
            async with here.service(here.access(Dialect.REDFISH)) as service:
                await service.list()
        async with here.service(here.access(Dialect.REDFISH)) as service:
            await service.list()
            driver = service._driver
            listed = await driver._client.ask("GET", "/redfish/v1/SessionService/Sessions")  # type: ignore[attr-defined]
            assert msgspec.json.decode(listed.body)["Members@odata.count"] == 1


# Credentials and settings.


def test_credentials_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text('user = "operator"\npassword = "secret"\n')
    path.chmod(0o640)
    with pytest.raises(NotPermitted, match="others can read or write it; chmod 600"):
        read_credentials(str(path), what="chassis falcon")


@pytest.mark.parametrize("text", ["", "user = 1", 'password = "secret', 'user="a"\npassword="secret"\nmore=1'])
def test_credentials_that_are_not_understood_are_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match="not understood") as caught:
        read_credentials(str(path), what="chassis falcon")
    assert "secret" not in str(caught.value)


def test_a_password_is_in_no_text() -> None:
    assert "secret" not in repr(Credentials("operator", "secret"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "ftp://x"}, "not http://HOST:PORT"),
        ({"url": "http://user:secret@x"}, "not http://HOST:PORT"),
        ({"url": "http://x:99999"}, "not http://HOST:PORT"),
        ({"url": "http://[::1"}, "not http://HOST:PORT"),
        ({"url": "http://"}, "not http://HOST:PORT"),
        ({"name": ""}, "its name is not"),
        ({"name": "rack/falcon"}, "without a slash"),
        ({"name": "falcon\x1b[31m"}, "its name is not"),
        ({"ports": {"30h": "al\npha"}}, "ports: '30h'"),
        ({"ports": {"": "alpha"}}, "ports: ''"),
        ({"devices": {"001300": KnownDevice(serial="S\n1")}}, "devices.'001300': serial or model is not"),
        ({"devices": {"001300": KnownDevice(model="m" * 257)}}, "devices.'001300': serial or model is not"),
        ({"devices": {"001300": KnownDevice(vendor_id=0x10000)}}, "vendor_id or device_id is not of 16 bits"),
        ({"devices": {"001300": KnownDevice(device_id=-1)}}, "vendor_id or device_id is not of 16 bits"),
        (
            {"devices": {"001300": KnownDevice(serial="S1"), "002300": KnownDevice(serial="s1")}},
            "devices: '001300' and '002300' have the same serial s1",
        ),
        ({"parallel": 0}, "not from 1 to 64"),
        ({"parallel": 2}, "one request at a time"),
        ({"credentials": "x"}, "clear text"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, object], words: str) -> None:
    access = msgspec.structs.replace(
        ChassisAccess(name="falcon", dialect=Dialect.H3, url="http://127.0.0.1:1"), **changes
    )
    with pytest.raises(InvalidInput, match=words):
        make_driver(access, clock=SystemClock())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alpha\\nbeta", "its name is not 1 to 256 printable characters without a slash"),
        ("falcon", "chassis falcon is there twice"),
    ],
)
def test_a_file_with_names_that_can_not_be_is_refused_before_anybody_hears_them(
    name: str, words: str, tmp_path: Path
) -> None:
    """A scheduler would end the session of an agent that says such a name, each time."""
    path = tmp_path / "fabric.toml"
    chassis = '[[chassis]]\nname = "{}"\ndialect = "h3"\nurl = "http://127.0.0.1:1"\n'
    path.write_text(chassis.format("falcon") + chassis.format(name))
    with pytest.raises(InvalidInput, match=words) as caught:
        read_config(str(path))
    assert str(caught.value).startswith(f"fabric: {path}: ")


def test_a_file_with_settings_that_can_not_be_is_refused_by_name_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text('[[chassis]]\nname = "a"\ndialect = "h3"\nurl = "127.0.0.1:1"\n')
    with pytest.raises(InvalidInput, match=r"fabric.toml: chassis a: url '127.0.0.1:1': not http://HOST:PORT"):
        read_config(str(path))


def test_the_full_stop_of_a_chassis_is_left_out_of_a_line() -> None:
    reply = Reply(503, {}, b"The service is busy.")
    with pytest.raises(ChassisUnavailable) as told:
        check_status("falcon", Request("GET", "/a"), reply, ok=frozenset({200}))
    assert told.value.message == "chassis falcon: GET /a: status 503: The service is busy"
