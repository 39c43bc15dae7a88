"""What the door to the keys of TLS promises, of the real one and the fake alike (tests/linux, tests/lab).

As a program, in a guest: ``python -m tests.linux.tls_keys_contract``; it is silent where all is kept.
"""

from __future__ import annotations

import asyncio

from farbus.linux.tls_keys import KernelTlsKeys, TlsKeys
from farbus.model.nvmeof import SubsystemName, TlsIdentity
from farbus.nvmeof.keys import tls_key_of

SECRET, OTHER_SECRET = "5a" * 32, "a5" * 32


def names(keys: TlsKeys) -> list[str]:
    """Return what is held of this contract's leases."""
    return sorted(str(one.identity) for one in keys.held() if one.identity.name.lease.startswith("contract"))


async def keeps_its_promise(keys: TlsKeys) -> None:
    """Go through all of it, and leave nothing."""
    # The one's name is how the other's begins.
    first, tenth = (tls_key_of(SECRET, SubsystemName(lease="contract", epoch=epoch)) for epoch in (1, 10))
    other = tls_key_of(OTHER_SECRET, SubsystemName(lease="contract", epoch=1))
    assert names(keys) == []
    for key in (first, tenth):
        await keys.add(key.identity, key.psk)
    assert names(keys) == sorted(str(key.identity) for key in (first, tenth))
    serials = {one.identity: one.serial for one in keys.held()}
    assert serials[first.identity] != serials[tenth.identity]
    # Again is no other key, by which something may be connected.
    await keys.add(first.identity, first.psk)
    assert {one.identity: one.serial for one in keys.held()} == serials
    # Another secret's stands beside it until the epoch's are taken away.
    await keys.add(other.identity, other.psk)
    assert len(names(keys)) == 3
    for _ in range(2):
        await keys.remove(first.identity.name)
        assert names(keys) == [str(tenth.identity)]
    assert {one.identity: one.serial for one in keys.held()} == {tenth.identity: serials[tenth.identity]}
    await keys.remove(tenth.identity.name)
    assert names(keys) == []
    # What was taken away can come again.
    await keys.add(first.identity, first.psk)
    assert names(keys) == [str(first.identity)]
    await keys.remove(first.identity.name)
    assert names(keys) == []


def longest() -> TlsIdentity:
    """Return as long a name as there is."""
    return tls_key_of(SECRET, SubsystemName(lease="contract" + "x" * 72, epoch=10**12)).identity


async def a_long_name_is_kept(keys: TlsKeys) -> None:
    """/proc/keys cuts nothing off."""
    identity = longest()
    await keys.add(identity, "5a" * 32)
    assert names(keys) == [str(identity)]
    await keys.remove(identity.name)
    assert names(keys) == []


async def _all() -> None:
    for promise in (keeps_its_promise, a_long_name_is_kept):
        await promise(KernelTlsKeys())


if __name__ == "__main__":
    asyncio.run(_all())
