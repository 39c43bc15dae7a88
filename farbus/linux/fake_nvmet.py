"""The fake of the NVMe target's door: configfs in a directory, and a kernel that keeps its rules.

What is read is read by the real door's code; what is written is answered here
as Linux 6.1 and 6.12 answer it (tests/linux/nvmet_contract.py runs on both).
Everything lies in files, so that a process that is killed finds the target as
it was.  Addresses of 192.0.2.0/24 (TEST-NET-1) are of no machine, so not of
this one either.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farbus.errors import Unavailable
from farbus.linux.nvmet import (
    FIRST_WITHOUT_PROOF,
    MODULES,
    REQUIRED,
    TLS,
    KernelNvmet,
    Operation,
    carry_out,
    linux_version,
    read_target,
)
from farbus.model.nvmeof import AnaState, Transport
from farbus.model.nvmet import COMMON_ANA_GROUP, MAX_ANA_GROUPS

_NOT_HERE = ipaddress.ip_network("192.0.2.0/24")

_SUBSYSTEM = {
    "attr_allow_any_host": "0",
    "attr_cntlid_max": "65519",
    "attr_cntlid_min": "1",
    "attr_model": "Linux",
    "attr_qid_max": "128",
    "attr_version": "1.3",
}
_NAMESPACE = {
    "ana_grpid": "1",
    "buffered_io": "0",
    "device_nguid": "00000000-0000-0000-0000-000000000000",
    "device_path": "(null)",
    "enable": "0",
    "revalidate_size": "",
}
_HOST = {"dhchap_ctrl_key": "", "dhchap_dhgroup": "null", "dhchap_hash": "hmac(sha256)", "dhchap_key": ""}
_ADDRESS = {"addr_adrfam": "", "addr_traddr": "", "addr_treq": "not specified", "addr_trsvcid": "", "addr_trtype": ""}
_PORT = {**_ADDRESS, "param_inline_data_size": "-1"}
_REFERRAL = {**_ADDRESS, "addr_portid": "0", "enable": "0"}

_DEFAULT_GROUPS = {"subsystem": ("allowed_hosts", "namespaces"), "port": ("ana_groups", "referrals", "subsystems")}
"""What comes with an object and can't be removed alone."""

_KINDS = {
    ("subsystems",): "subsystem",
    ("hosts",): "host",
    ("ports",): "port",
    ("subsystems", "*", "namespaces"): "namespace",
    ("ports", "*", "ana_groups"): "group",
    ("ports", "*", "referrals"): "referral",
}
"""What mkdir makes, by where."""

_SECURITY: dict[str, str] = {Transport.TCP: "none", Transport.RDMA: "connected"}
"""What a port's ``addr_tsas`` is at first, by its transport."""

_DH_GROUPS = ("null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192")
_HASHES = ("hmac(sha256)", "hmac(sha384)", "hmac(sha512)")
_KEY = re.compile(r"DHHC-1:0[0-3]:([A-Za-z0-9+/=]+):")


class FakeConfigfs:
    """The kernel's side.  ``authentication`` is what CONFIG_NVME_TARGET_AUTH and CONFIG_NVME_TARGET_TCP_TLS add, as
    Debian's 6.12 has both and its 6.1 neither; devices are below ``machine``."""

    def __init__(self, root: Path, *, authentication: bool = True, machine: Path = Path("/")) -> None:
        self._root = root
        self._machine = machine
        self._authentication = authentication
        for name in ("hosts", "ports", "subsystems"):
            (root / name).mkdir(parents=True, exist_ok=True)

    # Objects.

    def mkdir(self, path: str) -> None:
        """Make an object with its attributes and groups."""
        place, kind = self._root / path, self._kind(path)
        if place.exists():
            raise _error(errno.EEXIST, place)
        if not place.parent.is_dir():
            raise _error(errno.ENOENT, place)
        if kind is None:
            raise _error(errno.EPERM, place)
        if not _name_fits(kind, place.name):
            raise _error(errno.EINVAL, place)
        attributes: dict[str, str] = {}
        if kind == "subsystem":
            attributes = {**_SUBSYSTEM, "attr_serial": uuid.uuid4().hex[:20]}
        elif kind == "namespace":
            attributes = {**_NAMESPACE, "device_uuid": str(uuid.uuid4())}
        elif kind == "host" and self._authentication:
            attributes = _HOST
        elif kind == "port":
            # Since Linux 6.7.
            attributes = {**_PORT, "addr_tsas": "reserved"} if self._authentication else _PORT
        elif kind == "group":
            attributes = {"ana_state": AnaState.INACCESSIBLE}
        elif kind == "referral":
            attributes = _REFERRAL
        # Under another name until it is whole: as for the kernel, there is no half of it.
        new = self._root / ".new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for name, value in attributes.items():
            (new / name).write_text(f"{value}\n")
        for name in _DEFAULT_GROUPS.get(kind, ()):
            (new / name).mkdir()
        if kind == "port":
            group = new / "ana_groups" / str(COMMON_ANA_GROUP)
            group.mkdir()
            (group / "ana_state").write_text(f"{AnaState.OPTIMIZED}\n")
        new.rename(place)

    def rmdir(self, path: str) -> None:
        """Remove an object that nothing links to and nothing is left in (configfs_rmdir, fs/configfs/dir.c)."""
        place, kind = self._root / path, self._kind(path)
        if not place.exists():
            raise _error(errno.ENOENT, place)
        if kind is None or (kind == "group" and place.name == str(COMMON_ANA_GROUP)):
            raise _error(errno.EPERM, place)
        if self._links_to(place):
            raise _error(errno.EBUSY, place)
        for name in _DEFAULT_GROUPS.get(kind, ()):
            left = {entry.name for entry in (place / name).iterdir()}
            if left - ({str(COMMON_ANA_GROUP)} if name == "ana_groups" else set()):
                raise _error(errno.ENOTEMPTY, place)
        gone = self._root / ".gone"
        shutil.rmtree(gone, ignore_errors=True)
        place.rename(gone)
        shutil.rmtree(gone)

    # Links.

    def link(self, path: str, to: str) -> None:
        """Link a host to a subsystem, or a subsystem to a port, which listens from its first link on."""
        place, target = self._root / path, self._root / to
        parts = Path(path).parts
        if not place.parent.is_dir() or not target.exists():
            raise _error(errno.ENOENT, place)
        if os.path.lexists(place):
            raise _error(errno.EEXIST, place)
        wanted = {"subsystems allowed_hosts": "host", "ports subsystems": "subsystem"}.get(f"{parts[0]} {parts[-2]}")
        if wanted is None:
            raise _error(errno.EPERM, place)
        if self._kind(to) != wanted:
            raise _error(errno.EINVAL, place)
        owner = place.parent.parent
        if wanted == "host" and self._value(owner / "attr_allow_any_host") == "1":
            raise _error(errno.EINVAL, place)
        linked = {Path(os.readlink(entry)).name for entry in place.parent.iterdir()}
        if target.name in linked:
            raise _error(errno.EEXIST, place)
        if wanted == "subsystem" and not linked:
            self._listen(owner)
        place.symlink_to(Path("../../../..") / self._root.name / to)

    def unlink(self, path: str) -> None:
        """Remove a link."""
        place = self._root / path
        if not os.path.lexists(place):
            raise _error(errno.ENOENT, place)
        if not place.is_symlink():
            raise _error(errno.EPERM, place)
        place.unlink()

    def hide(self, path: str) -> None:
        """Set the mode of an attribute."""
        (self._root / path).chmod(0o600)

    def _links_to(self, place: Path) -> bool:
        below = place.relative_to(self._root).parts
        patterns = {"subsystems": "ports/*/subsystems/*", "hosts": "subsystems/*/allowed_hosts/*"}
        if len(below) != 2 or below[0] not in patterns:
            return False
        links = self._root.glob(patterns[below[0]])
        return any(Path(os.readlink(link)).name == place.name for link in links)

    def _listen(self, port: Path) -> None:
        """nvmet_enable_port, and nvmet_tcp_add_port for what needs an address."""
        transport, family, address, service = (
            self._value(port / name) for name in ("addr_trtype", "addr_adrfam", "addr_traddr", "addr_trsvcid")
        )
        if not transport:
            raise _error(errno.EINVAL, port)
        if transport == Transport.LOOP:
            return
        try:
            there = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            raise _error(errno.EINVAL, port) from None
        if family != f"ipv{there.version}" or not service.isdigit():
            raise _error(errno.EINVAL, port)
        if there.version == 4 and there in _NOT_HERE:
            raise _error(errno.EADDRNOTAVAIL, port)
        for other in (self._root / "ports").iterdir():
            if other == port or not any((other / "subsystems").iterdir()):
                continue
            theirs = [self._value(other / name) for name in ("addr_trtype", "addr_traddr", "addr_trsvcid")]
            if theirs[0] == transport and theirs[2] == service and theirs[1] in (address, "0.0.0.0", "::"):  # noqa: S104
                raise _error(errno.EADDRINUSE, port)

    # Attributes.

    def write(self, path: str, value: str) -> None:
        """Set an attribute, where the object's state lets it be set."""
        place = self._root / path
        if not place.is_file():
            raise _error(errno.EACCES if place.parent.is_dir() and place.is_dir() else errno.ENOENT, place)
        if not value:
            # A write of nothing (fill_write_buffer, fs/configfs/file.c).
            raise _error(errno.EFAULT, place)
        value = value.rstrip("\n")
        kind = self._kind(str(Path(path).parent))
        assert kind is not None, f"{path}: attributes belong to objects"
        number = getattr(self, f"_set_{kind}")(place, value)
        if number:
            raise _error(number, place)

    def _set_subsystem(self, place: Path, value: str) -> int:
        limits = {"attr_serial": 20, "attr_model": 40}
        limit = limits.get(place.name)
        if limit is not None and not (0 < len(value) <= limit and value.isascii()):
            return errno.EINVAL
        if place.name == "attr_allow_any_host" and (
            value not in ("0", "1") or (value == "1" and any((place.parent / "allowed_hosts").iterdir()))
        ):
            return errno.EINVAL
        return self._put(place, value.ljust(20) if place.name == "attr_serial" else value)

    def _set_namespace(self, place: Path, value: str) -> int:
        enabled = self._value(place.parent / "enable") == "1"
        if place.name == "enable":
            if value not in ("0", "1"):
                return errno.EINVAL
            if value == "1" and not enabled and (problem := self._open(place.parent)):
                return problem
        elif place.name == "ana_grpid":
            if not (value.isdigit() and 1 <= int(value) <= MAX_ANA_GROUPS):
                return errno.EINVAL
        elif place.name == "revalidate_size":
            return 0 if enabled and value == "1" else errno.EINVAL
        elif enabled:
            return errno.EINVAL if place.name == "buffered_io" else errno.EBUSY
        elif place.name == "device_path":
            if not value:
                return errno.EINVAL
        elif place.name in ("device_uuid", "device_nguid"):
            try:
                value = str(uuid.UUID(value))
            except ValueError:
                return errno.EINVAL
        return self._put(place, value)

    def _open(self, namespace: Path) -> int:
        path = self._value(namespace / "device_path")
        if path == "(null)":
            return errno.EINVAL
        device = self._machine / path.removeprefix("/")
        if not device.exists():
            return errno.ENOENT
        return errno.EISDIR if device.is_dir() else 0

    def _set_host(self, place: Path, value: str) -> int:
        allowed = {"dhchap_dhgroup": _DH_GROUPS, "dhchap_hash": _HASHES}.get(place.name)
        if allowed is not None:
            return self._put(place, value) if value in allowed else errno.EINVAL
        # The check sum is looked at when the key is used, not here.
        return self._put(place, value) if _KEY.fullmatch(value) else errno.EINVAL

    def _set_port(self, place: Path, value: str) -> int:
        if place.name == "addr_trtype" and value not in ("rdma", "fc", "tcp", "loop"):
            return errno.EINVAL
        if place.name == "addr_adrfam" and value not in ("ipv4", "ipv6", "ib", "fc", "pcie", "loop"):
            return errno.EINVAL
        if any((place.parent / "subsystems").iterdir()):
            return errno.EACCES
        if place.name in ("addr_tsas", "addr_treq"):
            return self._set_security(place, value)
        if place.name == "addr_trtype" and self._authentication:
            self._put(place.parent / "addr_tsas", _SECURITY.get(value, "reserved"))
        return self._put(place, value)

    def _set_security(self, place: Path, value: str) -> int:
        """nvmet_addr_tsas_store and nvmet_addr_treq_store."""
        tsas, treq = place.parent / "addr_tsas", place.parent / "addr_treq"
        if place.name == "addr_tsas":
            if self._value(place.parent / "addr_trtype") != Transport.TCP or value not in ("none", TLS):
                return errno.EINVAL
            if value == TLS and self._value(treq) == "not specified":
                self._put(treq, REQUIRED)
            elif value != TLS:
                self._put(treq, "not specified")
            return self._put(place, value)
        if value not in ("not specified", REQUIRED, "not required"):
            return errno.EINVAL
        if tsas.exists() and self._value(tsas) == TLS and value == "not specified":
            return errno.EINVAL
        return self._put(place, value)

    def _set_group(self, place: Path, value: str) -> int:
        return self._put(place, value) if value in set(AnaState) else errno.EINVAL

    def _set_referral(self, place: Path, value: str) -> int:
        if place.name != "enable" and self._value(place.parent / "enable") == "1":
            return errno.EACCES
        return self._put(place, value)

    def _put(self, place: Path, value: str) -> int:
        new = self._root / ".value"
        new.write_text(f"{value}\n")
        new.chmod(place.stat().st_mode)
        new.replace(place)
        return 0

    def _value(self, place: Path) -> str:
        return place.read_text().strip()

    def _kind(self, path: str) -> str | None:
        parts = Path(path).parts
        return _KINDS.get(tuple("*" if number % 2 else part for number, part in enumerate(parts[:-1])))


class FakeNvmet(KernelNvmet):
    """A target in ``directory``.

    Tests set what goes wrong: ``hang`` lets disabling begin and never end,
    ``refuse`` makes the next writes fail, ``passing`` is called after each
    system call.
    """

    def __init__(self, directory: Path, *, authentication: bool = True, machine: Path = Path("/")) -> None:
        super().__init__(root=directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.kernel = FakeConfigfs(directory / "nvmet", authentication=authentication, machine=machine)
        self.linux = "6.12.1"
        self.hang = False
        self.hanging = asyncio.Event()
        """Set once a call hangs."""
        self.refuse = ""
        self.loaded: list[Transport] = []
        self.no_transports: frozenset[Transport] = frozenset()
        """What this kernel has no module for."""
        self.calls: list[Operation] = []
        self.passing: Callable[[], None] = lambda: None

    def asks_over_tls(self) -> bool:
        """Go by the version that is set."""
        return linux_version(self.linux) < FIRST_WITHOUT_PROOF

    async def _read(self) -> Any:
        return read_target(str(self._root))

    async def load(self, transports: Sequence[Transport]) -> None:
        """Note it."""
        for transport in transports:
            if transport in self.no_transports:
                raise Unavailable(f"NVMe target: module {MODULES[transport]} is not there")
            self.loaded.append(transport)

    async def _perform(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            await asyncio.sleep(0)
            if self.refuse:
                raise Unavailable(self.refuse)
            if self.hang and operation[1].endswith("/enable") and operation[2:] == ("0",):
                self.hanging.set()
                await asyncio.get_running_loop().create_future()
            self.calls.append(operation)
            if operation[0] == "link" and self._is_unserved(operation[1]):
                # nvmet_enable_port asks for the module, and gives up.
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), operation[1])
            carry_out(self.kernel, operation)
            self.passing()

    def _is_unserved(self, link: str) -> bool:
        port = self._root / link.partition("/subsystems/")[0]
        transport = port / "addr_trtype"
        return transport.exists() and transport.read_text().strip() in self.no_transports


def _name_fits(kind: str, name: str) -> bool:
    limits = {"port": (0, 65535), "namespace": (1, 2**32 - 2), "group": (2, MAX_ANA_GROUPS)}
    if kind not in limits:
        return name != "nqn.2014-08.org.nvmexpress.discovery"
    low, high = limits[kind]
    return name.isdigit() and low <= int(name) <= high


def _error(number: int, place: Path) -> OSError:
    return OSError(number, os.strerror(number), str(place))
