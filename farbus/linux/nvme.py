"""The door to NVMe over Fabrics as an initiator: controllers of this kernel, connected, disconnected and looked at.

What there is is read in sysfs, never believed: nvme-cli's exit codes say 0
where nothing came of it, and 1 where all is well.  It connects, since it knows
how its kernel wants to be told; it runs in a process of its own, for a write to
/dev/nvme-fabrics blocks in state D for as long as a target is silent.  It does
not disconnect: it takes names (``nvme3``), and the kernel gives the next
controller the name of the last.  We open the directory of the controller that
was meant, look once more who it is, and write there.

Sources: drivers/nvme/host/{sysfs,fabrics,multipath}.c of Linux 6.1 and 6.12.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.linux.modules import load_modules
from farbus.linux.nvme_cli import (
    TLS_OPTION,
    Call,
    NvmeCli,
    connect_call,
    connect_error,
    discover_call,
    parse_discovery,
    parse_options,
    parse_smart_log,
    parse_version,
    smart_call,
    without_secrets,
)
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn
from farbus.linux.sysfs import SECTOR_BYTES
from farbus.linux.tls_keys import KERNEL_HINT
from farbus.model.nvmeof import (
    AnaState,
    BlockStatistics,
    Connection,
    Controller,
    ControllerState,
    DiscoveryRecord,
    NamespacePath,
    SmartLog,
    Transport,
    TransportAddress,
    normal_address,
)

OUTPUT_LIMIT_BYTES = 4 << 20
"""Most that nvme-cli may print: a discovery log comes from another machine."""

_INSTALL = "install nvme-cli, 2.3 or newer"

TLS_CLI_HINT = "install nvme-cli 2.11 or newer, such as Debian 13's 2.13"

DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"

MODULES = {Transport.TCP: "nvme-tcp", Transport.RDMA: "nvme-rdma", Transport.LOOP: "nvme-loop"}
"""What connects by each transport."""

_CONTROLLER = re.compile(r"nvme[0-9]+")
_PATH = re.compile(r"nvme([0-9]+)c[0-9]+n([0-9]+)")
"""A path to a namespace whose paths are joined: subsystem, controller, namespace (nvme_mpath_set_disk_name)."""
_NAMESPACE = re.compile(r"nvme[0-9]+n[0-9]+")

_NOBODY = frozenset({"(null)", "(efault)"})
"""What the kernel prints of who a controller is while it does not know (check_pointer_msg, lib/vsprintf.c)."""


class NvmeFabrics(Protocol):
    """Controllers that this machine has at targets of other machines."""

    async def cli(self) -> NvmeCli:
        """Return which nvme-cli is here; raise :class:`Unavailable` where there is none."""
        ...

    def controllers(self) -> tuple[Controller, ...]:
        """Return all controllers of fabrics as they are now, by number, whosever they are."""
        ...

    async def connect(self, connection: Connection, address: TransportAddress, *, key: str = "") -> None:
        """Connect a controller at one address of the connection, and return once it is there.

        One that is there stays, with its time-outs set as the connection has
        them.  ``key`` proves the host to the target (DH-HMAC-CHAP); it is given
        to nobody but the kernel.  Raises :class:`NotPermitted` where the target
        refuses it, :class:`Unavailable` with the cause in one line else.

        Of an address with TLS the key has to be in the keyring before
        (:mod:`farbus.linux.tls_keys`), and what comes up is encrypted or is
        taken for none.
        """
        ...

    async def disconnect(self, controller: Controller) -> None:
        """Have the kernel delete a controller; nothing happens where it is gone, or is another by now.

        Raises :class:`Conflict` for one that is still being connected.
        """
        ...

    def key_of(self, controller: Controller) -> str:
        """Return the key that the kernel proves the host by; an empty string for none, and where it is gone."""
        ...

    async def discover(
        self, address: TransportAddress, *, host_nqn: str, host_id: str, persistent: bool = False
    ) -> tuple[DiscoveryRecord, ...]:
        """Return what a discovery service offers to a host.

        ``persistent`` leaves a controller to it, by which the kernel hears of changes.
        """
        ...

    async def smart_log(self, device: str) -> SmartLog:
        """Return what a controller or drive, by its kernel name, says of its health."""
        ...

    def statistics(self, device: str) -> BlockStatistics:
        """Return what has gone through a block device, a path's too; zeros where there is none."""
        ...

    def block_number(self, device: str) -> str:
        """Return ``MAJOR:MINOR`` of a block device by its kernel name; an empty string where there is none."""
        ...

    def leads_to(self, path: str) -> str:
        """Return the kernel name of the block device that a path leads to now; an empty string for none."""
        ...


class Said(NamedTuple):
    """How nvme-cli ended, and what it printed."""

    code: int
    out: str
    err: str


class KernelNvme:
    """Reads a sysfs tree below ``sys``, and runs ``program``."""

    def __init__(self, *, sys: str | Path = "/sys", dev: str | Path = "/dev", program: str = "nvme") -> None:
        self._sys = Path(sys)
        self._dev = Path(dev)
        self._program = program
        self._known: tuple[tuple[str, int, int], NvmeCli] | None = None
        """The nvme-cli that was asked, with what tells its file from the next one's: it may be upgraded under us."""

    # Reading.

    def controllers(self) -> tuple[Controller, ...]:
        """Read class/nvme."""
        found = [
            controller
            for entry in _children(self._sys / "class/nvme")
            if _CONTROLLER.fullmatch(entry.name) and (controller := self._controller(entry)) is not None
        ]
        return tuple(sorted(found, key=lambda one: int(one.name.removeprefix("nvme"))))

    def _controller(self, entry: Path) -> Controller | None:
        text = _text(entry / "address")
        try:
            address = parse_address(Transport(_text(entry / "transport")), text)
        except (ValueError, InvalidInput):
            # Of the machine's own bus or of Fibre Channel; or gone while it was read.
            return None
        try:
            state = ControllerState(_text(entry / "state"))
        except ValueError:
            state = ControllerState.UNKNOWN
        nqn, told = _known(entry / "subsysnqn"), _parts(text)
        # Empty before the first handshake, and not there for what was not to be encrypted (tls_key_show).
        tls_key = _hexadecimal(entry / "tls_key")
        address = msgspec.structs.replace(address, tls=tls_key != 0)
        return Controller(
            name=entry.name,
            nqn=nqn,
            address=address,
            host_nqn=_known(entry / "hostnqn"),
            state=state,
            host_address=told.get("host_traddr", ""),
            host_interface=told.get("host_iface", ""),
            serial=_known(entry / "serial"),
            namespaces=self._namespaces(entry),
            loss_s=_number(entry / "ctrl_loss_tmo", -1),
            reconnect_delay_s=_number(entry / "reconnect_delay", 0),
            discovery=nqn == DISCOVERY_NQN or _text(entry / "cntrltype") == "discovery",
            tls_key=tls_key,
        )

    def _namespaces(self, entry: Path) -> tuple[NamespacePath, ...]:
        found = []
        for child in _children(entry):
            joined = _PATH.fullmatch(child.name)
            if joined is None and _NAMESPACE.fullmatch(child.name) is None:
                continue
            nsid = _number(child / "nsid", 0)
            if not nsid:
                continue
            device = f"nvme{joined[1]}n{joined[2]}" if joined else child.name
            block = self._sys / "class/block" / device
            there = (block / "dev").exists()
            ana = _text(child / "ana_state")
            found.append(
                NamespacePath(
                    nsid=nsid,
                    uuid=_text(child / "uuid").lower(),
                    # As a UUID is written, by the kernel's %pU.
                    nguid=_text(child / "nguid").replace("-", "").lower(),
                    size_bytes=_number((block if there else child) / "size", 0) * SECTOR_BYTES,
                    # No node is made before a path can be used (nvme_mpath_set_live).
                    device=device if there else "",
                    ana_state=AnaState(ana) if ana in {state.value for state in AnaState} else None,
                    path=child.name,
                )
            )
        return tuple(sorted(found, key=lambda namespace: namespace.nsid))

    def key_of(self, controller: Controller) -> str:
        """Read ``dhchap_secret``, which is the host's (nvme_ctrl_dhchap_secret_show, "none" without one)."""
        place = self._sys / "class/nvme" / controller.name
        try:
            directory = os.open(os.path.realpath(place, strict=True), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            same = (_read_below(directory, "hostnqn"), _read_below(directory, "subsysnqn"))
            key = _read_below(directory, "dhchap_secret") if same == (controller.host_nqn, controller.nqn) else ""
        except OSError:
            return ""
        finally:
            os.close(directory)
        return key if key != "none" else ""

    def statistics(self, device: str) -> BlockStatistics:
        """Read the device's ``stat`` (Documentation/block/stat.rst)."""
        fields = [int(field) for field in _text(self._sys / "class/block" / device / "stat").split()[:9]]
        if len(fields) < 9:
            return BlockStatistics()
        return BlockStatistics(
            reads=fields[0],
            read_bytes=fields[2] * SECTOR_BYTES,
            read_ms=fields[3],
            writes=fields[4],
            written_bytes=fields[6] * SECTOR_BYTES,
            write_ms=fields[7],
            in_flight=fields[8],
        )

    def block_number(self, device: str) -> str:
        """Read the device's ``dev``."""
        return _text(self._sys / "class/block" / device / "dev") if device else ""

    def leads_to(self, path: str) -> str:
        """Follow the links below /dev, and compare the node with what the kernel has under its number."""
        try:
            place = Path(os.path.realpath(self._dev / path.removeprefix("/dev/"), strict=True))
        except OSError:
            return ""
        number = self._node_number(place)
        entry = self._sys / "dev/block" / number
        return _link_name(entry) if number else ""

    def _node_number(self, place: Path) -> str:
        try:
            status = place.stat()
        except OSError:
            return ""
        if not stat.S_ISBLK(status.st_mode):
            return ""
        return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"

    # nvme-cli.

    async def cli(self) -> NvmeCli:
        """Ask it, once for each that is installed."""
        path = shutil.which(self._program)
        try:
            # Where it is being upgraded it may be gone again.
            status = os.stat(path) if path is not None else None
        except OSError:
            status = None
        if path is None or status is None:
            raise Unavailable("nvme-cli is not here", hint=_INSTALL)
        marks = (path, status.st_ino, status.st_mtime_ns)
        if self._known is None or self._known[0] != marks:
            self._known = (marks, await self._probe())
        return self._known[1]

    async def _probe(self) -> NvmeCli:
        said = await self._run(Call(("version",)))
        version = parse_version(said.out + said.err)
        # On standard error, with exit code 1, in 2.x.
        told = await self._run(Call(("connect", "--help")))
        return NvmeCli(version=version, options=parse_options(told.out + told.err))

    async def connect(self, connection: Connection, address: TransportAddress, *, key: str = "") -> None:
        """Run ``nvme connect``, and look what has come of it."""
        said, absent = "", ""
        if self._path(connection, address) is None:
            absent = await self._load(address.transport)
            cli = await self.cli()
            if address.tls:
                self._prove_tls(cli, address)
            call = connect_call(cli, connection, address, key=key)
            done = await self._run(call)
            said = f"{done.err}\n{done.out}"
        found = self._path(connection, address)
        if found is None and absent:
            raise Unavailable(f"connect {address}: {absent}", hint=f"modprobe {MODULES[address.transport]}")
        if found is None:
            raise connect_error(address, said)
        # What nvme-cli gets wrong, and what an earlier agent had set.  Both, in this order: of the time-out the kernel
        # keeps how many tries it is, by the delay of that moment (nvme_ctrl_loss_tmo_store).
        if not found.has_times_of(connection):
            await self._write(
                found,
                {"reconnect_delay": str(connection.reconnect_delay_s), "ctrl_loss_tmo": str(connection.loss_s)},
            )

    def _prove_tls(self, cli: NvmeCli, address: TransportAddress) -> None:
        """Raise where nvme-cli or the kernel know no TLS: libnvme leaves out what the kernel does not know."""
        if not cli.has_tls:
            raise Unavailable(f"connect {address}: nvme-cli {cli} knows no TLS", hint=TLS_CLI_HINT)
        # What it takes (nvmf_dev_show): "instance=-1,cntlid=-1,transport=%s,...,tls".
        if TLS_OPTION not in _text(self._dev / "nvme-fabrics").split(","):
            raise Unavailable(f"connect {address}: this kernel knows no TLS", hint=KERNEL_HINT)

    async def _load(self, transport: Transport) -> str:
        """Load what connects by a transport, without which nvme-cli finds nothing to talk to; return what failed."""
        module = MODULES[transport]
        if (self._sys / "module" / module.replace("-", "_")).exists():
            return ""
        return str(await run_disposable(load_modules, [module]))

    def _path(self, connection: Connection, address: TransportAddress) -> Controller | None:
        for controller in self.controllers():
            # One that is on its way out is none any more.
            if controller.reaches(connection, address) and controller.state not in (
                ControllerState.DELETING, ControllerState.DELETING_NO_IO, ControllerState.DEAD,
            ):  # fmt: skip
                return controller
        return None

    async def disconnect(self, controller: Controller) -> None:
        """Write to the controller's ``delete_controller``."""
        try:
            await self._write(controller, {"delete_controller": "1"})
        except NotFound:
            return

    async def _write(self, controller: Controller, values: dict[str, str]) -> None:
        what = f"controller {controller.name} ({controller.address})"
        place = str(self._sys / "class/nvme" / controller.name)
        try:
            await run_disposable(write_to_controller, place, controller.host_nqn, controller.nqn, values)
        except OSError as error:
            raise converted(what, error) from error

    async def discover(
        self, address: TransportAddress, *, host_nqn: str, host_id: str, persistent: bool = False
    ) -> tuple[DiscoveryRecord, ...]:
        """Run ``nvme discover``."""
        said = await self._run(discover_call(address, host_nqn=host_nqn, host_id=host_id, persistent=persistent))
        if said.code and not said.out.strip():
            error = connect_error(address, said.err)
            raise type(error)(f"discover {error.message.removeprefix('connect ')}", hint=error.hint)
        return parse_discovery(said.out)

    async def smart_log(self, device: str) -> SmartLog:
        """Run ``nvme smart-log``, or what it is called."""
        said = await self._run(smart_call(await self.cli(), f"/dev/{device}"))
        if said.code:
            lines = without_secrets(said.err).strip().splitlines()
            raise Unavailable(f"SMART log of {device}: {lines[0][:200] if lines else 'nvme-cli says nothing'}")
        return parse_smart_log(said.out)

    async def _run(self, call: Call) -> Said:
        """Run nvme-cli in a process that can be left behind; its configuration is in memory that it alone is given."""
        arguments = list(call.arguments)
        with contextlib.ExitStack() as stack:
            pass_fds: tuple[int, ...] = ()
            try:
                if call.configuration:
                    descriptor = os.memfd_create("nvme", os.MFD_CLOEXEC)
                    stack.callback(os.close, descriptor)
                    os.write(descriptor, call.configuration.encode())
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    pass_fds = (descriptor,)
                    arguments.append(f"--config=/dev/fd/{descriptor}")
                child = await spawn(
                    self._program, *arguments,
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                    pass_fds=pass_fds, start_new_session=True, env={**os.environ, "LC_ALL": "C"},
                )  # fmt: skip
            except OSError as error:
                # Without descriptors or memory, to install it again would not help.
                hint = _INSTALL if isinstance(error, FileNotFoundError) else "see dmesg"
                raise Unavailable(f"nvme {arguments[0]}: {error.strerror}", hint=hint) from error
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            out, err = await asyncio.gather(_bounded(child.stdout), _bounded(child.stderr))
            code = await child.wait()
        except BaseException:
            kill_process(child)
            raise
        return Said(code, out, err)


async def _bounded(stream: asyncio.StreamReader) -> str:
    """Return all that a stream brings, or its beginning; it is read to its end, so that nobody waits for us."""
    kept = bytearray()
    while data := await stream.read(1 << 16):
        kept += data[: max(0, OUTPUT_LIMIT_BYTES - len(kept))]
    return kept.decode(errors="replace")


def write_to_controller(place: str, host_nqn: str, nqn: str, values: dict[str, str]) -> None:
    """Write attributes of a controller, in a child: deleting one waits for what is in flight.

    All is done below one descriptor of its directory, which another controller
    of the same name does not get.  Raises OSError; ENOENT where it is gone.
    """
    directory = os.open(os.path.realpath(place, strict=True), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, expected in (("hostnqn", host_nqn), ("subsysnqn", nqn)):
            if _read_below(directory, name) != expected:
                raise FileNotFoundError(errno.ENOENT, "it is another controller by now", place)
        for name, value in values.items():
            descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
            try:
                os.write(descriptor, value.encode("ascii"))
            finally:
                os.close(descriptor)
    finally:
        os.close(directory)


def _read_below(directory: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        text = os.read(descriptor, 4096).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    return "" if text in _NOBODY else text


def parse_address(transport: Transport, text: str) -> TransportAddress:
    """Read a controller's ``address``, ``traddr=10.0.0.7,trsvcid=4420,src_addr=10.0.0.1``; raise for what is none."""
    if transport is Transport.LOOP:
        return TransportAddress(transport=transport, address="", service=0)
    parts = _parts(text)
    try:
        return TransportAddress(
            transport=transport, address=normal_address(parts["traddr"]), service=int(parts["trsvcid"])
        )
    except KeyError as error:
        raise InvalidInput(f"address of a controller: {text!r} has no {error}") from None


def _parts(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def converted(what: str, error: OSError) -> FarbusError:
    """Return the error of a write that failed."""
    message = f"{what}: {error.strerror}"
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return NotFound(message)
    if error.errno == errno.EBUSY:
        # Since Linux 6.0 a controller that has never been up can't be deleted while it is being connected.
        return Conflict(f"{what}: the kernel is still connecting it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(message, hint="only root may, outside of containers")
    return Unavailable(message, hint="see dmesg")


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _known(path: Path) -> str:
    text = _text(path)
    return "" if text in _NOBODY else text


def _number(path: Path, default: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        # "off" stands for a controller that is tried for ever (ctrl_loss_tmo).
        return default


def _hexadecimal(path: Path) -> int:
    try:
        return int(_text(path), 16)
    except ValueError:
        return 0


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
