"""What the door to NVMe over Fabrics promises, of the real one and the fake alike (tests/linux, tests/lab)."""

from __future__ import annotations

import asyncio

import msgspec

from farbus.errors import NotPermitted, Unavailable
from farbus.linux.nvme import NvmeFabrics
from farbus.linux.tls_keys import TlsKeys
from farbus.model.nvmeof import (
    Connection,
    Controller,
    ControllerState,
    DiscoveryKind,
    SubsystemName,
    TransportAddress,
)
from farbus.nvmeof.keys import tls_key_of

SECRET, OTHER_SECRET = "5a" * 32, "a5" * 32
"""Of leases, of which keys of TLS are made."""

LOOKS = 100
LOOK_INTERVAL_S = 0.2


def of(nvme: NvmeFabrics, connection: Connection) -> list[Controller]:
    return [one for one in nvme.controllers() if one.nqn == connection.nqn]


async def refused(nvme: NvmeFabrics, connection: Connection, address: TransportAddress, *, key: str = "") -> str:
    """Return why a connect that must not succeed did not; nothing may be left of it."""
    try:
        await nvme.connect(connection, address, key=key)
    except (Unavailable, NotPermitted) as error:
        told = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError(f"{address} was connected")
    assert not of(nvme, connection)
    assert "\n" not in told
    assert "DHHC" not in told
    return told


async def keeps_its_promise(
    nvme: NvmeFabrics, connection: Connection, *, key: str = "", other_key: str = "", nobody: TransportAddress
) -> None:
    """Go through all of it.  ``nobody`` is an address where nobody listens, of a node that is on."""
    name, (first, *_), (expected, *_) = connection.name, connection.addresses, connection.namespaces
    assert (await nvme.cli()).version >= (2, 3)
    before = nvme.controllers()
    assert not of(nvme, connection)

    # What does not come up says why, and leaves nothing.
    assert "nobody listens" in await refused(nvme, connection, nobody, key=key)
    stranger = msgspec.structs.replace(connection, name=SubsystemName(lease="stranger", epoch=name.epoch))
    assert "the target refuses" in await refused(nvme, stranger, first)
    if key:
        assert "NotPermitted: " in await refused(nvme, connection, first, key=other_key)
        assert "wants a key" in await refused(nvme, connection, first)

    # One controller at each address, with the time-outs that were asked for.
    for address in connection.addresses:
        await nvme.connect(connection, address, key=key)
    found = of(nvme, connection)
    assert [one.address for one in found] == list(connection.addresses)
    for one in found:
        assert one.reaches(connection, one.address)
        assert one.state is ControllerState.LIVE
        assert one.serial == expected.identity.serial
        assert (one.loss_s, one.reconnect_delay_s) == (connection.loss_s, connection.reconnect_delay_s)
        assert not one.half_made
        # By this another path is connected again where nobody else knows it any more.
        assert nvme.key_of(one) == key
    # Again changes nothing but time-outs, and needs no key.
    patient = msgspec.structs.replace(connection, loss_s=connection.loss_s + 7)
    slow = msgspec.structs.replace(connection, reconnect_delay_s=connection.reconnect_delay_s + 3)
    for other in (patient, slow, connection):
        await nvme.connect(other, first)
        assert [one.name for one in of(nvme, connection)] == [one.name for one in found]
        assert of(nvme, connection)[0].has_times_of(other)

    # Its namespace is there, over each path.
    for _ in range(LOOKS):
        if nvme.leads_to(expected.identity.by_id):
            break
        await asyncio.sleep(LOOK_INTERVAL_S)
    device = nvme.leads_to(expected.identity.by_id)
    for one in of(nvme, connection):
        (path,) = one.namespaces
        assert (path.nsid, path.uuid, path.nguid) == (expected.nsid, expected.identity.uuid, expected.identity.nguid)
        assert (path.size_bytes, path.device) == (expected.size_bytes, device)
        assert path.path.endswith(f"c{one.name.removeprefix('nvme')}n1")
        assert nvme.statistics(path.path).in_flight == 0
    major, _, minor = nvme.block_number(device).partition(":")
    assert major.isdigit()
    assert minor.isdigit()
    assert (await nvme.smart_log(found[0].name)).troubles == ()

    # A host is told of its own subsystem, others are not.
    records = await nvme.discover(first, host_nqn=name.host_nqn, host_id=name.host_id)
    assert connection.nqn in [one.nqn for one in records if one.kind is DiscoveryKind.SUBSYSTEM]
    records = await nvme.discover(first, host_nqn=stranger.name.host_nqn, host_id=stranger.name.host_id)
    assert not [one for one in records if one.kind is DiscoveryKind.SUBSYSTEM]

    # What is another by now is left alone; what is meant goes, once.
    await nvme.disconnect(msgspec.structs.replace(found[0], nqn=stranger.nqn))
    assert len(of(nvme, connection)) == len(found)
    for one in [*found, *found]:
        await nvme.disconnect(one)
    assert not of(nvme, connection)
    assert nvme.block_number(device) == ""
    assert nvme.leads_to(expected.identity.by_id) == ""
    assert nvme.controllers() == before


async def keeps_its_promise_by_tls(nvme: NvmeFabrics, tls_keys: TlsKeys, connection: Connection, *, key: str) -> None:
    """Go through what is different where nothing but TLS is spoken; the target has the key made of :data:`SECRET`."""
    name, first = connection.name, connection.addresses[0]
    assert (connection.tls, first.tls) == (True, True)
    right, wrong = (tls_key_of(secret, name) for secret in (SECRET, OTHER_SECRET))

    # Without the key, with another one, and in the clear, nothing comes up, and nothing is left.
    assert "there is no key of TLS" in await refused(nvme, connection, first, key=key)
    await tls_keys.add(wrong.identity, wrong.psk)
    assert "the handshake of TLS failed" in await refused(nvme, connection, first, key=key)
    await tls_keys.remove(name)
    clear = msgspec.structs.replace(first, tls=False)
    await refused(nvme, msgspec.structs.replace(connection, addresses=(clear,)), clear, key=key)

    # With it, all are encrypted by it, and say so.
    await tls_keys.add(right.identity, right.psk)
    (serial,) = (one.serial for one in tls_keys.held() if one.identity == right.identity)
    for address in connection.addresses:
        await nvme.connect(connection, address, key=key)
    found = of(nvme, connection)
    assert [(one.address, one.tls_key, one.state) for one in found] == [
        (address, serial, ControllerState.LIVE) for address in connection.addresses
    ]
    assert all(one.reaches(connection, one.address) for one in found)
    # What is asked for in the clear is another path than this.
    assert not any(one.reaches(connection, clear) for one in found)
    # Again changes nothing.
    await nvme.connect(connection, first)
    assert [one.name for one in of(nvme, connection)] == [one.name for one in found]
    for one in found:
        await nvme.disconnect(one)
    assert not of(nvme, connection)
    await tls_keys.remove(name)
