"""The door to NVMe over Fabrics: its promise, what versions of nvme-cli print, and trees of sysfs that are odd."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import Conflict, InvalidInput, NotPermitted, Unavailable
from farbus.linux.device_mapper import FakeDeviceMapper, parse_table, table_of
from farbus.linux.fake_nvme import FakeNvme
from farbus.linux.nvme import KernelNvme, parse_address
from farbus.linux.nvme_cli import NvmeCli, connect_call, connect_error, parse_discovery, parse_smart_log, parse_version
from farbus.model.nvmeof import (
    AnaState,
    ControllerState,
    DiscoveryKind,
    NamespacePath,
    Stripe,
    Transport,
    TransportAddress,
    transport_address,
)
from farbus.nvmeof.keys import tls_key_of
from tests.linux.nvme_contract import SECRET, keeps_its_promise, keeps_its_promise_by_tls
from tests.nvmeof.attaching import FIRST, FIRST_TLS, KEY, SECOND, SECOND_TLS, SIZE, a_connection, a_target

OTHER_KEY = "DHHC-1:00:2wKd3YDIcRMN/rCJa/k60E8xBQMw+2D9UnigSQ6YFkEHV3Yy:"
NOBODY = "tcp://10.0.0.2:4421"


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.0"])
@pytest.mark.parametrize("key", ["", KEY])
async def test_the_fake_keeps_the_promise(version: str, key: str, tmp_path: Path) -> None:
    fake, connection = FakeNvme(tmp_path, version=version), a_connection(loss_s=30)
    fake.offer(a_target(connection, key=key), a_target(a_connection("other"), addresses=(NOBODY,), closed=(NOBODY,)))
    await keeps_its_promise(fake, connection, key=key, other_key=OTHER_KEY, nobody=transport_address(NOBODY))


@pytest.mark.parametrize("version", ["2.13", "3.0"])
@pytest.mark.parametrize("key", ["", KEY])
async def test_the_fake_keeps_the_promise_by_tls(version: str, key: str, tmp_path: Path) -> None:
    addresses = (transport_address(FIRST_TLS), transport_address(SECOND_TLS))
    fake, connection = FakeNvme(tmp_path, version=version), a_connection(addresses=addresses)
    fake.offer(a_target(connection, key=key, psk=tls_key_of(SECRET, connection.name).psk))
    await keeps_its_promise_by_tls(fake, fake.tls_keys, connection, key=key)


async def test_what_knows_no_tls_is_named_and_asked_for_nothing(tmp_path: Path) -> None:
    address = transport_address(FIRST_TLS)
    connection = a_connection(addresses=(address,))
    for number, (fake, says) in enumerate(
        (
            (FakeNvme(tmp_path / "old", version="2.3"), "nvme-cli 2.3 knows no TLS"),
            (FakeNvme(tmp_path / "kernel", tls=False), "this kernel knows no TLS"),
        )
    ):
        with pytest.raises(Unavailable, match=says) as caught:
            await fake.connect(connection, address)
        assert caught.value.hint, number
        assert fake.calls == []


# nvme-cli.


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("nvme version 2.3 (git 2.3)\nlibnvme version 1.3 (git 1.3)\n", (2, 3)),
        ("nvme version 2.13 (git 2.13)\nlibnvme version 1.13 (git 1.13)\n", (2, 13)),
        ("nvme version 3.0-rc1 (git 3.0-rc1)\nlibnvme version 3.0\n", (3, 0)),
        ("nvme version v3.1.2\n", (3, 1, 2)),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_what_is_no_version_is_told() -> None:
    with pytest.raises(Unavailable, match="'bash: nvme' is no version"):
        parse_version("bash: nvme")


def cli(*version: int, options: tuple[str, ...] = ()) -> NvmeCli:
    return NvmeCli(version=version, options=frozenset(options))


@pytest.mark.parametrize("version", [(2, 3), (2, 13)])
def test_2_is_told_by_arguments_and_json(version: tuple[int, ...]) -> None:
    call = connect_call(cli(*version), a_connection(io_queues=4), transport_address(FIRST), key=KEY)
    assert call.arguments[0] == "connect"
    assert {"--transport=tcp", "--traddr=10.0.0.2", "--trsvcid=4420", "--nr-io-queues=4"} < set(call.arguments)
    assert {"--ctrl-loss-tmo=60", "--reconnect-delay=2", "--keep-alive-tmo=5", "--verbose"} < set(call.arguments)
    (host,) = json.loads(call.configuration)
    assert (host["hostnqn"], host["dhchap_key"]) == (a_connection().name.host_nqn, KEY)
    (port,) = host["subsystems"][0]["ports"]
    assert (port["traddr"], port["trsvcid"], port["keep_alive_tmo"]) == ("10.0.0.2", "4420", 5)


@pytest.mark.parametrize("version", [(2, 13), (3, 0)])
def test_tls_is_asked_for_where_the_address_has_it(version: tuple[int, ...]) -> None:
    for address, asked in ((FIRST_TLS, True), (FIRST, False)):
        call = connect_call(cli(*version), a_connection(), transport_address(address))
        if version < (3,):
            assert ("--tls" in call.arguments) is asked
            (port,) = json.loads(call.configuration)[0]["subsystems"][0]["ports"]
            assert port.get("tls", False) is asked
        else:
            assert ("tls = true" in call.configuration.splitlines()) is asked


def test_3_is_told_by_ini_and_as_whose() -> None:
    call = connect_call(cli(3, 0, options=("owner",)), a_connection(), transport_address("tcp://[fd00::7]:1"), key=KEY)
    assert "--owner=farbus" in call.arguments
    assert not any("traddr" in word for word in call.arguments)
    lines = call.configuration.splitlines()
    assert lines[0] == "[Host]"
    assert f"kxchap-secret = {KEY}" in lines[: lines.index("[Subsystem]")]
    assert "controller = transport=tcp;traddr=fd00::7;trsvcid=1" in lines
    assert "ctrl-loss-tmo = 60" in lines


def test_3_without_owners_is_not_told_one() -> None:
    call = connect_call(cli(3, 0), a_connection(), transport_address(FIRST))
    assert not any("owner" in word for word in call.arguments)


@pytest.mark.parametrize("version", [(2, 3), (2, 13), (3, 0)])
def test_keys_are_in_no_argument(version: tuple[int, ...]) -> None:
    call = connect_call(cli(*version), a_connection(), transport_address(FIRST), key=KEY)
    assert KEY in call.configuration
    assert not any(KEY in word for word in call.arguments)
    # Twice would have 2.13 print it.
    assert [word for word in call.arguments if word.startswith(("-v", "--verbose"))] == ["--verbose"]


LOG_2_3 = """{
  "genctr":4,
  "records":[
    {"trtype":"tcp","adrfam":"ipv4","subtype":"current discovery subsystem",
     "treq":"not specified, sq flow control disable supported","portid":1,"trsvcid":"4420",
     "subnqn":"nqn.2014-08.org.nvmexpress.discovery","traddr":"10.9.0.2","eflags":"none","sectype":"none"},
    {"trtype":"tcp","adrfam":"ipv4","subtype":"nvme subsystem",
     "treq":"not specified, sq flow control disable supported","portid":1,"trsvcid":"4420",
     "subnqn":"nqn.2026-11.io.farbus:lease:l1:3","traddr":"10.9.0.2","eflags":"none","sectype":"none"},
    {"trtype":"tcp","adrfam":"ipv4","subtype":"discovery subsystem referral","treq":"not specified","portid":2,
     "trsvcid":"4420","subnqn":"nqn.2014-08.org.nvmexpress.discovery","traddr":"10.9.1.2","eflags":"none",
     "sectype":"none"},
    {"trtype":"fc","subtype":"nvme subsystem","trsvcid":"none","subnqn":"nqn.x","traddr":"nn-0x1:pn-0x2"},
    {"trtype":"tcp"}, 7
  ]
}"""
"""As nvme-cli 2.3 and 2.13 printed it in a guest; the last three entries are our own."""


def test_a_discovery_log_is_read_and_what_makes_no_sense_is_left_out() -> None:
    found = [(one.kind, str(one.address)) for one in parse_discovery(LOG_2_3)]
    assert found == [
        (DiscoveryKind.CURRENT, "tcp://10.9.0.2:4420"),
        (DiscoveryKind.SUBSYSTEM, "tcp://10.9.0.2:4420"),
        (DiscoveryKind.REFERRAL, "tcp://10.9.1.2:4420"),
    ]


@given(st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["records", "subtype", "trtype", "traddr", "trsvcid", "subnqn"]), inner),
).map(json.dumps))  # fmt: skip
def test_a_discovery_log_of_whatever_is_a_log_or_none(text: str) -> None:
    try:
        parse_discovery(text)
    except Unavailable:
        pass


SMART = {
    "critical_warning": 5, "temperature": 318, "avail_spare": 4, "spare_thresh": 10, "percent_used": 12,
    "data_units_read": "2000", "data_units_written": "1", "media_errors": "3", "num_err_log_entries": "9",
    "power_on_hours": "100", "unsafe_shutdowns": "2",
}  # fmt: skip


@pytest.mark.parametrize("numbers", ["words", "numbers", "spelt out"])
def test_smart_is_read_as_each_version_prints_it(numbers: str) -> None:
    log: dict[str, object] = dict(SMART)
    if numbers != "words":
        log = {name: int(str(value)) for name, value in SMART.items()}
    if numbers == "spelt out":
        log["critical_warning"] = {"value": 5, "available_spare": 1}
    found = parse_smart_log(json.dumps(log))
    assert (found.temperature_c, found.spare_percent, found.used_percent) == (45, 4, 12)
    assert (found.read_bytes, found.written_bytes) == (1_024_000_000, 512_000)
    assert found.troubles == (
        "spare capacity below its threshold", "reliability degraded by errors", "3 media errors",
    )  # fmt: skip


def test_a_controller_without_a_thermometer_has_no_temperature() -> None:
    assert parse_smart_log('{"critical_warning":0,"temperature":0}').temperature_c is None


@pytest.mark.parametrize("text", ["", "[]", '{"temperature":1}', '{"critical_warning":"x"}', "usage: nvme"])
def test_what_is_no_smart_log_is_told(text: str) -> None:
    with pytest.raises(Unavailable, match="SMART log"):
        parse_smart_log(text)


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        (
            "Failed to write to /dev/nvme-fabrics: Key was rejected by service\n"
            "could not add new controller: failed to write to nvme-fabrics device\n",
            NotPermitted, "authentication failed: the target refuses the key",
        ),
        ("Failed to write to /dev/nvme-fabrics: Required key not available\n", NotPermitted, "wants a key"),
        ("Failed to write to /dev/nvme-fabrics: Connection timed out\n", Unavailable, "no answer"),
        ("Failed to write to /dev/nvme-fabrics: Operation already in progress\n", Conflict, "already"),
        ("failed to connect to hostnqn=x,nqn=(null),\n", Unavailable, "failed to connect to hostnqn=x"),
        (f"connect ctrl, 'dhchap_secret={KEY},nr_io_queues=1'\n", Unavailable, "dhchap_secret=(a key)"),
        ("", Unavailable, "nvme-cli says nothing"),
    ],
)  # fmt: skip
def test_what_nvme_cli_says_becomes_one_line(said: str, kind: type[Exception], says: str) -> None:
    error = connect_error(transport_address(FIRST), said)
    assert type(error) is kind
    assert says in str(error)
    assert str(error).startswith(f"connect {FIRST}: ")
    assert "\n" not in str(error)
    assert "DHHC" not in str(error)


PROGRAM = """#!/bin/sh
case "$1" in
version) echo "nvme version $(cat {directory}/version) (git)";;
connect)
    for word; do case "$word" in --config=*) cat "${{word#--config=}}" > {directory}/configuration;; esac; done
    echo "$@" > {directory}/arguments
    [ "$2" = --help ] && echo "  [  --owner=<STR> ]  --idempotent" >&2
    exit 1;;
smart-log) echo "passthru: Input/output error" >&2; echo "Usage: nvme" >&2; exit 1;;
esac
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program in the place of nvme-cli."""
    path = tmp_path / "nvme"
    path.write_text(PROGRAM.format(directory=tmp_path))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "version").write_text("2.3")
    (tmp_path / "sys/module/nvme_tcp").mkdir(parents=True)
    return path


async def test_a_key_reaches_the_program_by_a_descriptor(program: Path, tmp_path: Path) -> None:
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    with pytest.raises(Unavailable, match="nvme-cli says nothing"):
        await door.connect(a_connection(), transport_address(FIRST), key=KEY)
    assert KEY in (tmp_path / "configuration").read_text()
    assert "DHHC" not in (tmp_path / "arguments").read_text()


async def test_modules_that_are_missing_are_loaded_or_named(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sys/module/nvme_tcp").rmdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "modprobe").write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\necho no such module >&2\nexit 1\n")
    (tools / "modprobe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    with pytest.raises(Unavailable, match=r"connect tcp://10\.0\.0\.2:4420: no such module") as caught:
        await door.connect(a_connection(), transport_address(FIRST))
    assert caught.value.hint == "modprobe nvme-tcp"
    assert (tmp_path / "asked").read_text() == "--all nvme-tcp\n"


async def test_what_nvme_cli_says_of_a_drive_is_told_on_one_line(program: Path, tmp_path: Path) -> None:
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    with pytest.raises(Unavailable, match=r"^SMART log of nvme0: passthru: Input/output error$"):
        await door.smart_log("nvme0")


async def test_an_upgrade_of_nvme_cli_is_noticed(program: Path, tmp_path: Path) -> None:
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    assert (await door.cli()).version == (2, 3)
    (tmp_path / "version").write_text("3.0")
    assert (await door.cli()).version == (2, 3)
    status = os.stat(program)
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    found = await door.cli()
    assert (found.version, found.has_ini) == ((3, 0), True)
    assert found.options == {"owner", "idempotent"}


async def test_without_nvme_cli_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="install nvme-cli"):
        await KernelNvme(program=str(tmp_path / "none")).cli()


async def test_nvme_cli_that_is_just_being_upgraded_is_told_as_missing(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_and_gone(name: str) -> str:
        program.unlink()
        return str(program)

    monkeypatch.setattr(shutil, "which", found_and_gone)
    with pytest.raises(Unavailable, match="nvme-cli is not here; install nvme-cli"):
        await KernelNvme(sys=tmp_path / "sys", program=str(program)).cli()


async def test_without_descriptors_nothing_is_said_of_installing(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    await door.cli()

    def refuse(name: str, flags: int) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(Unavailable, match="nvme connect: Too many open files; see dmesg"):
        await door.connect(a_connection(), transport_address(FIRST))


async def test_a_connect_that_hangs_can_be_left(tmp_path: Path) -> None:
    program = tmp_path / "nvme"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "pid")
    (tmp_path / "sys/module/nvme_tcp").mkdir(parents=True)
    door = KernelNvme(sys=tmp_path / "sys", program=str(program))
    door._known = (_marks(program), NvmeCli(version=(2, 3)))
    task = asyncio.ensure_future(door.connect(a_connection(), transport_address(FIRST)))
    child = os.pidfd_open(int(await asyncio.to_thread((tmp_path / "pid").read_text)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Readable when it has ended (pidfd_open(2)).
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(child, ended.set)
    await asyncio.wait_for(ended.wait(), 30)
    asyncio.get_running_loop().remove_reader(child)
    os.close(child)


def _marks(program: Path) -> tuple[str, int, int]:
    status = os.stat(program)
    return (str(program), status.st_ino, status.st_mtime_ns)


# sysfs.


def controller(directory: Path, name: str = "nvme4", **attributes: str) -> Path:
    """Write a controller as the kernel shows it."""
    place = directory / "class/nvme" / name
    place.mkdir(parents=True)
    told = {
        "transport": "tcp",
        "address": "traddr=10.9.0.2,trsvcid=4420,src_addr=10.9.0.1",
        "subsysnqn": "nqn.2026-11.io.farbus:lease:l1:3",
        "hostnqn": "nqn.2026-11.io.farbus:host:l1",
        "state": "live",
        "serial": "serial1             ",
        "ctrl_loss_tmo": "60",
        "reconnect_delay": "2",
        **attributes,
    }
    for attribute, text in told.items():
        (place / attribute).write_text(f"{text}\n")
    return place


def test_a_controller_that_is_half_made_is_seen_as_that(tmp_path: Path) -> None:
    controller(tmp_path, subsysnqn="(efault)", serial="(efault)", state="connecting")
    (found,) = KernelNvme(sys=tmp_path).controllers()
    assert found.half_made
    assert (found.nqn, found.serial, found.state) == ("", "", ControllerState.CONNECTING)


def test_states_and_times_without_a_number_are_read(tmp_path: Path) -> None:
    controller(tmp_path, state="some new state", ctrl_loss_tmo="off")
    (found,) = KernelNvme(sys=tmp_path).controllers()
    assert (found.state, found.loss_s) == (ControllerState.UNKNOWN, -1)


def test_what_is_of_no_fabric_or_half_gone_is_left_out(tmp_path: Path) -> None:
    controller(tmp_path, "nvme0", transport="pcie", address="0000:01:00.0")
    controller(tmp_path, "nvme1", transport="fc", address="traddr=nn-0x1:pn-0x2")
    controller(tmp_path, "nvme2", address="")
    controller(tmp_path, "nvme10")
    controller(tmp_path, "nvme9")
    assert [one.name for one in KernelNvme(sys=tmp_path).controllers()] == ["nvme9", "nvme10"]


def test_without_native_multipath_a_namespace_hangs_below_its_controller(tmp_path: Path) -> None:
    place = controller(tmp_path) / "nvme4n1"
    place.mkdir()
    for attribute, text in {"nsid": "1", "uuid": "U", "nguid": "0-1", "size": "8", "dev": "259:3"}.items():
        (place / attribute).write_text(text)
    (tmp_path / "class/block").mkdir(parents=True)
    (tmp_path / "class/block/nvme4n1").symlink_to("../nvme/nvme4/nvme4n1")
    (found,) = KernelNvme(sys=tmp_path).controllers()
    assert found.namespaces == (
        NamespacePath(nsid=1, uuid="u", nguid="01", size_bytes=4096, device="nvme4n1", path="nvme4n1"),
    )


def test_a_path_that_can_not_be_used_has_no_device(tmp_path: Path) -> None:
    fake, connection = FakeNvme(tmp_path), a_connection()
    fake.offer(a_target(connection, ana={FIRST: AnaState.INACCESSIBLE}))
    asyncio.run(fake.connect(connection, transport_address(FIRST)))
    (found,) = fake.controllers()
    assert [(path.device, path.ana_state) for path in found.namespaces] == [("", AnaState.INACCESSIBLE)]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("traddr=10.9.0.2,trsvcid=4420,src_addr=10.9.0.1", "tcp://10.9.0.2:4420"),
        ("traddr=10.9.0.2,trsvcid=4420,host_iface=eth0", "tcp://10.9.0.2:4420"),
        ("traddr=fd00:0:0:0:0:0:0:7,trsvcid=4420", "tcp://[fd00::7]:4420"),
        ("traddr=fe80::1%eth0,trsvcid=4420,host_traddr=fe80::2", "tcp://[fe80::1%eth0]:4420"),
        ("traddr=fe80::1%bond0.17,trsvcid=4420", "tcp://[fe80::1%bond0.17]:4420"),
    ],
)
def test_an_address_is_known_again_however_it_is_written(text: str, address: str) -> None:
    assert parse_address(Transport.TCP, text) == transport_address(address)


@pytest.mark.parametrize("text", ["", "none", "traddr=10.9.0.2", "traddr=x,trsvcid=1", "traddr=10.9.0.2,trsvcid=y"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises((InvalidInput, ValueError)):
        parse_address(Transport.TCP, text)


@pytest.mark.parametrize("zone", ["eth0\ndhchap-secret = x", "eth0;trsvcid=1", "", "a-name-of-sixteen"])
def test_a_zone_is_the_name_of_an_interface(zone: str) -> None:
    with pytest.raises(InvalidInput, match="is no IP address"):
        transport_address(f"tcp://[fe80::1%{zone}]:4420")
    with pytest.raises(InvalidInput, match="is no IP address"):
        transport_address("tcp://10.0.0.7%eth0:4420")


def test_a_loop_has_no_address() -> None:
    assert parse_address(Transport.LOOP, "") == TransportAddress(transport=Transport.LOOP, address="", service=0)


def test_a_dead_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/x").symlink_to("../nvme7n1")
    assert KernelNvme(sys=tmp_path, dev=tmp_path).leads_to("/dev/disk/x") == ""
    # Nor does one to a file that is no block device.
    (tmp_path / "nvme7n1").write_text("")
    assert KernelNvme(sys=tmp_path, dev=tmp_path).leads_to("/dev/disk/x") == ""


# device-mapper.

STRIPE = Stripe(id="v", members=("/dev/disk/by-id/a", "/dev/disk/by-id/b"), member_bytes=16 << 20, chunk_bytes=1 << 17)


def test_a_table_is_written_and_read() -> None:
    text = table_of(STRIPE)
    assert text == "0 65536 striped 2 256 /dev/disk/by-id/a 0 /dev/disk/by-id/b 0\n"
    found = parse_table("0 65536 striped 2 256 7:2 0 7:3 8\n", name="n", uuid="u", device="dm-0")
    assert (found.members, found.member_bytes, found.chunk_bytes) == (("7:2", "7:3"), 16 << 20, 1 << 17)
    assert found.offsets == (0, 4096)


@pytest.mark.parametrize(
    "text", ["", "0 1 linear 7:2 0", "0 1 striped x 256 7:2 0", "0 8 striped 2 8 7:2 0", "0 8 error\n8 8 error"]
)
def test_another_table_is_refused(text: str) -> None:
    with pytest.raises(Conflict, match="its table is not ours"):
        parse_table(text, name="n", uuid="u", device="dm-0")


async def test_a_stripe_is_made_found_and_removed(tmp_path: Path) -> None:
    nvme, mapper = FakeNvme(tmp_path), FakeDeviceMapper(tmp_path)
    connections = [a_connection("l1"), a_connection("l2")]
    nvme.offer(*map(a_target, connections))
    for connection, at in zip(connections, (FIRST, SECOND), strict=True):
        await nvme.connect(connection, transport_address(at))
    members = tuple(connection.namespaces[0].identity.by_id for connection in connections)
    stripe = Stripe(id="v", members=members, member_bytes=SIZE, chunk_bytes=1 << 17)
    await mapper.create(stripe)
    found = await mapper.find(stripe.uuid)
    assert found is not None
    assert found.members == ("259:0", "259:1")
    with pytest.raises(Conflict, match="busy"):
        await mapper.create(stripe)
    mapper.busy = {stripe.name}
    with pytest.raises(Conflict, match="lsblk"):
        await mapper.remove(stripe.name)
    mapper.busy = set()
    await mapper.remove(stripe.name)
    await mapper.remove(stripe.name)
    assert await mapper.find(stripe.uuid) is None
