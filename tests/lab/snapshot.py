"""Guests that have been saved once, from which others go on within seconds.

A boot takes half a minute of an emulated processor, an installation minutes; three guests of a snapshot run commands
after two seconds.  A snapshot lies with its image, in ``snapshots/KEY``, where KEY changes with all that is in it: the
machine, QEMU's version, and the layers that were put in.

How it is saved: the guest's memory is a file, which migration leaves where it is (QEMU's capability
``x-ignore-shared``), so that only the state of the devices is written; its disk is a layer over the one below.  A
restored guest maps the memory privately and has a layer of its own on the disk, so that all guests of a snapshot
share what they have not written to, on the disk and in memory.

A cluster is saved node by node, all of them paused before the first is saved: what is on its way between them then is
lost, as a network may lose it, and their connections go on.  Its nodes come back as who they are, with their names,
addresses and boot ids; all else of a snapshot becomes a guest of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cable import Cable
from tests.lab.guest import Guest, Machine, Snapshot, qemu_command
from tests.lab.place import Place

COMPLETE = "complete"
"""Written last: it says that all is there."""

MAKING = "making."
"""How the directory of a snapshot is called while it is made."""

IDENTITY = "identity"
"""File of a node that comes back as who it is."""

FORMAT = "2"
"""To be changed with what is saved, or with a device that :class:`tests.lab.guest.Guest` adds to its command line."""

SNAPSHOTS_KEPT = 12
"""Of an image: some 300 MB for each guest."""


@dataclass(frozen=True)
class Layer:
    """Something that is put into a guest before it is saved."""

    key: str
    """Changes with all that ``put_in`` does."""
    put_in: Callable[[Guest], None]


@dataclass(frozen=True)
class ClusterStart:
    """What makes nodes a cluster before they are saved."""

    key: str
    """Changes with all that ``run`` does."""
    run: Callable[[Sequence[Guest]], None]


def ensure_snapshot(
    image: Path, machine: Machine, layers: Sequence[Layer] = (), *, share: Mapping[str, Path] | None = None
) -> Snapshot:
    """Return the snapshot of a booted guest with these layers, made now where it is not there.

    ``share`` are the directories of the machine's shares, which a layer may mount and has to unmount.
    """
    parts = [*_told(image, machine, share), *(layer.key for layer in layers)]

    def make(place: Path) -> None:
        below = ensure_snapshot(image, machine, layers[:-1], share=share) if layers else None
        with _begun(place, image, below, machine, "lab", share=share) as guest:
            guest.wait_for_boot()
            if layers:
                layers[-1].put_in(guest)
            else:
                guest.run("systemctl", "is-system-running", "--wait", check=False)
                # systemd waits for no network device: a snapshot without it is one without a network for good.
                guest.until(
                    " && ".join(["udevadm settle", *(f"test -e /sys/class/net/{name}" for name in guest.cables)])
                )
            _save([guest])

    directory = _ensure(image, parts, make)
    if layers:
        # Used, too, and after what lies on it: it is the last to be forgotten.
        ensure_snapshot(image, machine, layers[:-1], share=share)
    return Snapshot(directory, machine)


def ensure_cluster(
    image: Path, machine: Machine, layers: Sequence[Layer], addresses: Mapping[str, str], start: ClusterStart
) -> dict[str, Snapshot]:
    """Return the snapshots of nodes that run together, made now where they are not there.

    Each begins as a guest with these layers, by its name in ``addresses`` and under that address.
    """
    parts = [*_told(image, machine, None), *(layer.key for layer in layers), repr(addresses)]

    def make(place: Path) -> None:
        below = ensure_snapshot(image, machine, layers)
        network = Cable()
        with contextlib.ExitStack() as stack:
            nodes = []
            for name, address in addresses.items():
                (place / name).mkdir()
                begun = _begun(place / name, image, below, machine, name, address=address, network=network)
                nodes.append(stack.enter_context(begun))
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: node.wait_for_boot(), nodes))
            start.run(nodes)
            _save(nodes)
            for node in nodes:
                (place / node.name / IDENTITY).write_text(str(node.identity))

    directory = _ensure(image, [*parts, start.key], make)
    ensure_snapshot(image, machine, layers)
    return {
        name: Snapshot(directory / name, machine, uuid.UUID((directory / name / IDENTITY).read_text()))
        for name in addresses
    }


def _told(image: Path, machine: Machine, share: Mapping[str, Path] | None) -> list[str]:
    """Return what QEMU is, and all that it is told of a machine."""
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    command = qemu_command(image, machine, uuid.UUID(int=0), "lab", Path("place"), share or {})
    return [version, " ".join(command), repr(machine)]


def _ensure(image: Path, parts: Sequence[str], make: Callable[[Path], None]) -> Path:
    """Return the directory of these parts, made now, by a call with a place for it, where it is not there."""
    key = hashlib.sha256()
    for part in (FORMAT, *parts):
        key.update(part.encode() + b"\0")
    directory = image / "snapshots" / key.hexdigest()[:16]
    directory.parent.mkdir(exist_ok=True)
    with _locked(directory.parent / f"{directory.name}.lock"):
        if (directory / COMPLETE).exists():
            os.utime(directory / COMPLETE)
            return directory
        _forget_old(directory.parent)
        place = Place(directory.parent, MAKING)
        try:
            make(place.path)
            (place.path / COMPLETE).touch()
            place.path.rename(directory)
        finally:
            place.remove()
    return directory


def _begun(
    place: Path,
    image: Path,
    below: Snapshot | None,
    machine: Machine,
    name: str,
    *,
    share: Mapping[str, Path] | None = None,
    address: str = "",
    network: Cable | None = None,
) -> Guest:
    """Begin a guest that is to be saved in ``place``."""
    if below is not None:
        subprocess.run(["cp", "--sparse=always", str(below.memory), str(place / "memory")], check=True)
    join = [Cable() for _ in range(machine.cables)]
    if network is not None:
        join[0] = network
    return Guest(
        image, machine, name=name, share=share, join=join, address=address, snapshot=below, saved_in=place
    )  # fmt: skip


def _save(guests: Sequence[Guest]) -> None:
    """Save guests as they are at one moment, and end them."""
    for guest in guests:
        # What is only in memory would be in each guest's layer; what is free need not be kept.
        guest.shell("sync")
    for guest in guests:
        guest.pause()
    for guest in guests:
        guest.save()


def _forget_old(cache: Path) -> None:
    """Remove snapshots but the last ones used; guests that run keep what they have open."""
    done = [entry for entry in cache.iterdir() if (entry / COMPLETE).exists()]
    done.sort(key=lambda entry: (entry / COMPLETE).stat().st_mtime)
    for entry in done[:-SNAPSHOTS_KEPT]:
        shutil.rmtree(entry)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make a snapshot."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
