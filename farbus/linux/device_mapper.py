"""The door to device-mapper: block devices striped over others, by dmsetup(8).

Only ``striped`` (Documentation/admin-guide/device-mapper/striped.rst), and only
devices whose UUID is one of ours; others are not even told of.  dmsetup waits
for udev and may hang with it, and so has a process of its own, which can be
left behind.  Tables come on standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple, Protocol

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn
from farbus.linux.sysfs import SECTOR_BYTES
from farbus.model.nvmeof import STRIPE_PREFIX, Stripe
from farbus.model.value import Value

UUID_PREFIX = STRIPE_PREFIX.upper()


class MappedStripe(Value, frozen=True, kw_only=True):
    """A striped device as the kernel has it.  ``members`` are ``MAJOR:MINOR``; ``device`` is its kernel name.

    One that was cut off while it was made has no table, and so no members.
    """

    name: str
    uuid: str
    device: str
    members: tuple[str, ...] = ()
    member_bytes: int = 0
    chunk_bytes: int = 0
    offsets: tuple[int, ...] = ()
    """Where on each member it begins, in bytes."""


class DeviceMapper(Protocol):
    """Striped devices of this machine that are ours."""

    async def create(self, stripe: Stripe) -> None:
        """Make one; return when its path is there.

        Raises :class:`Conflict` where its name or a member is taken, :class:`NotFound` for a member that is not there.
        """
        ...

    async def remove(self, name: str) -> None:
        """Take one apart; nothing happens where it is gone.  Raises :class:`Conflict` while it is in use."""
        ...

    async def find(self, uuid: str) -> MappedStripe | None:
        """Return one by its UUID, as its table has it; None where there is none."""
        ...

    def list(self) -> tuple[str, ...]:
        """Return the UUIDs of all that are ours."""
        ...


def table_of(stripe: Stripe) -> str:
    """Return the table of a striped device: ``0 SECTORS striped N CHUNK (MEMBER OFFSET)...``, in sectors."""
    if stripe.member_bytes % stripe.chunk_bytes or stripe.chunk_bytes % SECTOR_BYTES or not stripe.members:
        raise InvalidInput(f"stripe {stripe.id}: {stripe.member_bytes} bytes are no whole number of its chunks")
    members = " ".join(f"{member} 0" for member in stripe.members)
    sectors, chunk = stripe.size_bytes // SECTOR_BYTES, stripe.chunk_bytes // SECTOR_BYTES
    return f"0 {sectors} striped {len(stripe.members)} {chunk} {members}\n"


def parse_table(text: str, *, name: str, uuid: str, device: str) -> MappedStripe:
    """Read a table; raise :class:`Conflict` for one that is not of one striped segment."""
    lines = text.strip().splitlines()
    words = lines[0].split() if lines else []
    try:
        if len(lines) != 1 or words[0] != "0" or words[2] != "striped" or len(words) != 5 + 2 * int(words[3]):
            raise ValueError
        count, pairs = int(words[3]), words[5:]
        return MappedStripe(
            name=name,
            uuid=uuid,
            device=device,
            members=tuple(pairs[::2]),
            member_bytes=int(words[1]) * SECTOR_BYTES // count,
            chunk_bytes=int(words[4]) * SECTOR_BYTES,
            offsets=tuple(int(offset) * SECTOR_BYTES for offset in pairs[1::2]),
        )
    except (IndexError, ValueError, ZeroDivisionError):
        raise Conflict(f"device-mapper {name}: its table is not ours: {text.strip()[:120]!r}") from None


class _Said(NamedTuple):
    code: int
    out: str
    err: str


class KernelDeviceMapper:
    """Runs dmsetup, and reads names and UUIDs below ``sys``."""

    def __init__(self, *, sys: str | Path = "/sys", program: str = "dmsetup") -> None:
        self._sys = Path(sys)
        self._program = program

    def _ours(self) -> dict[str, tuple[str, str]]:
        """Return (name, kernel name) by UUID."""
        found = {}
        for entry in sorted((self._sys / "class/block").glob("dm-*")):
            uuid = _text(entry / "dm/uuid")
            if uuid.startswith(UUID_PREFIX):
                found[uuid] = (_text(entry / "dm/name"), entry.name)
        return found

    def list(self) -> tuple[str, ...]:
        """Read class/block."""
        return tuple(self._ours())

    async def find(self, uuid: str) -> MappedStripe | None:
        """Look for the UUID in sysfs, and read the table."""
        if (found := self._ours().get(uuid)) is None:
            return None
        name, device = found
        said = await self._run(("table", name))
        if said.code:
            if uuid not in self._ours():
                return None
            raise _error(f"device-mapper {name}: read its table", said.err)
        if not said.out.strip():
            # dmsetup makes the device, gives it its table, and resumes it: killed in between, it has left the first.
            return MappedStripe(name=name, uuid=uuid, device=device)
        return parse_table(said.out, name=name, uuid=uuid, device=device)

    async def create(self, stripe: Stripe) -> None:
        """Run ``dmsetup create``."""
        said = await self._run(("create", stripe.name, f"--uuid={stripe.uuid}"), table_of(stripe))
        if said.code:
            raise _error(f"stripe {stripe.name}", said.err)

    async def remove(self, name: str) -> None:
        """Run ``dmsetup remove``, which tries again for some seconds: udev looks at what was closed just now."""
        said = await self._run(("remove", "--retry", name))
        if said.code and "No such device" not in said.err:
            raise _error(f"remove stripe {name}", said.err)

    async def _run(self, arguments: tuple[str, ...], text: str = "") -> _Said:
        try:
            child = await spawn(
                self._program, *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"dmsetup: {error.strerror}", hint="install dmsetup") from error
        try:
            out, err = await child.communicate(text.encode())
        except BaseException:
            kill_process(child)
            raise
        return _Said(child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


_ERRORS: tuple[tuple[str, type[FarbusError], str], ...] = (
    ("Device or resource busy", Conflict, "lsblk shows what stands on it"),
    ("already exists", Conflict, "dmsetup info shows whose it is"),
    ("No such file or directory", NotFound, "is each member connected?"),
    ("Permission denied", NotPermitted, "only root may"),
    ("must be root", NotPermitted, "only root may"),
)


def _error(what: str, said: str) -> FarbusError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = lines[0][:200] if lines else "dmsetup says nothing"
    for words, kind, hint in _ERRORS:
        if words in said:
            return kind(f"{what}: {told}", hint=hint)
    return Unavailable(f"{what}: {told}", hint="see dmesg")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class FakeDeviceMapper(KernelDeviceMapper):
    """Device-mapper on the machine in ``directory``, in files; names in ``busy`` can't be removed.

    ``cut_off`` lets dmsetup be killed between making a device and giving it its table.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(sys=directory / "sys")
        self._dev = directory / "dev"
        self._file = directory / "tables.json"
        self.busy: set[str] = set()
        self.cut_off = False

    def _tables(self) -> dict[str, str]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def _save(self, tables: dict[str, str]) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(tables))
        new.replace(self._file)

    async def _run(self, arguments: tuple[str, ...], text: str = "") -> _Said:
        await asyncio.sleep(0)
        command, tables = arguments[0], self._tables()
        if command == "create":
            return self._create(arguments[1], arguments[2].removeprefix("--uuid="), text.strip())
        name = arguments[-1]
        place = self._place(name)
        if place is None or name not in tables:
            return _Said(1, "", f"Device does not exist.\nCommand failed: No such device or address ({name})\n")
        if command == "table":
            return _Said(0, f"{tables[name]}\n", "")
        assert command == "remove"
        if name in self.busy:
            return _Said(1, "", f"device-mapper: remove ioctl on {name}  failed: Device or resource busy\n")
        for member in self._members(tables[name]):
            (member / "holders" / place.name).unlink(missing_ok=True)
        (self._sys / "dev/block" / _text(place / "dev")).unlink()
        for file in (place / "dm/name", place / "dm/uuid", place / "size", place / "dev"):
            file.unlink()
        (place / "dm").rmdir()
        place.rmdir()
        (self._dev / "mapper" / name).unlink(missing_ok=True)
        self._save({other: table for other, table in tables.items() if other != name})
        return _Said(0, "", "")

    def _create(self, name: str, uuid: str, table: str) -> _Said:
        if self._place(name) is not None:
            return _Said(1, "", f"device-mapper: create ioctl on {name} failed: Device or resource busy\n")
        words = table.split()
        for position in range(5, len(words), 2):
            node = self._dev / words[position].removeprefix("/dev/")
            if not node.exists():
                return _Said(1, "", "device-mapper: reload ioctl failed: No such file or directory\n")
            # The kernel tells numbers, whatever it was told.
            words[position] = node.read_text()
        words = [] if self.cut_off else words
        blocks = self._sys / "class/block"
        number = next(number for number in range(1000) if not (blocks / f"dm-{number}").exists())
        place = blocks / f"dm-{number}"
        for file, text in (
            ("dm/name", name), ("dm/uuid", uuid), ("size", words[1] if words else "0"), ("dev", f"253:{number}"),
        ):  # fmt: skip
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(f"{text}\n")
        numbered = self._sys / "dev/block" / f"253:{number}"
        numbered.symlink_to(os.path.relpath(place, numbered.parent))
        self._save({**self._tables(), name: " ".join(words)})
        if self.cut_off:
            return _Said(-signal.SIGKILL, "", "")
        for member in self._members(" ".join(words)):
            (member / "holders").mkdir(exist_ok=True)
            (member / "holders" / place.name).touch()
        (self._dev / "mapper").mkdir(exist_ok=True)
        (self._dev / "mapper" / name).write_text(f"253:{number}")
        return _Said(0, "", "")

    def _place(self, name: str) -> Path | None:
        for entry in (self._sys / "class/block").glob("dm-*"):
            if _text(entry / "dm/name") == name:
                return entry
        return None

    def _members(self, table: str) -> list[Path]:
        return [self._sys / "dev/block" / number for number in table.split()[5::2]]
