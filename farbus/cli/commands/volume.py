"""``farbus volume``: storage with a name, which outlives jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from farbus.cli.completion import complete_node, complete_volume
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import choose, print_json, print_listing, printable
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import ORPHAN_COLUMNS, VOLUME_COLUMNS, format_volume_place
from farbus.cli.volume_bench import BENCH_COLUMNS, VolumeBench
from farbus.cli.volume_watch import Begin, IsDone, VolumeWatch, is_attached, is_detached
from farbus.errors import FarbusError, InvalidInput
from farbus.model.quantity import format_bytes, parse_rate, parse_storage
from farbus.model.states import VolumeState
from farbus.model.volume import (
    MAX_STRIPE,
    AdoptRequest,
    AttachRequest,
    FileSystem,
    StorageUse,
    VolumeRequest,
    VolumeStatus,
    check_volume_name,
    check_volume_size,
    is_mount_path,
)

app = command_app()

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The volume.", autocompletion=complete_volume)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


@app.callback(
    no_args_is_help=True,
    epilog=examples(
        "farbus volume create data --size 1TB --stripe 3",
        "farbus volume attach data --node gamma --path /srv/data",
        "farbus volume list",
    ),
)
def group() -> None:
    """Make volumes on the NVMe drives of nodes, attach them to nodes, and remove them.

    A volume is its maker's: his jobs use it by [[storage]] in their files, at any
    node, one task at a time.  Operators see and use all, and attach them to nodes.
    docs/volumes.md says what happens on the nodes.
    """


@app.command(
    epilog=examples(
        "farbus volume create data --size 100G                         where the cluster finds best",
        "farbus volume create data --size 2TB --stripe 3               over three drives, used as one",
        "farbus volume create data --size 1TB --bandwidth 4GB/s        that much a second is kept for it",
        "farbus volume create data --size 1TB --node beta              on the drives of that node",
    )
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="At most 40 of a-z, 0-9 and -.")],
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="How much it is to hold: 100G, 2TB, 512GiB.")],
    stripe: Annotated[
        int,
        typer.Option(
            "--stripe", metavar="N", min=0, max=MAX_STRIPE, help="Drives that are used as one; 0: what suits best."
        ),
    ] = 0,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth", metavar="RATE", help="Set aside on its drives, like 4GB/s or 10Gbit/s.", show_default=False
        ),
    ] = "",
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NODE", help="Who is to store it.", autocompletion=complete_node, show_default=False
        ),
    ] = "",
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Make a volume.

    It takes room of its drives from the first moment on.  Where a node can't
    make its part, what others made is taken back.  Ctrl-C ends the watching alone.
    """
    request = VolumeRequest(
        name=check_volume_name(name),
        size_bytes=_size(size),
        stripe=stripe,
        bandwidth_bytes_per_s=parse_rate(bandwidth, what="--bandwidth") if bandwidth else 0,
        node=node,
    )
    _follow(
        name,
        lambda client: client.create_volume(request),
        lambda found: found is None or found.state not in (VolumeState.CREATING, VolumeState.DELETING),
        lambda status: f"volume {name}: {format_bytes(status.size_bytes)} on {format_volume_place(status)}",
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(
    name="list", epilog=examples("farbus volume list", "farbus volume list -o wide", "farbus volume list data -o json")
)
def list_volumes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these.", autocompletion=complete_volume, show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List volumes.

    Where they are stored, who uses them, and what is wrong with them.  Operators
    see everybody's, and parts that nodes have of volumes which the cluster does
    not know.
    """
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_volumes())
    statuses = choose(statuses, names, key=lambda status: status.name, noun="volume", command="volume list")
    print_listing(
        statuses, VOLUME_COLUMNS, output, nothing="no volume that you may see; farbus volume create makes one"
    )


@app.command(
    epilog=examples(
        "farbus volume attach data --node gamma                           mounted in a directory of the agent's",
        "farbus volume attach data --node gamma --path /srv/data          mounted there",
        "farbus volume attach data --node gamma --use raw                 a block device, without a file system",
        "farbus volume attach ram --node gamma --use swap                 more memory for the whole node",
        "farbus volume attach data --node gamma --file-system xfs         made on first use, never on what has one",
    )
)
def attach(
    name: NameArgument,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Where it is to be.", autocompletion=complete_node)
    ],
    use: Annotated[StorageUse, typer.Option("--use", help="What the node does with it.")] = StorageUse.MOUNT,
    path: Annotated[
        str,
        typer.Option(
            "--path", metavar="DIR", help="Where it is mounted; else a directory of the agent's.", show_default=False
        ),
    ] = "",
    file_system: Annotated[
        FileSystem | None,
        typer.Option("--file-system", help="Made where there is nothing at all on it.  [default: ext4]"),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing on it.")] = False,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Put a volume on a node until it is detached.  For operators.

    It waits while somebody else uses the volume, and comes back by itself when
    the node is booted again.  Ctrl-C ends the watching alone.
    """
    for option, given in (("--path", path), ("--file-system", file_system)):
        if given and not use.is_mounted:
            raise InvalidInput(f"{option}: only what is mounted has one", hint=f"leave it out beside --use {use}")
    if path and not is_mount_path(path):
        raise InvalidInput(f"--path: {path[:80]!r} is no absolute path below /", hint="write for example /srv/data")
    if read_only and use is StorageUse.SWAP:
        raise InvalidInput("--read-only: swap space is written", hint="leave it out beside --use swap")
    request = AttachRequest(
        volume=name,
        node=node,
        use=use,
        path=path,
        file_system=file_system or FileSystem.EXT4,
        read_only=read_only,
    )
    _follow(
        name,
        lambda client: client.attach_volume(request),
        is_attached,
        lambda status: f"volume {name} is attached to node {node}" + (f" as {status.path}" if status.path else ""),
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(epilog=examples("farbus volume detach data    its node gives it up, and then it is free"))
def detach(
    name: NameArgument,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Take a volume from the node that it was attached to.  For operators.

    What keeps the node from it, such as an open file, is told; the node tries
    again until it is done.  A volume that a job uses goes with the job.
    """
    _follow(
        name,
        lambda client: client.detach_volume(name),
        is_detached,
        lambda status: f"volume {name} is detached",
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(epilog=examples("farbus volume resize data --size 200G    also while it is mounted"))
def resize(
    name: NameArgument,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="What it is to hold then; more than now.")],
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Make a volume larger, on the drives that it has.  It never becomes smaller.

    It is done when a file system that is mounted somewhere has grown, too.  What does
    not grow while it is used (swap space, what is striped over several nodes)
    has its new size when it is attached again, which is said.
    """
    wanted = _size(size)
    _follow(
        name,
        lambda client: client.resize_volume(name, size_bytes=wanted),
        lambda found: found is None or bool(found.error) or found.size_bytes >= wanted,
        lambda status: "; ".join(filter(None, [f"volume {name}: {format_bytes(status.size_bytes)}", status.says])),
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(
    epilog=examples(
        "farbus volume delete data          asks first: what is on it is wiped",
        "farbus volume delete data --yes    asks nothing",
    )
)
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Wipe a volume and give its room back.  Refused while somebody uses it, or waits for it."""
    if not yes:
        _confirm(
            f"Delete volume {printable(name)} and all that is on it?", f"volume {name}: all that is on it would be lost"
        )
    _follow(
        name,
        lambda client: client.delete_volume(name),
        lambda found: found is None,
        lambda status: f"volume {name} is deleted",
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(
    epilog=examples(
        "farbus volume orphans                          what nodes have of volumes that the cluster does not know",
        "farbus volume orphans data --adopt --user ada  as a volume of ada's, with all that is on it",
        "farbus volume orphans data --remove            wipes and removes it; asks first",
    )
)
def orphans(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The volume that they are parts of.", show_default=False)
    ] = "",
    adopt: Annotated[bool, typer.Option("--adopt", help="Make them a volume again.")] = False,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose it is to be; else yours.", show_default=False)
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Wipe and remove them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List parts of volumes that nobody knows; adopt or remove them.

    For operators.  Nodes have them, and the cluster's ledger does not: after
    farbus forget of a node that came back, or of a ledger that was lost.  They take
    room, nobody can use them, and nothing touches them but this.
    """
    if adopt and remove:
        raise InvalidInput("--adopt and --remove exclude each other", hint="give one of them")
    if (adopt or remove) and not name:
        raise InvalidInput("which volume's?", hint="farbus volume orphans NAME --adopt or --remove")
    if user and not adopt:
        raise InvalidInput("--user has a meaning with --adopt alone", hint="leave it out")
    if not (adopt or remove):
        target = find_target(socket=socket, server=server, credentials=credentials)
        found = [status for status in ask(target, lambda client: client.list_volumes()) if not status.user]
        chosen = choose(
            found, [name] if name else None, key=lambda each: each.name, noun="orphan", command="volume orphans"
        )
        print_listing(chosen, ORPHAN_COLUMNS, output, nothing="the cluster knows all parts of volumes that nodes have")
        return
    if remove and not yes:
        _confirm(
            f"Remove what nodes have of volume {printable(name)}, and all that is on it?",
            f"volume {name}: all that is on it would be lost",
        )
    request = AdoptRequest(volume=name, user=user, remove=remove)
    _follow(
        name,
        lambda client: client.adopt_volume(request),
        lambda found: found is None or (adopt and bool(found.user)),
        lambda status: f"volume {name} is removed" if remove else f"volume {name} is {status.user}'s",
        quiet=quiet, output=output, socket=socket, server=server, credentials=credentials,
    )  # fmt: skip


@app.command(
    epilog=examples(
        "farbus volume bench data                 on the node that has it, or that is to have it meanwhile",
        "farbus volume bench data --seconds 60    longer: caches and drives that throttle show",
        "farbus volume bench data --write         writes too, to one that holds nothing",
    )
)
def bench(
    name: NameArgument,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, max=3600, help="How long each measurement takes.")
    ] = 10.0,
    write: Annotated[
        bool, typer.Option("--write", help="Measure writing as well, where it holds nothing; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
) -> None:
    """Measure a volume with fio, on the node that it is attached to.  As root, there.

    It is read, beside whoever uses it: what they take of it is missing in the
    figures.  One that is attached nowhere is attached to this node for as long as it
    takes.  A drive may answer faster where nothing was ever written.
    """
    if write and not yes:
        _confirm(f"Write to volume {printable(name)}?", f"volume {name} would be written to")
    target = find_target(socket=socket)
    measuring = VolumeBench(name, seconds=seconds, write=write, quiet=quiet)
    found = ask(target, measuring.run)
    if output is Output.JSON:
        head = {"bench": "volume", "volume": name, "node": measuring.node, "device": measuring.device}
        print_json({**head, "results": [one.row for one in found]})
        return
    print_listing(found, BENCH_COLUMNS, output, nothing="nothing was measured")


def _confirm(question: str, refusal: str) -> None:
    """Ask; raise :class:`InvalidInput` with the ``refusal`` where nobody is there to answer."""
    if not sys.stdin.isatty():
        raise InvalidInput(refusal, hint="say so with --yes")
    # Not by typer's own question, which has something for standard output, and takes Ctrl-C for a no.
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _size(text: str) -> int:
    return check_volume_size(parse_storage(text, what="--size"), field="--size")


def _follow(
    name: str,
    begin: Begin,
    is_done: IsDone,
    describe: Callable[[VolumeStatus], str],
    *,
    quiet: bool,
    output: Output,
    socket: str,
    server: str,
    credentials: str,
) -> None:
    """Ask for something, tell how far it is, and print what has become of it; raise why it failed."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    watch = VolumeWatch(name, begin, is_done, quiet=quiet)
    try:
        status = ask(target, watch.run)
    except KeyboardInterrupt:
        watch.leave()
        raise
    if output is Output.JSON:
        print_json(status)
    if status.error:
        raise FarbusError(f"volume {name}: {status.error}", hint=status.hint)
    if output is not Output.JSON:
        typer.echo(printable(describe(status)))
