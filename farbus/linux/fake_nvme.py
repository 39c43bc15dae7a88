"""The fake of the door to NVMe over Fabrics: a sysfs tree in the kernel's own form, and an nvme-cli and kernel behind.

What is read is read by the real door's code, and what is asked of nvme-cli is
what the real door would ask: each version takes from it what that version
takes, as 2.3 and 2.13 did in guests with Linux 6.12; 3.x is by its
documentation.  All lies in files, so that a process that is killed finds the
machine as it was: ``sys`` and ``dev`` are the machine's, ``targets.json`` says
what other machines offer.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from farbus.errors import NotFound
from farbus.linux.fake_tls_keys import FakeTlsKeys
from farbus.linux.nvme import DISCOVERY_NQN, KernelNvme, Said, converted, write_to_controller
from farbus.linux.nvme_cli import Call, NvmeCli, parse_version
from farbus.linux.sysfs import SECTOR_BYTES
from farbus.model.nvmeof import (
    AnaState,
    Controller,
    ControllerState,
    SubsystemName,
    Transport,
    TransportAddress,
    subsystem_name,
    transport_address,
)
from farbus.model.value import Value

_WRONG_LOSS_S = 600
"""What 2.13 asks the kernel for, whatever its configuration says."""


_TIMES = ("ctrl_loss_tmo", "reconnect_delay")


class FakeNamespace(Value, frozen=True, kw_only=True):
    """A namespace that a target offers."""

    uuid: str
    nguid: str
    size_bytes: int
    nsid: int = 1


class FakeTarget(Value, frozen=True, kw_only=True):
    """A subsystem that some other machine offers to one host.  ``cut`` addresses don't answer, and nobody says so."""

    nqn: str
    host_nqn: str
    addresses: tuple[str, ...]
    namespaces: tuple[FakeNamespace, ...]
    serial: str = "serial"
    key: str = ""
    psk: str = ""
    """Its key of TLS, in hexadecimal; with it, nothing else is spoken there."""
    cut: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    """Where nobody listens."""
    ana: dict[str, AnaState] = {}
    """By address, where it is not *optimized*."""
    referrals: tuple[str, ...] = ()


_TARGETS = msgspec.json.Decoder(dict[str, FakeTarget])


class FakeNvme(KernelNvme):
    """A machine with some nvme-cli in ``directory``.

    Tests set what goes wrong: ``hang`` lets connects begin and never end,
    ``tls`` is whether the kernel knows it, ``lazy`` lets namespaces appear when :meth:`settle` is called, ``no_udev``
    leaves out the links below /dev, ``half_made`` lets a connect that fails
    leave a controller that nobody knows who it is.
    """

    def __init__(self, directory: Path, *, version: str = "2.13", tls: bool = True) -> None:
        super().__init__(sys=directory / "sys", dev=directory / "dev")
        self.tls_keys = FakeTlsKeys(directory, kernel=tls)
        self.directory = directory
        self.version = version
        self.hang = False
        self.lazy = False
        self.no_udev = False
        self.half_made = False
        self.refuse_write: dict[str, int] = {}
        """Error number by name of a controller that can't be written to."""
        self.calls: list[Call] = []
        self.smart: dict[str, int] = {"critical_warning": 0, "temperature": 310, "avail_spare": 100}
        for name in ("class/nvme", "class/nvme-subsystem", "class/nvme-fabrics", "class/block", "dev/block"):
            (self._sys / name).mkdir(parents=True, exist_ok=True)
        (self._dev / "disk/by-id").mkdir(parents=True, exist_ok=True)
        options = "instance=-1,cntlid=-1,transport=%s,traddr=%s,trsvcid=%s,nqn=%s" + (",tls" if tls else "")
        (self._dev / "nvme-fabrics").write_text(f"{options}\n")

    # What other machines offer.

    def targets(self) -> dict[str, FakeTarget]:
        """Return what is offered, by NQN."""
        file = self.directory / "targets.json"
        return _TARGETS.decode(file.read_bytes()) if file.exists() else {}

    def offer(self, *targets: FakeTarget) -> None:
        """Let other machines offer subsystems; one of the same NQN is another one from now on."""
        self._save({**self.targets(), **{target.nqn: target for target in targets}})

    def withdraw(self, nqn: str) -> None:
        """Let a subsystem be gone, as after fencing: its controllers lose what they are connected to."""
        self._save({name: target for name, target in self.targets().items() if name != nqn})
        for controller in self.controllers():
            if controller.nqn == nqn:
                self.set_state(controller.name, ControllerState.CONNECTING)

    def _save(self, targets: dict[str, FakeTarget]) -> None:
        new = self.directory / f"targets.{os.getpid()}"
        new.write_bytes(msgspec.json.encode(targets))
        new.replace(self.directory / "targets.json")

    # What happens to this machine.

    def set_state(self, name: str, state: ControllerState) -> None:
        """Let a controller be in a state."""
        _put(self._sys / "class/nvme" / name / "state", f"{state}\n")

    def lose(self, name: str) -> None:
        """Let the kernel give a controller up: its loss time-out has passed."""
        self._forget(name)

    def settle(self) -> None:
        """Let what was late appear."""
        for controller in self.controllers():
            self._find_namespaces(controller.name)

    def resize(self, nqn: str, size_bytes: int) -> None:
        """Let the first namespace of a subsystem have another size, there and here."""
        target = self.targets()[nqn]
        first = msgspec.structs.replace(target.namespaces[0], size_bytes=size_bytes)
        self.offer(msgspec.structs.replace(target, namespaces=(first, *target.namespaces[1:])))
        for controller in self.controllers():
            for path in controller.namespaces if controller.nqn == nqn else ():
                for name in {path.path, path.device} - {""}:
                    _put(self._sys / "class/block" / name / "size", f"{size_bytes // SECTOR_BYTES}\n")

    # nvme-cli.

    async def cli(self) -> NvmeCli:
        """Return the version that is set."""
        version = parse_version(f"nvme version {self.version}")
        options = {"config", "verbose", "hostnqn"} | ({"owner", "idempotent"} if version >= (3,) else set())
        options |= {"tls"} if version >= (2, 6) else set()
        return NvmeCli(version=version, options=frozenset(options))

    async def _load(self, transport: Transport) -> str:
        return ""

    async def _run(self, call: Call) -> Said:
        await asyncio.sleep(0)
        self.calls.append(call)
        words = [word for word in call.arguments if not word.startswith("--")]
        given = dict(word[2:].partition("=")[::2] for word in call.arguments if word.startswith("--"))
        if words[0] == "connect":
            return await self._connect(given, call.configuration)
        if words[0] == "discover":
            return self._discover(given)
        if words[0] in ("smart-log", "log"):
            # Long numbers are strings in 2.3.
            old = parse_version(f"nvme version {self.version}") < (2, 4)
            told = {**self.smart, "media_errors": str(self.smart.get("media_errors", 0)) if old else 0}
            return Said(0, json.dumps({**told, **({} if old else self.smart)}), "")
        raise AssertionError(f"nvme {call.arguments}: the fake knows no such command")

    async def _connect(self, given: dict[str, str], configuration: str) -> Said:
        version = parse_version(f"nvme version {self.version}")
        if version >= (3,):
            wanted = _from_ini(configuration)
        else:
            (host,) = json.loads(configuration)
            (subsystem,) = host["subsystems"]
            (port,) = subsystem["ports"]
            key = host.get("dhchap_key", "")
            if version >= (2, 4):
                wanted = {**port, "nqn": subsystem["nqn"], "hostnqn": host["hostnqn"], "hostid": host["hostid"]}
                wanted["ctrl_loss_tmo"] = _WRONG_LOSS_S
            else:
                assert host["hostnqn"] == given["hostnqn"], "2.3 looks for the key of the host of its arguments"
                wanted = {name.replace("-", "_"): value for name, value in given.items()}
            wanted["key"] = key
        if self.hang:
            await asyncio.get_running_loop().create_future()
        trouble = self._add(wanted)
        if trouble:
            return Said(1, "", f"Failed to write to /dev/nvme-fabrics: {trouble}\n")
        return Said(0, "", "")

    def _add(self, wanted: dict[str, Any]) -> str:
        """Answer a write to /dev/nvme-fabrics: with the C library's words for an error, or with a controller."""
        target = self.targets().get(str(wanted["nqn"]))
        address = msgspec.structs.replace(_address(wanted), tls="tls" in wanted)
        serial, psk = self.tls_keys.psk(_name(str(wanted["nqn"]))) if address.tls else (0, "")
        for controller in self.controllers():
            if controller.address == address and controller.nqn == wanted["nqn"]:
                return "Operation already in progress"
        reached = {at for one in self.targets().values() for at in one.addresses if at not in one.cut}
        closed = {at for one in self.targets().values() for at in one.closed}
        trouble = ""
        if str(address) not in reached or (target is not None and str(address) in target.cut):
            trouble = "Connection timed out"
        elif str(address) in closed:
            trouble = "Connection refused"
        elif address.tls and not psk:
            trouble = "Required key not available"
        elif address.tls and psk not in {one.psk for one in self.targets().values()}:
            trouble = "Connection timed out"
        elif target is None or str(address) not in target.addresses or wanted["hostnqn"] != target.host_nqn:
            trouble = "Input/output error"
        elif target.key and not wanted.get("key"):
            trouble = "Required key not available"
        elif target.key and wanted["key"] != target.key:
            trouble = "Key was rejected by service"
        if trouble:
            if self.half_made:
                self._new_controller(wanted, None)
            return trouble
        name = self._new_controller(wanted, target, tls_key=serial)
        if not self.lazy:
            self._find_namespaces(name)
        return ""

    def _discover(self, given: dict[str, str]) -> Said:
        at = str(_address(given))
        offered = [target for target in self.targets().values() if at in target.addresses and at not in target.cut]
        if not offered:
            return Said(1, "", "Failed to write to /dev/nvme-fabrics: Connection refused\n")
        records = [_record("current discovery subsystem", DISCOVERY_NQN, at)]
        for target in offered:
            if target.host_nqn == given["hostnqn"]:
                records += [_record("nvme subsystem", target.nqn, at)]
            records += [_record("discovery subsystem referral", DISCOVERY_NQN, other) for other in target.referrals]
        return Said(0, json.dumps({"genctr": 1, "records": records}), "")

    async def _write(self, controller: Controller, values: dict[str, str]) -> None:
        await asyncio.sleep(0)
        place = self._sys / "class/nvme" / controller.name
        what = f"controller {controller.name} ({controller.address})"
        try:
            write_to_controller(str(place), controller.host_nqn, controller.nqn, values)
            if number := self.refuse_write.get(controller.name):
                raise OSError(number, os.strerror(number))
        except OSError as error:
            raise converted(what, error) from error
        for name, value in values.items():
            # A file keeps what was longer, unlike an attribute.
            _put(place / name, f"{value}\n")
            if name in _TIMES:
                _count_tries(place, anew=name == "ctrl_loss_tmo")
        if "delete_controller" in values:
            self._forget(controller.name)

    # The tree.

    def _new_controller(self, wanted: dict[str, Any], target: FakeTarget | None, *, tls_key: int = 0) -> str:
        taken = set(os.listdir(self._sys / "class/nvme"))
        number = next(number for number in range(10_000) if f"nvme{number}" not in taken)
        name, address = f"nvme{number}", _address(wanted)
        place = self._sys / "devices/virtual/nvme-fabrics/ctl" / name
        for attribute, text in (
            ("transport", str(address.transport)),
            ("address", f"traddr={address.address},trsvcid={address.service},src_addr=10.0.0.1"),
            ("subsysnqn", target.nqn if target else "(efault)"),
            ("hostnqn", str(wanted["hostnqn"])),
            ("hostid", str(wanted["hostid"])),
            ("serial", f"{target.serial:<20}" if target else "(efault)"),
            ("model", f"{'Farbus volume':<40}" if target else "(efault)"),
            ("state", str(ControllerState.LIVE if target else ControllerState.CONNECTING)),
            ("cntrltype", "io"),
            ("ctrl_loss_tmo", str(wanted["ctrl_loss_tmo"])),
            ("reconnect_delay", str(wanted["reconnect_delay"])),
            ("kato", str(wanted["keep_alive_tmo"])),
            ("dhchap_secret", str(wanted.get("key") or "none")),
            *((("tls_key", f"{tls_key:08x}" if tls_key else ""),) if "tls" in wanted else ()),
            ("delete_controller", ""),
            ("dev", f"244:{number}"),
        ):
            _put(place / attribute, f"{text}\n")
        _count_tries(place, anew=True)
        if target is not None:
            subsystem = self._subsystem(target)
            _link(subsystem / name, place)
        # Last: what is half there is not listed.
        _link(self._sys / "class/nvme" / name, place)
        return name

    def _subsystem(self, target: FakeTarget) -> Path:
        for entry in (self._sys / "class/nvme-subsystem").iterdir():
            if (entry / "subsysnqn").read_text().strip() == target.nqn:
                return entry.resolve()
        taken = set(os.listdir(self._sys / "class/nvme-subsystem"))
        name = next(name for number in range(10_000) if (name := f"nvme-subsys{number}") not in taken)
        place = self._sys / "devices/virtual/nvme-subsystem" / name
        _put(place / "subsysnqn", f"{target.nqn}\n")
        _put(place / "serial", f"{target.serial:<20}\n")
        _link(self._sys / "class/nvme-subsystem" / place.name, place)
        return place

    def _find_namespaces(self, name: str) -> None:
        """Scan a controller: nothing is found twice, and nothing whose identity another subsystem has."""
        controller = next(one for one in self.controllers() if one.name == name)
        target = self.targets().get(controller.nqn)
        if target is None or controller.state is not ControllerState.LIVE:
            return
        there = {path.nsid for path in controller.namespaces}
        elsewhere = {path.uuid for other in self.controllers() if other.nqn != target.nqn for path in other.namespaces}
        subsystem = self._subsystem(target)
        number = subsystem.name.removeprefix("nvme-subsys")
        for namespace in target.namespaces:
            if namespace.nsid in there or namespace.uuid in elsewhere:
                continue
            state = target.ana.get(str(controller.address), AnaState.OPTIMIZED)
            path = f"nvme{number}c{name.removeprefix('nvme')}n{namespace.nsid}"
            place = self._sys / "devices/virtual/nvme-fabrics/ctl" / name / path
            attributes = {
                "uuid": namespace.uuid,
                "nguid": _dashed(namespace.nguid),
                "wwid": f"uuid.{namespace.uuid}",
                "nsid": str(namespace.nsid),
                "size": str(namespace.size_bytes // SECTOR_BYTES),
                "stat": " ".join(["0"] * 17),
            }
            for attribute, text in {**attributes, "ana_state": str(state)}.items():
                _put(place / attribute, f"{text}\n")
            _link(self._sys / "class/block" / path, place)
            if state in (AnaState.OPTIMIZED, AnaState.NON_OPTIMIZED):
                self._add_head(subsystem / f"nvme{number}n{namespace.nsid}", attributes)

    def _add_head(self, place: Path, attributes: dict[str, str]) -> None:
        if place.exists():
            return
        taken = set(os.listdir(self._sys / "dev/block"))
        number = next(number for minor in range(10_000) if (number := f"259:{minor}") not in taken)
        for attribute, text in {**attributes, "dev": number}.items():
            _put(place / attribute, f"{text}\n")
        (place / "holders").mkdir(exist_ok=True)
        _link(self._sys / "class/block" / place.name, place)
        _link(self._sys / "dev/block" / number, place)
        _put(self._dev / place.name, number)
        if not self.no_udev:
            _link(self._dev / "disk/by-id" / f"nvme-{attributes['wwid']}", self._dev / place.name)

    def _forget(self, name: str) -> None:
        entry = self._sys / "class/nvme" / name
        if not entry.is_symlink():
            raise NotFound(f"controller {name}")
        place = entry.resolve()
        entry.unlink()
        for path in place.glob("nvme*c*n*"):
            (self._sys / "class/block" / path.name).unlink(missing_ok=True)
        shutil.rmtree(place)
        for subsystem in (self._sys / "class/nvme-subsystem").iterdir():
            (subsystem / name).unlink(missing_ok=True)
            if any(child.is_symlink() for child in subsystem.resolve().iterdir()):
                continue
            for head in subsystem.resolve().glob("nvme*n*"):
                number = (head / "dev").read_text().strip()
                wwid = (head / "wwid").read_text().strip()
                (self._sys / "class/block" / head.name).unlink(missing_ok=True)
                (self._sys / "dev/block" / number).unlink(missing_ok=True)
                (self._dev / "disk/by-id" / f"nvme-{wwid}").unlink(missing_ok=True)
                (self._dev / head.name).unlink(missing_ok=True)
            shutil.rmtree(subsystem.resolve())
            subsystem.unlink()

    def _node_number(self, place: Path) -> str:
        return place.read_text().strip()


def _count_tries(place: Path, *, anew: bool) -> None:
    """Let ``ctrl_loss_tmo`` be what the kernel shows: how many tries it has kept, each after ``reconnect_delay``."""
    loss_s, delay_s = (int((place / name).read_text()) for name in _TIMES)
    if anew:
        _put(place / "max_reconnects", f"{-(-loss_s // delay_s)}\n")
    _put(place / "ctrl_loss_tmo", f"{int((place / 'max_reconnects').read_text()) * delay_s}\n")


def _address(wanted: dict[str, Any]) -> TransportAddress:
    host = f"[{wanted['traddr']}]" if ":" in str(wanted["traddr"]) else wanted["traddr"]
    return transport_address(f"{wanted['transport']}://{host}:{wanted['trsvcid']}")


def _name(nqn: str) -> SubsystemName:
    return subsystem_name(nqn) or SubsystemName(lease="nobody", epoch=0)


def _from_ini(text: str) -> dict[str, Any]:
    """Read nvme-fabrics.conf(5) as far as it is used."""
    pairs = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    path = dict(part.split("=", 1) for part in pairs.pop("controller").split(";"))
    key = pairs.pop("kxchap-secret", "")
    return {name.replace("-", "_"): value for name, value in {**pairs, **path, "key": key}.items()}


def _record(subtype: str, nqn: str, at: str) -> dict[str, str]:
    address = transport_address(at)
    return {
        "trtype": str(address.transport),
        "adrfam": "ipv6" if address.is_ipv6 else "ipv4",
        "subtype": subtype,
        "trsvcid": str(address.service),
        "subnqn": nqn,
        "traddr": address.address,
    }


def _dashed(nguid: str) -> str:
    return "-".join((nguid[:8], nguid[8:12], nguid[12:16], nguid[16:20], nguid[20:]))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
