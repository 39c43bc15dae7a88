"""Guests that have been saved once, from which others go on within seconds.

A boot takes half a minute of an emulated processor, an installation minutes; three guests of a snapshot run commands
after two seconds.  A snapshot lies with its image, in ``snapshots/KEY``, where KEY changes with all that is in it: the
machine, QEMU's version, and the layers that were put in.

How it is saved: the guest's memory is a file, which migration leaves where it is (QEMU's capability
``x-ignore-shared``), so that only the state of the devices is written; its disk is a layer over the one below.  A
restored guest maps the memory privately and has a layer of its own on the disk, so that all guests of a snapshot
share what they have not written to, on the disk and in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cable import Cable
from tests.lab.guest import Guest, Machine, Snapshot, qemu_command

COMPLETE = "complete"
"""Written last: it says that all is there."""

MAKING = "making."

FORMAT = "2"
"""To be changed with what is saved, or with a device that :class:`tests.lab.guest.Guest` adds to its command line."""

SNAPSHOTS_KEPT = 12
"""Of an image: some 300 MB each."""


@dataclass(frozen=True)
class Layer:
    """Something that is put into a guest before it is saved."""

    key: str
    """Changes with all that ``put_in`` does."""
    put_in: Callable[[Guest], None]


def ensure_snapshot(
    image: Path, machine: Machine, layers: Sequence[Layer] = (), *, share: Mapping[str, Path] | None = None
) -> Snapshot:
    """Return the snapshot of a booted guest with these layers, made now where it is not there.

    ``share`` are the directories of the machine's shares, which a layer may mount and has to unmount.
    """
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256()
    command = " ".join(qemu_command(image, machine, uuid.UUID(int=0), "lab", Path("place"), share or {}))
    for part in (FORMAT, version, command, repr(machine), *(layer.key for layer in layers)):
        key.update(part.encode() + b"\0")
    directory = image / "snapshots" / key.hexdigest()[:16]
    snapshot = Snapshot(directory, machine)
    directory.parent.mkdir(exist_ok=True)
    with _locked(directory.parent / f"{directory.name}.lock"):
        if (directory / COMPLETE).exists():
            os.utime(directory / COMPLETE)
            return snapshot
        below = ensure_snapshot(image, machine, layers[:-1], share=share) if layers else None
        _forget_old(directory.parent)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=MAKING) as place:
            _make(Path(place), image, below, machine, layers, share)
            os.rename(place, directory)
            # Its own clean-up finds an empty directory.
            os.mkdir(place)
    return snapshot


def _make(
    place: Path,
    image: Path,
    below: Snapshot | None,
    machine: Machine,
    layers: Sequence[Layer],
    share: Mapping[str, Path] | None,
) -> None:
    if below is not None:
        subprocess.run(["cp", "--sparse=always", str(below.memory), str(place / "memory")], check=True)
    with Guest(
        image,
        machine,
        name="lab",
        share=share,
        join=[Cable() for _ in range(machine.cables)],
        snapshot=below,
        saved_in=place,
    ) as guest:
        guest.wait_for_boot()
        if layers:
            layers[-1].put_in(guest)
        else:
            guest.run("systemctl", "is-system-running", "--wait", check=False)
            # systemd waits for no network device: a snapshot without it is one without a network for good.
            guest.until(" && ".join(["udevadm settle", *(f"test -e /sys/class/net/{name}" for name in guest.cables)]))
        # What is only in memory would be in each guest's layer; what is free need not be kept.
        guest.shell("sync")
        guest.save()
    (place / COMPLETE).touch()


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
