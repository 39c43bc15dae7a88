"""The door to the keys of TLS for NVMe over TCP: those of Farbus's leases in the kernel's keyring ``.nvme``.

Both ends of a connection look keys up there by what they are called
(:class:`farbus.model.nvmeof.TlsIdentity`): the initiator's kernel before it
connects, ``tlshd`` of both ends during the handshake, which the kernel asks
for each queue, and again each time that it connects a lost path.  So a key has
to be there for as long as its lease is used.

What is there is read in /proc/keys, which tells names and never keys.  Changes
are made by system calls, in a child (:mod:`farbus.linux.disposable`) with a
session keyring of its own, to which ``.nvme`` is linked: only who *possesses*
a keyring may search it.  Keys go to the child by its standard input.

Sources: drivers/nvme/common/keyring.c of Linux 6.12, keyrings(7), keyctl(2),
add_key(2), proc_keys_show() of security/keys/proc.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from farbus.errors import NotPermitted, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.linux.modules import load_modules
from farbus.model.nvmeof import HeldTlsKey, SubsystemName, TlsIdentity, tls_identity

KEYRING = ".nvme"
KEY_TYPE = "psk"
"""The kernel's own type for them (nvme_tls_psk_key_type)."""

MODULE = "nvme-keyring"
"""What makes both, where it is no part of the kernel itself."""

DAEMON = "tlshd"
"""Who shakes hands for the kernel, of ktls-utils."""

KERNEL_HINT = "it needs a kernel with CONFIG_NVME_TCP_TLS and CONFIG_NVME_TARGET_TCP_TLS, such as Debian's 6.12"
DAEMON_HINT = "apt install ktls-utils, and systemctl enable --now tlshd"

_GONE = frozenset("RDi")
"""Flags in /proc/keys of a key that nobody finds any more: revoked, dead, invalidated."""


class TlsKeys(Protocol):
    """Keys of TLS on one node.  Everything may be repeated."""

    def held(self) -> tuple[HeldTlsKey, ...]:
        """Return the keys of Farbus's leases that are there."""
        ...

    async def add(self, identity: TlsIdentity, psk: str) -> None:
        """Add a key, in hexadecimal; one that is there stays.

        Raises :class:`Unavailable` with the cure where the kernel has no such
        keyring, or nobody shakes hands for it.
        """
        ...

    async def remove(self, name: SubsystemName) -> None:
        """Take away all keys of a lease's epoch.  Nothing happens where there are none."""
        ...


class KernelTlsKeys:
    """Reads below ``proc``."""

    def __init__(self, *, proc: str | Path = "/proc") -> None:
        self._proc = Path(proc)

    def held(self) -> tuple[HeldTlsKey, ...]:
        """Read /proc/keys: those that are called as ours are."""
        found = []
        for serial, kind, description in _listed(self._proc):
            # The type's own description adds the length (nvme_tls_psk_describe).
            identity = tls_identity(description.rpartition(":")[0]) if kind == KEY_TYPE else None
            if identity is not None:
                found.append(HeldTlsKey(serial=serial, identity=identity))
        return tuple(found)

    async def add(self, identity: TlsIdentity, psk: str) -> None:
        """Call add_key(2)."""
        if not shakes_hands(self._proc):
            raise Unavailable(f"TLS of {identity.name.nqn}: {DAEMON} does not run on this node", hint=DAEMON_HINT)
        if any(one.identity == identity for one in self.held()):
            return
        try:
            await self._add(str(identity), psk)
        except OSError as error:
            # Not the error itself, nor its arguments.
            raise _converted(f"TLS of {identity.name.nqn}", error) from None

    async def _add(self, identity: str, psk: str) -> None:
        await run_disposable(add_key, identity, psk)

    async def remove(self, name: SubsystemName) -> None:
        """Revoke them, by which the kernel forgets them at once, and unlink them."""
        identities = [str(one.identity) for one in self.held() if one.identity.name == name]
        if not identities:
            return
        try:
            await self._remove(identities)
        except OSError as error:
            raise _converted(f"TLS of {name.nqn}", error) from error

    async def _remove(self, identities: list[str]) -> None:
        await run_disposable(remove_keys, identities)


def shakes_hands(proc: Path = Path("/proc")) -> bool:
    """Say whether somebody here shakes hands for the kernel."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                # As bytes: programs give themselves names that are no UTF-8.
                if (entry / "comm").read_bytes().strip() == DAEMON.encode():
                    return True
            except OSError:
                # It has ended.
                continue
    return False


def _listed(proc: Path) -> list[tuple[int, str, str]]:
    """Return serial number, type and description of each key that can be found."""
    try:
        lines = (proc / "keys").read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields = (line.split(maxsplit=8) for line in lines)
    return [
        (int(one[0], 16), one[7], one[8]) for one in fields if len(one) == 9 and _GONE.isdisjoint(one[1])
    ]  # fmt: skip


def _keyring(proc: Path) -> int:
    """Return the serial number of the keyring; 0 for none."""
    for serial, kind, description in _listed(proc):
        if (kind, description.rpartition(":")[0]) == ("keyring", KEYRING):
            return serial
    return 0


def _converted(what: str, error: OSError) -> NotPermitted | Unavailable:
    message = f"{what}: keyring {KEYRING}: {os.strerror(error.errno or 0)}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotPermitted(message, hint="only root may, outside of containers")
    return Unavailable(message)


# What children do.

_NUMBERS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""Numbers of add_key and keyctl, which the C library has no functions for (asm/unistd.h of each machine)."""

_JOIN_SESSION_KEYRING, _REVOKE, _LINK, _UNLINK = 1, 3, 8, 9
"""Operations of keyctl(2) (linux/keyctl.h)."""

_SESSION = -3
"""The session keyring of who asks (KEY_SPEC_SESSION_KEYRING)."""


def add_key(identity: str, psk: str) -> None:
    """Add a key, in hexadecimal.  Raises OSError, and :class:`Unavailable` where there is no keyring."""
    told = load_modules([MODULE])
    keyring = _keyring(Path("/proc"))
    if not keyring:
        raise Unavailable(f"this kernel has no TLS for NVMe{f' ({told})' if told else ''}", hint=KERNEL_HINT)
    _possess(keyring)
    payload = bytes.fromhex(psk)
    add, _ = _numbers()
    _call(add, KEY_TYPE.encode(), identity.encode(), payload, ctypes.c_size_t(len(payload)), keyring)


def remove_keys(identities: Sequence[str]) -> None:
    """Take keys away by what they are called.  Raises OSError."""
    keyring = _keyring(Path("/proc"))
    if not keyring:
        return
    _possess(keyring)
    _, keyctl = _numbers()
    # Read again: a serial number may be another key's by now.
    for serial, kind, description in _listed(Path("/proc")):
        if kind == KEY_TYPE and description.rpartition(":")[0] in identities:
            _call(keyctl, _REVOKE, serial)
            try:
                _call(keyctl, _UNLINK, serial, keyring)
            except FileNotFoundError:
                # Somebody else has unlinked it; a controller may still have hold of it.
                continue


def _possess(keyring: int) -> None:
    """Give this process a session keyring of its own, and link a keyring to it."""
    _, keyctl = _numbers()
    _call(keyctl, _JOIN_SESSION_KEYRING, None)
    _call(keyctl, _LINK, keyring, _SESSION)


def _numbers() -> tuple[int, int]:
    try:
        return _NUMBERS[platform.machine()]
    except KeyError:
        raise Unavailable(f"keyring {KEYRING}: {platform.machine()} is not known", hint='nvmeof_tls = "off"') from None


def _call(number: int, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    # Whole registers: a C long, where ctypes takes numbers for int.
    whole = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(library.syscall(ctypes.c_long(number), *whole))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
