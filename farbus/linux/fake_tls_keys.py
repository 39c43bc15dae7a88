"""The fake of the door to the keys of TLS: /proc/keys as a file, in the kernel's form, read by the real door's code.

Keys themselves lie beside it, so that a process that is killed finds them, and
a fake kernel (:mod:`farbus.linux.fake_nvme`) can compare them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from farbus.errors import Unavailable
from farbus.linux.tls_keys import DAEMON, KERNEL_HINT, KEY_TYPE, KernelTlsKeys
from farbus.model.nvmeof import SubsystemName


def _serial(identity: str) -> int:
    """Return a serial number that stays the key's; the kernel takes one by chance."""
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") >> 2 | 1


class FakeTlsKeys(KernelTlsKeys):
    """A keyring in ``directory``.

    Tests set what is missing: ``kernel`` is whether this one has TLS,
    :meth:`stop_daemon` lets nobody shake hands.  ``passing`` is called after
    each change.
    """

    def __init__(self, directory: Path, *, kernel: bool = True) -> None:
        super().__init__(proc=directory / "proc")
        self.kernel = kernel
        self.passing: Callable[[], None] = lambda: None
        if not self._proc.exists():
            self._write({})
            (self._proc / "812").mkdir()
            (self._proc / "812/comm").write_text(f"{DAEMON}\n")

    def stop_daemon(self) -> None:
        """Let tlshd end."""
        (self._proc / "812/comm").write_text("sleep\n")

    def psk(self, name: SubsystemName) -> tuple[int, str]:
        """Return serial number and key of a lease's epoch, as the kernel finds it; 0 and nothing for none."""
        found = [one for one in self.held() if one.identity.name == name]
        return (found[0].serial, self._keys()[str(found[0].identity)]) if found else (0, "")

    async def _add(self, identity: str, psk: str) -> None:
        await asyncio.sleep(0)
        if not self.kernel:
            raise Unavailable("this kernel has no TLS for NVMe", hint=KERNEL_HINT)
        self._write({**self._keys(), identity: psk})
        self.passing()

    async def _remove(self, identities: list[str]) -> None:
        await asyncio.sleep(0)
        for identity in identities:
            self._write({name: psk for name, psk in self._keys().items() if name != identity})
            self.passing()

    def _keys(self) -> dict[str, str]:
        keys: dict[str, str] = json.loads((self._proc / "psk.json").read_text())
        return keys

    def _write(self, keys: dict[str, str]) -> None:
        self._proc.mkdir(parents=True, exist_ok=True)
        lines = [f"{0x1B2C3D4E:08x} I------     2 perm 1f0b0000     0     0 keyring   .nvme: {len(keys) or 'empty'}"]
        for identity, psk in keys.items():
            lines.append(
                f"{_serial(identity):08x} I--Q---     2 perm 3b010000     0     0 {KEY_TYPE:<9.9s} {identity}:"
                f" {len(psk) // 2}"
            )
        for name, text in (("psk.json", json.dumps(keys)), ("keys", "".join(f"{line}\n" for line in lines))):
            new = self._proc / f".{name}"
            new.write_text(text)
            new.replace(self._proc / name)
