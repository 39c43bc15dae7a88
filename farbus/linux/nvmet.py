"""The door to Linux's NVMe target: configfs below /sys/kernel/config/nvmet.

Both reading and writing are done in disposable children
(:mod:`farbus.linux.disposable`): to disable a namespace waits for what is
under way on its device, for ever if that does not answer, with a lock
(``nvmet_config_sem``) that some attributes want for reading too.

What is not Farbus's is never written to: subsystems and hosts by their names
(:data:`farbus.model.nvmeof.NQN_PREFIX`), ports by their numbers
(:data:`farbus.model.nvmet.PORTS`).  Keys go from this process to the kernel
through the child's standard input, and are in nothing else.

Sources: drivers/nvme/target/configfs.c of Linux 6.1 and 6.12, and what their
kernels answered (tests/linux/nvmet_contract.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.linux.modules import load_modules
from farbus.linux.names import shown
from farbus.linux.tls_keys import KERNEL_HINT
from farbus.model.nvmeof import (
    MODEL,
    NQN_PREFIX,
    AnaState,
    ExportedNamespace,
    Transport,
    TransportAddress,
)
from farbus.model.nvmet import (
    COMMON_ANA_GROUP,
    PORTS,
    Target,
    TargetHost,
    TargetNamespace,
    TargetPort,
    TargetSubsystem,
)

CONFIGFS = "/sys/kernel/config"

MODULES = {Transport.TCP: "nvmet-tcp", Transport.RDMA: "nvmet-rdma", Transport.LOOP: "nvme-loop"}
"""What serves each transport, beside nvmet itself."""

TLS = "tls1.3"
"""``addr_tsas`` of a port for TLS, as the kernel spells it (nvmet_addr_tsas_tcp)."""

REQUIRED = "required"
"""``addr_treq`` of a port where nothing but TLS is spoken: with anything less, who begins in the clear is served."""

FIRST_WITHOUT_PROOF = (6, 15)
"""The first Linux that takes who comes by TLS for proven (nvmet_setup_auth, nvmet_queue_tls_keyid), without comparing
whose key that is with who connects."""

KEY_MODE = 0o600
"""Of the attributes with keys.  The kernel makes them readable by everybody, and tells what is in them."""

DIFFIE_HELLMAN = "ffdhe2048"
"""Group of the exchange: with none, who listens and guesses keys can try them at home."""

READ_S = 30.0
"""Longest that the whole of it may take to be read: an agent that starts looks at each of its leases."""


class KnowsNoKeys(Unavailable):
    """This kernel's target can ask no host for a proof."""


Operation = tuple[str, ...]
"""One system call: its name, a path below the target's root, and what else it takes."""


class Nvmet(Protocol):
    """One node's target.  All that is written may be repeated.

    Everything raises :class:`Unavailable` with the cure where there is no
    target, and :class:`Conflict` for what is not Farbus's.
    """

    def is_loaded(self) -> bool:
        """Say whether this kernel has a target now: where it has none, nothing is exported."""
        ...

    def asks_over_tls(self) -> bool:
        """Say whether this kernel asks hosts with keys for a proof also where they come by TLS."""
        ...

    async def target(self) -> Target:
        """Return all that there is.  What disappears meanwhile is left out."""
        ...

    async def load(self, transports: Sequence[Transport]) -> None:
        """Load what the kernel needs for these transports, where it has not."""
        ...

    async def make_subsystem(self, nqn: str, *, serial: str) -> None:
        """Make a subsystem that nobody may connect to and no port offers."""
        ...

    async def make_namespace(self, nqn: str, namespace: ExportedNamespace) -> None:
        """Make a namespace with all its attributes and enable it.

        Raises :class:`NotFound` where its device is not there.
        """
        ...

    async def disable_namespaces(self, nqn: str, nsids: Sequence[int]) -> None:
        """Take namespaces away from whoever uses them.  Returns when what was under way on the devices is done."""
        ...

    async def revalidate_size(self, nqn: str, nsid: int) -> None:
        """Have the size of a namespace read again, and initiators told when it is another."""
        ...

    async def remove_subsystem(self, subsystem: TargetSubsystem) -> None:
        """Remove a subsystem as it was read, with its namespaces and links.

        Raises :class:`Conflict` where a port still offers it.
        """
        ...

    async def make_host(self, nqn: str, *, key: str = "", controller_key: str = "") -> None:
        """Make a host, with keys where it has to prove itself.

        Raises :class:`KnowsNoKeys` where the kernel knows of none.
        """
        ...

    async def allow_host(self, nqn: str, host: str) -> None:
        """Let a host connect to a subsystem."""
        ...

    async def forbid_host(self, nqn: str, host: str) -> None:
        """Let it connect no more.  It stays connected where it is."""
        ...

    async def remove_host(self, nqn: str) -> None:
        """Remove a host, and its keys.  Raises :class:`Conflict` where a subsystem names it."""
        ...

    async def make_port(self, number: int, address: TransportAddress) -> None:
        """Make a port, which listens once it offers something.

        Raises :class:`Unavailable` for one of TLS where the kernel knows none.
        """
        ...

    async def set_access(self, port: int, group: int, state: AnaState) -> None:
        """Set the ANA state of a group at a port; make the group where it is not there."""
        ...

    async def remove_group(self, port: int, group: int) -> None:
        """Remove an ANA group from a port."""
        ...

    async def offer(self, port: int, nqn: str) -> None:
        """Offer a subsystem at a port.

        Raises :class:`Conflict` where another listens there, :class:`Unavailable` where the address is not this node's.
        """
        ...

    async def withhold(self, port: int, nqn: str) -> None:
        """Offer it there no more, and end the controllers of those who connected there."""
        ...

    async def remove_port(self, port: TargetPort) -> None:
        """Remove a port as it was read, with its groups.  Raises :class:`Conflict` where it offers something."""
        ...


class KernelNvmet:
    """Writes to configfs; ``root`` is where that is mounted."""

    def __init__(self, *, root: str | Path = CONFIGFS) -> None:
        self._configfs = Path(root)
        self._root = self._configfs / "nvmet"

    def is_loaded(self) -> bool:
        """Look for nvmet's directory."""
        return self._root.is_dir()

    def asks_over_tls(self) -> bool:
        """Go by the kernel's version: nothing tells it."""
        return linux_version(os.uname().release) < FIRST_WITHOUT_PROOF

    async def target(self) -> Target:
        """Read everything in a child."""
        return msgspec.convert(await self._read(), Target)

    async def _read(self) -> Any:
        try:
            async with asyncio.timeout(READ_S):
                return await run_disposable(read_target, str(self._root))
        except TimeoutError as error:
            raise TimedOut(
                f"NVMe target: not read after {READ_S:g} s",
                hint="a drive that it exports may hang, with the kernel's lock; see dmesg",
            ) from error
        except OSError as error:
            raise self._converted("read the NVMe target", error) from error

    async def load(self, transports: Sequence[Transport]) -> None:
        """Call modprobe, which does nothing where a module is loaded or built in."""
        await run_disposable(load_target, str(self._configfs), [MODULES[transport] for transport in transports])

    # Subsystems and namespaces.

    async def make_subsystem(self, nqn: str, *, serial: str) -> None:
        """Make the directory, and name what the kernel would make up."""
        place = _subsystem(nqn)
        await self._run(
            f"make subsystem {nqn}",
            ("mkdir", place),
            ("write", f"{place}/attr_allow_any_host", "0"),
            ("write", f"{place}/attr_serial", serial),
            ("write", f"{place}/attr_model", MODEL),
        )

    async def make_namespace(self, nqn: str, namespace: ExportedNamespace) -> None:
        """Set the attributes, which takes it to be disabled, and enable it."""
        place = f"{_subsystem(nqn)}/namespaces/{namespace.nsid}"
        await self._run(
            f"make namespace {namespace.nsid} of {nqn} on {namespace.device}",
            ("mkdir", place),
            ("write", f"{place}/enable", "0"),
            ("write", f"{place}/device_path", namespace.device),
            ("write", f"{place}/device_uuid", namespace.identity.uuid),
            ("write", f"{place}/device_nguid", namespace.identity.nguid),
            ("write", f"{place}/ana_grpid", str(namespace.ana_group)),
            ("write", f"{place}/enable", "1"),
        )

    async def disable_namespaces(self, nqn: str, nsids: Sequence[int]) -> None:
        """Write to ``enable``; a namespace that is gone is no trouble."""
        place = f"{_subsystem(nqn)}/namespaces"
        await self._run(f"disable namespaces of {nqn}", *(("write?", f"{place}/{nsid}/enable", "0") for nsid in nsids))

    async def revalidate_size(self, nqn: str, nsid: int) -> None:
        """Write to ``revalidate_size`` (Linux 5.8)."""
        place = f"{_subsystem(nqn)}/namespaces/{nsid}"
        await self._run(f"size of namespace {nsid} of {nqn}", ("write", f"{place}/revalidate_size", "1"))

    async def remove_subsystem(self, subsystem: TargetSubsystem) -> None:
        """Remove links and namespaces first: the kernel asks for that."""
        place = _subsystem(subsystem.nqn)
        await self._run(
            f"remove subsystem {subsystem.nqn}",
            *(("unlink", f"{place}/allowed_hosts/{host}") for host in subsystem.hosts),
            *(("rmdir", f"{place}/namespaces/{namespace.nsid}") for namespace in subsystem.namespaces),
            ("rmdir", place),
        )

    # Hosts.

    async def make_host(self, nqn: str, *, key: str = "", controller_key: str = "") -> None:
        """Make the directory, and hide the keys before they are there."""
        place = _host(nqn)
        keys = [(name, value) for name, value in (("dhchap_key", key), ("dhchap_ctrl_key", controller_key)) if value]
        if keys:
            await self._run(f"make host {nqn}", ("mkdir", place))
            if not (self._root / place / "dhchap_key").exists():
                await self.remove_host(nqn)
                raise KnowsNoKeys(
                    f"host {nqn}: this kernel's target knows no authentication",
                    hint="it needs a kernel with CONFIG_NVME_TARGET_AUTH, such as Debian's 6.12; or turn it off",
                )
        await self._run(
            f"make host {nqn}",
            ("mkdir", place),
            *((("write", f"{place}/dhchap_dhgroup", DIFFIE_HELLMAN),) if keys else ()),
            *(("hide", f"{place}/{name}") for name, _ in keys),
            *(("write", f"{place}/{name}", value) for name, value in keys),
        )

    async def allow_host(self, nqn: str, host: str) -> None:
        """Link it."""
        where = f"{_subsystem(nqn)}/allowed_hosts/{host}"
        await self._run(f"let {host} connect to {nqn}", ("link", where, _host(host)))

    async def forbid_host(self, nqn: str, host: str) -> None:
        """Remove the link, of whomever the host is: the subsystem is ours."""
        await self._run(f"let {host} not connect to {nqn}", ("unlink", f"{_subsystem(nqn)}/allowed_hosts/{host}"))

    async def remove_host(self, nqn: str) -> None:
        """Remove the directory."""
        await self._run(f"remove host {nqn}", ("rmdir", _host(nqn)))

    # Ports.

    async def make_port(self, number: int, address: TransportAddress) -> None:
        """Set the address, which the kernel does not look at before something is offered there."""
        place = _port(number)
        await self._run(
            f"make port {number} at {address}",
            ("mkdir", place),
            ("write", f"{place}/addr_trtype", address.transport.value),
            ("write", f"{place}/addr_adrfam", "ipv6" if address.is_ipv6 else "ipv4"),
            ("write", f"{place}/addr_traddr", address.address),
            ("write", f"{place}/addr_trsvcid", str(address.service)),
        )
        if not address.tls:
            return
        # Behind the transport, whose change takes it back.
        tls = (("write", f"{place}/addr_tsas", TLS), ("write", f"{place}/addr_treq", REQUIRED))
        try:
            await self._perform(tls)
        except OSError as error:
            raise Unavailable(
                f"make port {number} at {address}: this kernel's target knows no TLS ({os.strerror(error.errno or 0)})",
                hint=f'{KERNEL_HINT}; or set nvmeof_tls = "off"',
            ) from error

    async def set_access(self, port: int, group: int, state: AnaState) -> None:
        """Write the state, which all controllers of the port are told."""
        place = f"{_port(port)}/ana_groups/{group}"
        made = () if group == COMMON_ANA_GROUP else (("mkdir", place),)
        await self._run(f"ANA group {group} of port {port}", *made, ("write", f"{place}/ana_state", state.value))

    async def remove_group(self, port: int, group: int) -> None:
        """Remove the directory."""
        if group == COMMON_ANA_GROUP:
            raise InvalidInput(f"ANA group {group} of port {port}: it belongs to the port")
        await self._run(f"remove ANA group {group} of port {port}", ("rmdir", f"{_port(port)}/ana_groups/{group}"))

    async def offer(self, port: int, nqn: str) -> None:
        """Link it; at a port's first link, the kernel begins to listen."""
        where = f"{_port(port)}/subsystems/{nqn}"
        await self._run(f"offer {nqn} at port {port}", ("link", where, _subsystem(nqn)))

    async def withhold(self, port: int, nqn: str) -> None:
        """Remove the link (nvmet_port_del_ctrls); with the last one, the kernel no longer listens."""
        _subsystem(nqn)
        await self._run(f"withhold {nqn} at port {port}", ("unlink", f"{_port(port)}/subsystems/{nqn}"))

    async def remove_port(self, port: TargetPort) -> None:
        """Remove its groups, all but the one it came with, and its directory."""
        place = _port(port.id)
        groups = [group for group in port.states if group != str(COMMON_ANA_GROUP)]
        await self._run(
            f"remove port {port.id}",
            *(("rmdir", f"{place}/ana_groups/{group}") for group in groups),
            ("rmdir", place),
        )

    async def _run(self, what: str, *operations: Operation) -> None:
        if not operations:
            return
        try:
            await self._perform(operations)
        except OSError as error:
            # Not the error itself, nor its arguments: only what cannot hold a key.
            raise self._converted(what, error) from None

    async def _perform(self, operations: Sequence[Operation]) -> None:
        await run_disposable(perform, str(self._root), operations)

    def _converted(self, what: str, error: OSError) -> FarbusError:
        attribute = f" ({Path(error.filename).name})" if isinstance(error.filename, str) else ""
        message = f"{what}: {os.strerror(error.errno or 0)}{attribute}"
        if not self._root.exists():
            return _no_target(self._configfs)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return NotPermitted(message, hint="only root may, outside of containers")
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            return NotFound(message)
        if error.errno == errno.EADDRINUSE:
            return Conflict(message, hint="ss -tlnp shows who listens there")
        if error.errno == errno.EADDRNOTAVAIL:
            return Unavailable(message, hint="ip address shows this node's addresses")
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST):
            return Conflict(message)
        return Unavailable(message, hint="see dmesg")


def linux_version(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a kernel's release; zeros for one without."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _subsystem(nqn: str) -> str:
    return f"subsystems/{_ours('subsystem', nqn)}"


def _host(nqn: str) -> str:
    return f"hosts/{_ours('host', nqn)}"


def _ours(kind: str, nqn: str) -> str:
    # A name with a slash would lead elsewhere.
    if not nqn.startswith(NQN_PREFIX) or "/" in nqn:
        raise Conflict(f"{kind} {nqn}: not one of Farbus's, and left alone")
    return nqn


def _port(number: int) -> str:
    if number not in PORTS:
        raise Conflict(f"port {number}: not one of Farbus's ({PORTS.start} to {PORTS.stop - 1}), and left alone")
    return f"ports/{number}"


def _no_target(configfs: Path) -> Unavailable:
    if not configfs.is_dir():
        return Unavailable(f"NVMe target: no {configfs}", hint=f"mount -t configfs none {configfs}")
    return Unavailable(f"NVMe target: no {configfs / 'nvmet'}", hint="modprobe nvmet nvmet-tcp")


# What children do: called by name, also by the fake in its own process.


class Configfs(Protocol):
    """The system calls that configfs takes.  They raise OSError."""

    def mkdir(self, path: str) -> None:
        """Make an object."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an object."""
        ...

    def write(self, path: str, value: str) -> None:
        """Set an attribute."""
        ...

    def link(self, path: str, to: str) -> None:
        """Link an object."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a link."""
        ...

    def hide(self, path: str) -> None:
        """Let only root read an attribute."""
        ...


class KernelConfigfs:
    """Makes the calls; paths are below ``root``, and part of errors."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)

    def mkdir(self, path: str) -> None:
        """mkdir(2)."""
        os.mkdir(self._root / path)

    def rmdir(self, path: str) -> None:
        """rmdir(2)."""
        os.rmdir(self._root / path)

    def write(self, path: str, value: str) -> None:
        """One write(2), as the kernel takes it."""
        name = str(self._root / path)
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode("ascii"))
        except OSError as error:
            error.filename = name
            raise
        finally:
            os.close(descriptor)

    def link(self, path: str, to: str) -> None:
        """symlink(2)."""
        os.symlink(self._root / to, self._root / path)

    def unlink(self, path: str) -> None:
        """unlink(2)."""
        os.unlink(self._root / path)

    def hide(self, path: str) -> None:
        """chmod(2)."""
        os.chmod(self._root / path, KEY_MODE)


_DONE_ALREADY = {
    "mkdir": errno.EEXIST,
    "link": errno.EEXIST,
    "rmdir": errno.ENOENT,
    "unlink": errno.ENOENT,
    "write?": errno.ENOENT,
}
"""What a call says where there is nothing to do."""


def perform(root: str, operations: Sequence[Sequence[str]]) -> None:
    """Do what is asked, one after the other.  May block for ever."""
    configfs = KernelConfigfs(root)
    for operation in operations:
        carry_out(configfs, operation)


def carry_out(configfs: Configfs, operation: Sequence[str]) -> None:
    """Make one call; what is done already is no error.

    ``write?`` is a write to what may be gone.
    """
    name, path, *rest = operation
    try:
        getattr(configfs, name.rstrip("?"))(path, *rest)
    except OSError as error:
        if error.errno != _DONE_ALREADY.get(name):
            raise


def load_target(configfs: str, names: Sequence[str]) -> None:
    """Load nvmet and what serves transports.  Raises :class:`Unavailable` where it can't be.  May block."""
    root = Path(configfs)
    told = load_modules(["nvmet", *names])
    if not (root / "nvmet").is_dir():
        raise _no_target(root)
    if told:
        raise Unavailable(f"NVMe target: {told}", hint=f"modprobe {' '.join(names)}")


def read_target(root: str) -> dict[str, Any]:
    """Read everything as JSON can hold it; raise :class:`Unavailable` where there is no target.  May block."""
    place = Path(root)
    if not (place / "subsystems").is_dir():
        raise _no_target(place.parent)
    subsystems = [_read_subsystem(entry) for entry in _entries(place / "subsystems")]
    ports = [_read_port(entry) for entry in _entries(place / "ports")]
    target = Target(
        subsystems=tuple(one for one in subsystems if one is not None),
        ports=tuple(sorted((one for one in ports if one is not None), key=lambda port: port.id)),
        hosts=tuple(
            TargetHost(
                nqn=shown(entry.name),
                authenticated=bool(_text(entry / "dhchap_key")),
                proves_target=bool(_text(entry / "dhchap_ctrl_key")),
            )
            for entry in _entries(place / "hosts")
        ),
    )
    found: dict[str, Any] = msgspec.to_builtins(target)
    return found


def _read_subsystem(place: Path) -> TargetSubsystem | None:
    try:
        return TargetSubsystem(
            nqn=shown(place.name),
            serial=_read(place / "attr_serial"),
            model=_text(place / "attr_model"),
            any_host=_read(place / "attr_allow_any_host") == "1",
            hosts=_links(place / "allowed_hosts"),
            namespaces=tuple(
                sorted(
                    (one for entry in _entries(place / "namespaces") if (one := _read_namespace(entry))),
                    key=lambda namespace: namespace.nsid,
                )
            ),
        )
    except OSError:
        # It went while it was read.
        return None


def _read_namespace(place: Path) -> TargetNamespace | None:
    try:
        device = _read(place / "device_path")
        return TargetNamespace(
            nsid=int(place.name),
            device="" if device == "(null)" else device,
            uuid=_read(place / "device_uuid").lower(),
            nguid=re.sub("[^0-9a-f]", "", _read(place / "device_nguid").lower()),
            ana_group=int(_read(place / "ana_grpid")),
            enabled=_read(place / "enable") == "1",
        )
    except (OSError, ValueError):
        return None


def _read_port(place: Path) -> TargetPort | None:
    try:
        return TargetPort(
            id=int(place.name),
            transport=_text(place / "addr_trtype"),
            family=_text(place / "addr_adrfam"),
            address=_text(place / "addr_traddr"),
            service=_text(place / "addr_trsvcid"),
            subsystems=_links(place / "subsystems"),
            states={
                entry.name: state
                for entry in _entries(place / "ana_groups")
                # Without one it has gone meanwhile.
                if (state := _text(entry / "ana_state"))
            },
            tls=(_text(place / "addr_tsas"), _text(place / "addr_treq")) == (TLS, REQUIRED),
        )
    except (OSError, ValueError):
        return None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(entry for entry in directory.iterdir() if entry.is_dir())
    except OSError:
        return []


def _links(directory: Path) -> tuple[str, ...]:
    """Return what links lead to: somebody's link may be called otherwise."""
    found = []
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return ()
    for entry in entries:
        # One that has gone meanwhile takes no other with it.
        with contextlib.suppress(OSError):
            found.append(shown(os.path.basename(os.readlink(entry))))
    return tuple(found)


def _read(path: Path) -> str:
    """Return an attribute's text; raise OSError.  What somebody else has written there may be no UTF-8."""
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _text(path: Path) -> str:
    try:
        return _read(path)
    except OSError:
        return ""
