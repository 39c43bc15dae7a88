"""The key of TLS of a lease, on either side: there from before the first connection until after the last one.

Both sides have the same step, since both kernels shake hands by the same key.
Who has been killed in between finds it by its name, without the secret.
"""

from __future__ import annotations

from farbus.errors import Conflict, Unavailable
from farbus.linux.tls_keys import TlsKeys
from farbus.model.nvmeof import HeldTlsKey, SubsystemName
from farbus.nvmeof.keys import TlsKey


def held(keys: TlsKeys | None, name: SubsystemName) -> tuple[HeldTlsKey, ...]:
    """Return what is there of a lease's epoch."""
    return tuple(one for one in keys.held() if one.identity.name == name) if keys is not None else ()


def is_held(keys: TlsKeys | None, name: SubsystemName, key: TlsKey | None) -> bool:
    """Say whether a key is there: this one, or whichever there is where nobody here knows it."""
    return any(key is None or one.identity == key.identity for one in held(keys, name))


async def hold(keys: TlsKeys | None, name: SubsystemName, key: TlsKey | None) -> None:
    """Add a key, and take away those of other epochs that are older.  Raises :class:`Conflict` without a key."""
    if keys is None:
        raise Unavailable(f"TLS of {name.nqn}: this node has no keyring for it")
    if key is None:
        raise Conflict(f"TLS of {name.nqn}: its lease's secret is not known here")
    for one in keys.held():
        other = one.identity.name
        if other.lease == name.lease and (other.epoch < name.epoch or (other == name and one.identity != key.identity)):
            await keys.remove(other)
    await keys.add(key.identity, key.psk)


async def drop(keys: TlsKeys | None, name: SubsystemName) -> None:
    """Take the keys of an epoch away, where there are any."""
    if keys is not None:
        await keys.remove(name)
