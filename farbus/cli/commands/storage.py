"""``farbus storage``: which drives of this machine are given to Farbus."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from farbus.cli.listing import Column, print_listing
from farbus.cli.node_settings import AGENT_SETTINGS, node_settings
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.errors import Conflict, NotFound
from farbus.linux.block import KernelBlockDevices
from farbus.linux.filesystems import KernelFileSystems, described
from farbus.linux.lvm import KernelLvm, LocalDrive, local_drives
from farbus.model.quantity import format_bytes
from farbus.model.storage import StorageDrive, check_group_name

app = command_app()

GroupOption = Annotated[
    str,
    typer.Option(
        "--group", metavar="NAME", help="The volume group.  [default: volume_group of agent.toml]", show_default=False
    ),
]

DrivesArgument = Annotated[
    list[str], typer.Argument(metavar="DRIVE", help="Its id, as farbus devices shows it, or a path: /dev/nvme0n1.")
]

COLUMNS: tuple[Column[StorageDrive], ...] = (
    Column("DRIVE", lambda drive: drive.id),
    Column("DEVICE", lambda drive: drive.path or "missing"),
    Column("SIZE", lambda drive: format_bytes(drive.size_bytes)),
    Column("FREE", lambda drive: format_bytes(drive.free_bytes)),
)


@app.callback(
    no_args_is_help=True,
    epilog=examples(
        "farbus storage init /dev/nvme0n1 /dev/nvme1n1",
        "farbus storage list",
        "farbus storage remove /dev/nvme1n1",
    ),
)
def storage() -> None:
    """Give drives of this machine to Farbus, or take them back.

    A node stores volumes and room of jobs on them.  docs/install.md (storage for
    others) says how a node is set up, docs/storage-nodes.md what it does then.
    """


@app.command(
    epilog=examples(
        "farbus storage init NVME-S64DNE0R-Samsung_PM9A3",
        "farbus storage init /dev/nvme0n1 /dev/nvme1n1",
    )
)
def init(drives: DrivesArgument, group: GroupOption = "") -> None:
    """Give drives to Farbus: make them a volume group, or add them to it.

    A drive that holds anything (a file system, a partition table, another group, data at its beginning that nothing
    recognises), or that somebody has, is refused, and nothing is changed.

    As root; then set storage = true in agent.toml, run farbus install agent, and restart the agent.
    """
    asyncio.run(_init(drives, _group(group)))


async def _init(drives: list[str], group: str) -> None:
    lvm, blocks, filesystems = KernelLvm(group=group), KernelBlockDevices(), KernelFileSystems()
    there = {drive.id for drive in await lvm.drives()}
    chosen = [_drive(name) for name in drives]
    # All of them are looked at before the first one is touched.
    for drive in chosen:
        if drive.id not in there:
            await blocks.prove_free(drive.path)
            holds = await filesystems.signature(drive.path)
            # Of its own labels lvm2 knows best: one that was cut off is gone on with.
            if holds is not None and holds.kind != "LVM2_member":
                raise Conflict(
                    f"drive {drive.id}: it holds {described(holds)}",
                    hint=f"nothing was changed; choose another, or have it wiped: blkdiscard --zeroout {drive.path}",
                )
    for drive in chosen:
        await lvm.add_drive(drive.id)
        typer.echo(f"{drive.id} ({drive.path}) is in volume group {group}")
    if not node_settings().storage:
        typer.echo(
            f"next: storage = true in {AGENT_SETTINGS}, then farbus install agent and systemctl restart farbus-agent"
        )


@app.command(epilog=examples("farbus storage remove NVME-S64DNE0R-Samsung_PM9A3"))
def remove(drives: DrivesArgument, group: GroupOption = "") -> None:
    """Take drives back that no volume has a part of.  As root."""

    group = _group(group)

    async def take() -> None:
        lvm = KernelLvm(group=group)
        for name in drives:
            drive = _drive(name)
            await lvm.remove_drive(drive.id)
            typer.echo(f"{drive.id} ({drive.path}) is in volume group {group} no more")

    asyncio.run(take())


@app.command("list", epilog=examples("farbus storage list", "farbus storage list -o json"))
def list_drives(
    group: GroupOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List the drives that are given to Farbus.  As root."""
    group = _group(group)
    found: tuple[StorageDrive, ...] = asyncio.run(KernelLvm(group=group).drives())
    print_listing(found, COLUMNS, output, nothing=f"volume group {group}: no drives are given to Farbus here")


def _group(name: str) -> str:
    # Before anything is touched: lvm2 would label a drive before it looks at the name of its group.
    return check_group_name(name, field="--group") if name else node_settings().volume_group


def _drive(name: str) -> LocalDrive:
    found = local_drives()
    for drive in found.values():
        # Also by a link of udev's, such as those in /dev/disk/by-id.
        if name == drive.id or os.path.realpath(name) == drive.path:
            return drive
    raise NotFound(
        f"drive {name}: this machine has no NVMe drive of that name",
        hint=f"it has {', '.join(sorted(found)) or 'none'}",
    )
