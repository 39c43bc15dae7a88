"""What ``farbus doctor`` says of storage: programs, modules of the kernel, the volume group and its drives."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator

from farbus.cli.findings import Finding, Verdict
from farbus.errors import FarbusError
from farbus.linux.diagnosis import KernelFactsReader
from farbus.linux.lvm import GROUP, KernelLvm, Lvm
from farbus.model.quantity import format_bytes
from farbus.model.storage import LogicalVolume, StorageDrive

CHECK = "storage"

STORING = {"lvm": "lvm2"}
"""Programs that a node needs that stores, and the packages that bring them."""

USING = {
    "nvme": "nvme-cli", "dmsetup": "dmsetup", "blkid": "util-linux", "mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs",
}  # fmt: skip
"""Programs that a node needs that uses storage, its own or others'."""

STORING_MODULES = ("nvmet", "nvmet-tcp", "dm-mod")
USING_MODULES = ("nvme-tcp", "dm-mod")


def examine_storage(
    *,
    lvm: Lvm | None = None,
    which: Callable[[str], str | None] = shutil.which,
    has_module: Callable[[str], bool] | None = None,
    is_root: bool | None = None,
) -> Iterator[Finding]:
    """Yield what stands against storing for others and against using what others store; neither is needed."""
    module = has_module or KernelFactsReader().has_module
    for what, programs, modules in (
        ("use storage", USING, USING_MODULES),
        ("store for others", {**STORING, **USING}, STORING_MODULES),
    ):
        packages = sorted({package for program, package in programs.items() if which(program) is None})
        absent = [name for name in modules if not module(name)]
        missing = [*(f"package {one}" for one in packages), *(f"kernel module {one}" for one in absent)]
        if missing:
            cure = f"apt install {' '.join(packages)}" if packages else "a kernel that has them"
            yield Finding(
                check=CHECK, verdict=Verdict.NOTE, found=f"to {what} there is missing: {', '.join(missing)}", cure=cure
            )
        else:
            yield Finding(check=CHECK, verdict=Verdict.OK, found=f"there is what is needed to {what}")
    if which("lvm") is None:
        return
    if not (os.geteuid() == 0 if is_root is None else is_root):
        yield Finding(
            check=CHECK, verdict=Verdict.NOTE, found="only root can look at volume groups", cure="sudo farbus doctor"
        )
        return
    yield from _group(lvm or KernelLvm())


def _group(lvm: Lvm) -> Iterator[Finding]:
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
            found=f"volume group {GROUP}: no drives are given to Farbus here",
            cure="farbus storage init DRIVE..., and storage = true in agent.toml, to store for others",
        )
        return
    size, free = sum(drive.size_bytes for drive in drives), sum(drive.free_bytes for drive in drives)
    names = ", ".join(drive.id for drive in drives)
    yield Finding(
        check=CHECK,
        verdict=Verdict.OK,
        found=f"volume group {GROUP}: {format_bytes(size)}, {format_bytes(free)} of it free, on {names}",
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
