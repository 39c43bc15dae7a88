"""The fake of the door to lvm2: drives in a sysfs tree, and an lvm2 that keeps its own rules.

What is asked and read is the real door's; what is answered is what lvm2
2.03.16 answered (tests/linux/lvm_contract.py runs on both).  All lies in files
in ``directory``, so that a process that is killed finds the machine as it was:
``sys`` and ``dev`` as the other fakes have them, ``lvm.json`` for what lvm2
keeps on drives, and what is in each logical volume in ``blocks/lvm``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farbus.errors import Conflict, NotFound
from farbus.linux.block import KernelBlockDevices
from farbus.linux.lvm import GROUP, KernelLvm, Said, zero_blocks
from farbus.model.storage import EXTENT_BYTES

_MODEL = "Fake drive"

_LABEL_BYTES = 1 << 20
"""What lvm2 keeps for itself at the beginning of a drive."""


class FakeLvm(KernelLvm):
    """A machine with drives and one volume group.

    Tests set what goes wrong: ``holding`` has the names of logical volumes
    whose devices are open, and ``opened`` says it of a path; ``hang`` lets changes begin and never end.
    ``passing`` is called before and after each change, to be killed at.
    """

    def __init__(self, directory: Path, *, group: str = GROUP, given: Sequence[str] | None = None) -> None:
        super().__init__(group=group, given=given, sys=directory / "sys")
        self.directory = directory
        self.holding: set[str] = set()
        self.opened: Callable[[str], bool] = lambda _: False
        self.hang = False
        self.passing: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, ...]] = []
        for name in ("sys/class/nvme", "sys/class/block", "sys/dev/block", "dev", "blocks/lvm"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        if (directory / "lvm.json").exists():
            # An earlier process may have been killed in between.
            self._show(self._state())

    # The machine.

    def plug(self, serial: str, size_bytes: int, *, holds: str = "") -> str:
        """Put a drive in, one that was there before too; return its id.  ``holds`` is a signature that it has."""
        sys, state = self.directory / "sys", self._state()
        taken = {entry.name for entry in (sys / "class/nvme").iterdir()}
        name = next(name for number in range(1000) if (name := f"nvme{number}") not in taken)
        # Numbers that no namespace of other nodes has in the fake of the initiator's door.
        number = f"259:{10_000 + int(name.removeprefix('nvme'))}"
        place = sys / "devices/pci0000:00" / name
        for file, text in (
            ("serial", f"{serial:<20}"), ("model", f"{_MODEL:<40}"), ("transport", "pcie"), ("address", "0000:01:00.0"),
            ("subsysnqn", f"nqn.2014.08.org.example:{serial}"), (f"{name}n1/size", str(size_bytes // 512)),
            (f"{name}n1/dev", number), (f"{name}n1/queue/optimal_io_size", "0"),
        ):  # fmt: skip
            _put(place / file, f"{text}\n")
        for link in (f"class/block/{name}n1", f"dev/block/{number}"):
            _link(sys / link, place / f"{name}n1")
        _put(self.directory / "dev" / f"{name}n1", number)
        _link(sys / "class/nvme" / name, place)
        drive = f"NVME-{serial}-{'_'.join(_MODEL.split())}"
        label = state["labels"].setdefault(drive, {"group": "", "tags": [], "pv": False, "holds": ""})
        label |= {"size": size_bytes, "holds": holds or label["holds"]}
        self._save(state)
        return drive

    def pull(self, drive: str) -> None:
        """Take a drive out; what is on it stays on it."""
        local = self._local()[drive]
        sys = self.directory / "sys"
        number = (sys / "class/block" / Path(local.path).name / "dev").read_text().strip()
        for path in (
            sys / "class/nvme" / local.controller, sys / "class/block" / Path(local.path).name,
            sys / "dev/block" / number, self.directory / "dev" / Path(local.path).name,
        ):  # fmt: skip
            path.unlink(missing_ok=True)

    def by_hand(self, name: str, size_bytes: int, *, tags: Sequence[str] = ()) -> None:
        """Make a logical volume as somebody does who has never heard of Farbus."""
        state = self._state()
        drive = next(one for one, label in state["labels"].items() if label["group"] == self.group)
        state["volumes"][name] = _new_volume(size_bytes, [drive], list(tags))
        self._save(state)
        self._show(state)

    def contents(self, name: str) -> Path:
        """Return the file that has what is in a logical volume."""
        return self.directory / "blocks/lvm" / name

    # lvm2.

    def _state(self) -> dict[str, Any]:
        file = self.directory / "lvm.json"
        state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"labels": {}, "volumes": {}}
        return state

    def _save(self, state: dict[str, Any]) -> None:
        new = self.directory / f"lvm.{os.getpid()}"
        new.write_text(json.dumps(state))
        new.replace(self.directory / "lvm.json")

    async def _run(self, arguments: tuple[str, ...]) -> Said:
        await asyncio.sleep(0)
        self.calls.append(arguments)
        command, options, names = _parsed(arguments)
        reads = command in ("lvs", "pvs")
        if self.hang and not reads:
            await asyncio.get_running_loop().create_future()
        state = self._state()
        if reads:
            return self._pvs(state) if command == "pvs" else self._lvs(state)
        self.passing()
        try:
            getattr(self, f"_{command}")(state, options, names)
        except _Refused as error:
            return Said(5, "", f"  {error}\n")
        self._save(state)
        self._show(state)
        self.passing()
        return Said(0, "", "")

    async def _zero(self, path: str, at: int, end: int, *, exclusive: bool) -> int:
        await asyncio.sleep(0)
        self.passing()
        done = zero_blocks(str(self.contents(Path(path).name)), at, end, False)
        self.passing()
        return done

    def _show(self, state: dict[str, Any]) -> None:
        """Let devices be there for what is active, and for nothing else."""
        sys, dev = self.directory / "sys", self.directory / "dev" / self.group
        for name, volume in state["volumes"].items():
            self._fill(self.contents(name), volume["size"])
            node = dev / name
            if not volume["active"]:
                self._hide(node)
                continue
            if node.exists():
                kernel_name = os.path.basename(os.readlink(sys / "dev/block" / node.read_text()))
                (sys / "class/block" / kernel_name / "size").write_text(f"{volume['size'] // 512}\n")
                continue
            number = next(one for one in range(1000) if not (sys / "class/block" / f"dm-{one}").exists())
            place = sys / "class/block" / f"dm-{number}"
            for file, text in (
                ("dm/name", f"{self.group}-{name.replace('-', '--')}"), ("dm/uuid", f"LVM-{name}"), ("ro", "0"),
                ("size", str(volume["size"] // 512)), ("stat", " ".join(["0"] * 17)), ("dev", f"253:{number}"),
            ):  # fmt: skip
                _put(place / file, f"{text}\n")
            (place / "holders").mkdir(exist_ok=True)
            _link(sys / "dev/block" / f"253:{number}", place)
            _put(node, f"253:{number}")
        for node in list(dev.iterdir()) if dev.is_dir() else []:
            if node.name not in state["volumes"]:
                self._hide(node)
        for contents in (self.directory / "blocks/lvm").iterdir():
            if contents.name not in state["volumes"]:
                contents.unlink()

    def _fill(self, contents: Path, size: int) -> None:
        """Let what is new be as drives are that somebody else has had."""
        before = contents.stat().st_size if contents.exists() else 0
        if before < size:
            with contents.open("ab") as file:
                file.write(b"\xa5" * 8192)
        os.truncate(contents, size)

    def _hide(self, node: Path) -> None:
        if not node.exists():
            return
        sys = self.directory / "sys"
        entry = sys / "dev/block" / node.read_text()
        place = entry.resolve()
        entry.unlink()
        for file in ("dm/name", "dm/uuid", "ro", "size", "stat", "dev"):
            (place / file).unlink()
        for directory in (place / "dm", place / "holders", place):
            directory.rmdir()
        node.unlink()

    def _pvs(self, state: dict[str, Any]) -> Said:
        local = self._local()
        rows = []
        for drive, label in state["labels"].items():
            if not label["pv"] or (drive not in local and not label["group"]):
                if drive in local:
                    rows.append(_row(local[drive].path, "", 0, 0, "", []))
                continue
            size = (label["size"] - _LABEL_BYTES) // EXTENT_BYTES * EXTENT_BYTES
            missing = "missing" if drive not in local else ""
            path = local[drive].path if drive in local else "[unknown]"
            rows.append(_row(path, label["group"], size, self._free(state, drive), missing, label["tags"]))
        return _report("pv", rows)

    def _lvs(self, state: dict[str, Any]) -> Said:
        local = self._local()
        rows = [
            {
                "vg_name": self.group,
                "lv_name": name,
                "lv_size": str(volume["size"]),
                "lv_path": f"/dev/{self.group}/{name}",
                "lv_active": "active" if volume["active"] else "",
                "lv_device_open": "open" if self._is_open(name) else "",
                "lv_health_status": "" if all(drive in local for drive in volume["drives"]) else "partial",
                "lv_tags": ",".join(sorted(volume["tags"])),
            }
            for name, volume in state["volumes"].items()
        ]
        return _report("lv", rows)

    def _is_open(self, name: str) -> bool:
        node = self.directory / "dev" / self.group / name
        holders = self.directory / "sys/dev/block" / node.read_text() / "holders" if node.exists() else None
        held = holders is not None and any(holders.iterdir())
        return held or name in self.holding or self.opened(f"/dev/{self.group}/{name}")

    def _free(self, state: dict[str, Any], drive: str) -> int:
        used = sum(
            volume["size"] // len(volume["drives"]) for volume in state["volumes"].values() if drive in volume["drives"]
        )
        label = state["labels"][drive]
        return int((label["size"] - _LABEL_BYTES) // EXTENT_BYTES * EXTENT_BYTES - used)

    def _label(self, state: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
        for drive, local in self._local().items():
            if local.path == path:
                return drive, state["labels"][drive]
        raise _Refused(f"No device found for {path}.")

    def _pvcreate(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        _, label = self._label(state, names[0])
        if label["group"]:
            raise _Refused(f'Can\'t initialize physical volume "{names[0]}" of volume group "{label["group"]}"')
        if label["holds"]:
            raise _Refused(
                f"WARNING: {label['holds']} signature detected on {names[0]} at offset 0. Wipe it? [y/n]: [n]\n"
                "  Aborted wiping of it.\n  1 existing signature left on the device."
            )
        label["pv"] = True

    def _vgcreate(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._label(state, names[1])[1]["group"] = names[0]

    def _vgextend(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._whole(state)
        self._label(state, names[1])[1]["group"] = names[0]

    def _vgreduce(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        if "removemissing" in options:
            local = self._local()
            missing = [one for one, label in state["labels"].items() if label["group"] and one not in local]
            if any(set(missing) & set(volume["drives"]) for volume in state["volumes"].values()):
                raise _Refused("There are still partial LVs in VG.")
            for drive in missing:
                state["labels"][drive] |= {"group": "", "tags": [], "pv": False}
            return
        self._label(state, names[1])[1]["group"] = ""

    def _vgremove(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        for label in state["labels"].values():
            label["group"] = "" if label["group"] == names[0] else label["group"]

    def _pvremove(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._label(state, names[0])[1].update(pv=False, tags=[])

    def _pvchange(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._label(state, names[0])[1]["tags"] += options["addtag"]

    def _whole(self, state: dict[str, Any]) -> None:
        local = self._local()
        if any(label["group"] and drive not in local for drive, label in state["labels"].items()):
            raise _Refused(f"Cannot change VG {self.group} while PVs are missing.")

    def _lvcreate(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._whole(state)
        name = options["name"][0]
        if name in state["volumes"]:
            raise _Refused(f'Logical Volume "{name}" already exists in volume group "{self.group}"')
        drives = [self._label(state, path)[0] for path in names[1:]]
        size = _bytes(options["size"][0])
        self._room(state, drives, size)
        state["volumes"][name] = _new_volume(size, drives, options["addtag"])

    def _room(self, state: dict[str, Any], drives: list[str], size: int) -> None:
        for drive in drives:
            free = self._free(state, drive)
            if size // len(drives) > free:
                raise _Refused(
                    f'Volume group "{self.group}" has insufficient free space ({free // EXTENT_BYTES} extents):'
                    f" {size // EXTENT_BYTES} required."
                )

    def _volume_of(self, state: dict[str, Any], names: list[str]) -> dict[str, Any]:
        name = names[0].partition("/")[2]
        if name not in state["volumes"]:
            raise _Refused(f'Failed to find logical volume "{names[0]}"')
        found: dict[str, Any] = state["volumes"][name]
        return found

    def _lvextend(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._whole(state)
        volume = self._volume_of(state, names)
        size = _bytes(options["size"][0])
        more = size - volume["size"]
        free = min(self._free(state, drive) for drive in volume["drives"]) * len(volume["drives"])
        if more > free:
            needed, available = more // EXTENT_BYTES, free // EXTENT_BYTES
            raise _Refused(f"Insufficient free space: {needed} extents needed, but only {available} available")
        volume["size"] = size

    def _lvreduce(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._volume_of(state, names)["size"] = _bytes(options["size"][0])

    def _lvchange(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        volume = self._volume_of(state, names)
        name = names[0].partition("/")[2]
        if options.get("activate") == ["n"] and self._is_open(name):
            raise _Refused(f"Logical volume {names[0]} in use.")
        if "activate" in options:
            if options["activate"] == ["y"] and not all(drive in self._local() for drive in volume["drives"]):
                raise _Refused(f"Refusing activation of partial LV {names[0]}.  Use '--activationmode partial'.")
            volume["active"] = options["activate"] == ["y"]
        tags = [one for one in volume["tags"] if one not in options.get("deltag", [])]
        volume["tags"] = sorted({*tags, *options.get("addtag", [])})

    def _lvremove(self, state: dict[str, Any], options: _Options, names: list[str]) -> None:
        self._volume_of(state, names)
        name = names[0].partition("/")[2]
        if self._is_open(name):
            raise _Refused(f"Logical volume {names[0]} in use.")
        del state["volumes"][name]


class _Refused(Exception):
    """What lvm2 says."""


_Options = dict[str, list[str]]

_FLAGS = frozenset({"quiet", "yes", "force", "nosuffix", "all", "removemissing"})
"""Options that take no value."""


def _parsed(arguments: tuple[str, ...]) -> tuple[str, _Options, list[str]]:
    options: _Options = {}
    names: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        if not word.startswith("--"):
            names.append(word)
        else:
            name = word.removeprefix("--")
            options.setdefault(name, []).append("" if name in _FLAGS else next(words))
    assert options["devices"][0], "lvm2 would look at everybody's drives"
    return arguments[0], options, names


def _new_volume(size: int, drives: list[str], tags: list[str]) -> dict[str, Any]:
    return {"size": size, "drives": drives, "tags": sorted(tags), "active": True}


def _bytes(text: str) -> int:
    return int(text.removesuffix("b"))


def _row(path: str, group: str, size: int, free: int, missing: str, tags: list[str]) -> dict[str, str]:
    return {
        "pv_name": path, "vg_name": group, "pv_size": str(size), "pv_free": str(free), "pv_missing": missing,
        "pv_tags": ",".join(tags),
    }  # fmt: skip


def _report(kind: str, rows: list[dict[str, str]]) -> Said:
    return Said(0, json.dumps({"report": [{kind: rows}]}), "")


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class TreeBlockDevices(KernelBlockDevices):
    """Block devices of a machine in ``directory``, whose nodes are files with their numbers in.  ``held`` are paths."""

    def __init__(self, directory: Path) -> None:
        super().__init__(sys=directory / "sys")
        self._dev = directory / "dev"
        self.held: set[str] = set()

    def _place(self, path: str) -> tuple[str, Path]:
        try:
            number = (self._dev / path.removeprefix("/dev/")).read_text().strip()
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}", hint="ls -l /dev/disk/by-id shows what there is") from error
        return number, (self._sys / "dev/block" / number).resolve()

    async def prove_free(self, path: str) -> None:
        """Raise where a test says so, or another device stands on it."""
        device = self.look(path)
        if path in self.held or device.holders:
            holders = ", ".join(device.holders) or "the kernel"
            raise Conflict(f"{path}: in use by {holders}", hint="lsblk shows what is mounted or stands on it")
