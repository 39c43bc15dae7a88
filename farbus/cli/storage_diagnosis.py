"""What ``farbus doctor`` says of storage: programs, modules of the kernel, the volume group and its drives."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from farbus.cli.findings import Finding, Verdict
from farbus.cli.installation import STORAGE_RULES, storage_rules
from farbus.cli.node_settings import NodeSettings
from farbus.errors import FarbusError
from farbus.linux.diagnosis import KernelFactsReader
from farbus.linux.lvm import KernelLvm, Lvm
from farbus.linux.nvme import TLS_CLI_HINT, KernelNvme, NvmeFabrics
from farbus.linux.tls_keys import DAEMON, DAEMON_HINT, KERNEL_HINT, shakes_hands
from farbus.linux.tls_keys import MODULE as TLS_MODULE
from farbus.model.quantity import format_bytes
from farbus.model.storage import LogicalVolume, StorageDrive

CHECK = "storage"

STORING = {"lvm": "lvm2"}
"""Programs that a node needs that stores, and the packages that bring them."""

USING = {
    "nvme": "nvme-cli", "dmsetup": "dmsetup", "blkid": "util-linux", "mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs",
}  # fmt: skip
"""Programs that a node needs that uses storage, its own or others'."""

UNIT = "farbus-agent.service"
UNITS = "systemd/system"
PLACES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
"""Where systemd looks for units (``systemd/system`` below each) and for what is changed of them, and udev for rules
(``udev/rules.d``): of files with one name the first counts."""

RIGHT = "CAP_SYS_ADMIN"
"""By this a drop-in is known that lets the agent's unit have what storage takes, also one that was written by hand."""

STORING_MODULES = ("nvmet", "nvmet-tcp", "dm-mod")
USING_MODULES = ("nvme-tcp", "dm-mod")
TLS_MODULES = (TLS_MODULE, "tls")
"""Where nvmeof_tls is on: the keyring, and the records of TLS."""
RDMA_MODULE = "nvmet-rdma"
"""Where nvmeof_addresses name one of RDMA."""


TOOLS = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where programs for root are: agents find them there, and an ordinary user's PATH is without them."""


def find_tool(name: str) -> str | None:
    """Return the path of a program that an agent would find; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=TOOLS)


def examine_storage(
    settings: NodeSettings,
    *,
    lvm: Lvm | None = None,
    which: Callable[[str], str | None] | None = None,
    has_module: Callable[[str], bool] | None = None,
    is_root: bool | None = None,
    root: str = "/",
    nvme: NvmeFabrics | None = None,
    proc: str = "/proc",
) -> Iterator[Finding]:
    """Yield what stands against storing for others and against using what others store; neither is needed.

    ``settings`` are those of this machine's agent, ``root`` is where its units are looked for, ``proc`` where who runs.
    """
    yield from _unit(settings, Path(root))
    yield from _rules(settings, Path(root))
    which = which or find_tool
    module = has_module or KernelFactsReader().has_module
    for what, programs, modules in (
        ("use storage", USING, USING_MODULES),
        (
            "store for others",
            {**STORING, **USING},
            (*STORING_MODULES, *([RDMA_MODULE] if settings.offers_rdma else [])),
        ),
    ):
        packages = sorted({package for program, package in programs.items() if which(program) is None})
        absent = [name for name in modules if not module(name)]
        missing = [*(f"package {one}" for one in packages), *(f"kernel module {one}" for one in absent)]
        if missing:
            cures = [f"apt install {' '.join(packages)}"] * bool(packages) + ["a kernel that has them"] * bool(absent)
            yield Finding(
                check=CHECK,
                verdict=Verdict.NOTE,
                found=f"to {what} there is missing: {', '.join(missing)}",
                cure=", and ".join(cures),
            )
        else:
            yield Finding(check=CHECK, verdict=Verdict.OK, found=f"there is what is needed to {what}")
    if settings.encrypts_storage:
        yield from _tls(nvme or KernelNvme(), module, Path(proc), Path(root))
    if which("lvm") is None:
        return
    if not (os.geteuid() == 0 if is_root is None else is_root):
        yield Finding(
            check=CHECK, verdict=Verdict.NOTE, found="only root can look at volume groups", cure="sudo farbus doctor"
        )
        return
    yield from _group(lvm or KernelLvm(group=settings.volume_group), settings.volume_group)


def _tls(nvme: NvmeFabrics, module: Callable[[str], bool], proc: Path, root: Path) -> Iterator[Finding]:
    """Yield what stands against TLS between this node and NVMe targets, where it is set."""
    missing: list[tuple[str, str]] = []
    if absent := [name for name in TLS_MODULES if not module(name)]:
        missing.append((f"kernel module {', '.join(absent)}", KERNEL_HINT))
    try:
        cli = asyncio.run(nvme.cli())
    except FarbusError as error:
        missing.append((error.message, error.hint))
    else:
        if not cli.has_tls:
            missing.append((f"nvme-cli {cli} knows no TLS", TLS_CLI_HINT))
    if not shakes_hands(proc):
        missing.append((f"{DAEMON} does not run", DAEMON_HINT))
    if not _has_drop_in(root, f"{DAEMON}.service", TLS_MODULE):
        missing.append(
            (
                f"{DAEMON} may start before there is a keyring, and then finds no key",
                f"farbus install agent, then systemctl daemon-reload and systemctl restart {DAEMON}",
            )
        )
    for found, cure in missing:
        yield Finding(check=CHECK, verdict=Verdict.WARNING, found=f"nvmeof_tls is on, and {found}", cure=cure)
    if not missing:
        yield Finding(check=CHECK, verdict=Verdict.OK, found="there is what is needed to encrypt storage")


def _unit(settings: NodeSettings, root: Path) -> Iterator[Finding]:
    """Yield whether the agent's unit allows what its settings want of it; nothing where it is no unit."""
    if not any((place / UNIT).exists() for place in _below(root, UNITS)):
        return
    allowed = _has_drop_in(root, UNIT, RIGHT)
    again = "farbus install agent, then systemctl restart farbus-agent, which ends no job"
    if settings.needs_rights and not allowed:
        said = "storage" if settings.storage else "use_storage"
        yield Finding(
            check=CHECK,
            verdict=Verdict.WARNING,
            found=f"agent.toml says {said} = true, and the agent's unit does not allow it (no drop-in storage.conf)",
            cure=again,
        )
    elif allowed and not settings.needs_rights:
        yield Finding(
            check=CHECK,
            verdict=Verdict.NOTE,
            found="the agent's unit allows storage, and agent.toml says neither storage = true nor use_storage = true",
            cure=again,
        )


def _rules(settings: NodeSettings, root: Path) -> Iterator[Finding]:
    """Yield whether udev is kept from looking at what users write; nothing where the node has no storage of theirs."""
    if not settings.needs_rights:
        return
    found = [place for one in _below(root, "udev/rules.d") if (place := one / STORAGE_RULES).exists()]
    if not found:
        said = f"udev looks at what users write on volumes and acts on it: there is no {STORAGE_RULES}"
    elif found[0].read_bytes() != storage_rules(settings.volume_group):
        said = f"{found[0]} is not what this version puts there for volume group {settings.volume_group}"
    else:
        return
    cure = "farbus install agent, which puts the new one beside a file that was changed here"
    yield Finding(check=CHECK, verdict=Verdict.WARNING, found=said, cure=cure)


def _below(root: Path, name: str) -> list[Path]:
    return [root / place.lstrip("/") / name for place in PLACES]


def _has_drop_in(root: Path, unit: str, word: str) -> bool:
    """Say whether a word is in something that changes a unit."""
    return any(
        word in drop_in.read_text(errors="replace")
        for place in _below(root, UNITS)
        for drop_in in (place / f"{unit}.d").glob("*.conf")
        if os.access(drop_in, os.R_OK)
    )


def _group(lvm: Lvm, group: str) -> Iterator[Finding]:
    async def look() -> tuple[tuple[StorageDrive, ...], tuple[LogicalVolume, ...]]:
        return await lvm.drives(), await lvm.volumes()

    try:
        drives, volumes = asyncio.run(look())
    except FarbusError as error:
        yield Finding(check=CHECK, verdict=Verdict.WARNING, found=error.message, cure=error.hint)
        return
    if not drives:
        yield Finding(
            check=CHECK,
            verdict=Verdict.NOTE,
            found=f"volume group {group}: no drives are given to Farbus here",
            cure="farbus storage init DRIVE..., and storage = true in agent.toml, to store for others",
        )
        return
    size, free = sum(drive.size_bytes for drive in drives), sum(drive.free_bytes for drive in drives)
    names = ", ".join(drive.id for drive in drives)
    yield Finding(
        check=CHECK,
        verdict=Verdict.OK,
        found=f"volume group {group}: {format_bytes(size)}, {format_bytes(free)} of it free, on {names}",
    )
    for drive in drives:
        if drive.missing:
            lost = [str(volume.identity) for volume in volumes if drive.id in volume.drives]
            yield Finding(
                check=CHECK,
                verdict=Verdict.WARNING,
                found=f"drive {drive.id} is missing; on it: {', '.join(lost) or 'nothing'}",
                cure="put it back, or remove what was on it and run vgreduce --removemissing",
            )
