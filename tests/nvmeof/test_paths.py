"""What an initiator tells of its paths, and what a host is offered."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import msgspec
import pytest

from farbus.errors import Unavailable
from farbus.linux.fake_nvme import FakeNvme
from farbus.model.nvmeof import AnaState, BlockStatistics, ControllerState, SmartLog, transport_address
from farbus.model.pci import Lost, Uevent
from farbus.nvmeof.discovery import MAX_SERVICES, discover
from farbus.nvmeof.paths import PathErrors, Reconnects, figures
from tests.nvmeof.attaching import FIRST, SECOND, a_connection, a_target


def event(action: str, name: str = "nvme0", subsystem: str = "nvme", **properties: str) -> Uevent:
    devpath = f"/devices/virtual/nvme-fabrics/ctl/{name}"
    return Uevent(action=action, devpath=devpath, subsystem=subsystem, seqnum=1, properties=properties)


def test_a_controller_that_comes_back_is_counted() -> None:
    counts = Reconnects()
    for message in (
        event("add"),
        event("change", NVME_EVENT="connected"),
        event("change", NVME_EVENT="connected"),
        event("change", NVME_AEN="0x2"),
        event("change", NVME_EVENT="connected"),
        event("change", "nvme1", NVME_EVENT="connected"),
        event("add", "nvme0n1", "block"),
    ):
        counts.hear(message)
    # The second has been there before anybody listened: that was a return.
    assert (counts.of("nvme0"), counts.of("nvme1"), counts.of("nvme2")) == (2, 1, 0)


def test_the_next_of_a_name_is_counted_anew() -> None:
    counts = Reconnects()
    for action in ("add", "change", "change", "remove", "add", "change"):
        counts.hear(event(action, NVME_EVENT="connected"))
    assert counts.of("nvme0") == 0


def test_lost_events_are_told() -> None:
    counts = Reconnects()
    counts.hear(Lost(reason="ENOBUFS"))
    assert counts.lost_events == 1


async def test_errors_of_one_controller_that_can_not_be_asked_are_not_known_and_no_more(tmp_path: Path) -> None:
    nvme, connection = FakeNvme(tmp_path), a_connection()
    nvme.offer(a_target(connection))
    for address in connection.addresses:
        await nvme.connect(connection, address)
    smart_log = nvme.smart_log

    async def ask(device: str) -> SmartLog:
        if device == "nvme0":
            raise OSError(errno.EMFILE, "Too many open files")
        return await smart_log(device)

    nvme.smart_log = ask  # type: ignore[method-assign]
    errors = PathErrors()
    await errors.look(nvme)
    assert (errors.of("nvme0"), errors.of("nvme1")) == (None, 0)


async def test_figures_are_of_each_path_and_of_leases_alone(tmp_path: Path) -> None:
    nvme, connection = FakeNvme(tmp_path), a_connection()
    foreign = a_target(a_connection("theirs"), nqn="nqn.2014-08.org.example:theirs")
    nvme.offer(a_target(connection, ana={SECOND: AnaState.NON_OPTIMIZED}), foreign)
    for address in connection.addresses:
        await nvme.connect(connection, address)
    (tmp_path / "sys/class/block/nvme0c1n1/stat").write_text("3 0 16 5 2 0 8 7 1 9 12 0 0 0 0 0 0\n")
    nvme.set_state("nvme0", ControllerState.CONNECTING)
    counts = Reconnects()
    counts.hear(event("change", "nvme1", NVME_EVENT="connected"))
    first, second = figures(nvme, counts)
    assert (str(first.address), first.state, first.ana_state) == (FIRST, ControllerState.CONNECTING, AnaState.OPTIMIZED)
    assert (str(second.address), second.ana_state, second.reconnects) == (SECOND, AnaState.NON_OPTIMIZED, 1)
    assert first.statistics == BlockStatistics()
    assert second.statistics == BlockStatistics(
        reads=3, read_bytes=8192, read_ms=5, writes=2, written_bytes=4096, write_ms=7, in_flight=1
    )


async def test_referrals_are_followed_once_and_who_is_silent_is_told(tmp_path: Path) -> None:
    nvme, here, there = FakeNvme(tmp_path), a_connection("here"), a_connection("here", 4)
    gone = "tcp://10.0.9.9:4420"
    nvme.offer(
        a_target(here, addresses=(FIRST,), referrals=(SECOND, gone)),
        a_target(there, addresses=(SECOND,), referrals=(FIRST,)),
    )
    name = here.name
    found = await discover(nvme, transport_address(FIRST), host_nqn=name.host_nqn, host_id=name.host_id)
    assert [one.nqn for one in found.subsystems] == [here.nqn, there.nqn]
    assert list(map(str, found.asked)) == [FIRST, SECOND, gone]
    assert len(found.silent) == 1
    assert gone in found.silent[0]


async def test_a_service_that_is_silent_itself_is_an_error(tmp_path: Path) -> None:
    name = a_connection().name
    with pytest.raises(Unavailable, match=f"discover {FIRST}: nobody listens"):
        await discover(FakeNvme(tmp_path), transport_address(FIRST), host_nqn=name.host_nqn, host_id=name.host_id)


async def test_referrals_without_end_are_left(tmp_path: Path) -> None:
    nvme, connection = FakeNvme(tmp_path), a_connection()
    chain = [f"tcp://10.1.0.{number}:4420" for number in range(1, 2 * MAX_SERVICES)]
    for at, following in itertools.pairwise(chain):
        target = a_target(connection, addresses=(at,), referrals=(following,))
        nvme.offer(msgspec.structs.replace(target, nqn=f"{target.nqn}{at.split('.')[3].split(':')[0]}"))
    name = connection.name
    found = await discover(nvme, transport_address(chain[0]), host_nqn=name.host_nqn, host_id=name.host_id)
    assert len(found.asked) == MAX_SERVICES
