"""Guests: virtual machines with real systemd on Debian's own kernel, in QEMU's software emulation.

A test boots one, runs commands in it and reaches its hardware over QMP::

    with Guest.boot(image, name="alpha", share={"wheels": directory}) as guest:
        guest.run("systemctl", "is-system-running", "--wait")
        guest.plug_drive("nv0", port="port1", file=drive, serial="42")
        guest.unplug("nv0")
        guest.pause()

* A guest's disk is the image of :mod:`tests.lab.image`; what it writes lasts through its reboots and through its
  power being off, and ends with it.
* With a :class:`Snapshot` (:mod:`tests.lab.snapshot`) it does not boot: it goes on where another has been saved, within
  seconds, under its own name, machine id, boot id, addresses, time and random numbers.
* ``share`` names directories of this machine that it finds, read-only, in ``/media/NAME``.
* ``join`` joins guests by Ethernet: all those that are given the same :class:`Cable`.  Nothing leads outside.
* Everything waits for a limited time only, and tells the end of the guest's console when it gave up.
* QEMU dies with the thread that booted it, also where that is killed (PR_SET_PDEATHSIG); its disk has no name, and the
  directory with its console is removed by the next guest (:mod:`tests.lab.place`).

Hardware acceleration is not used: a /dev/kvm that opens may still hang a guest.  ``FARBUS_LAB_ACCELERATOR=kvm`` asks
for it.  ``FARBUS_LAB_PATIENCE=3`` makes all limits three times as long.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import queue
import shlex
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from tests.lab.cable import Cable
from tests.lab.image import KERNELS
from tests.lab.place import Place

PATIENCE = float(os.environ.get("FARBUS_LAB_PATIENCE", "1"))
"""By this all limits of the lab are multiplied, for machines that are slow or crowded.  What is asserted stays."""


def patient(seconds: float) -> float:
    """Return a limit as it holds on this machine."""
    return seconds * PATIENCE


BOOT_LIMIT_S = patient(180.0)
"""From power on to the first command, on a machine that has much else to do: ten times what an idle one takes."""

UNIT_START_LIMIT_S = 900
"""systemd's, for units that name no other."""

COMMAND_LIMIT_S = patient(120.0)
"""For a command whose test names no other."""

ANSWER_MARGIN_S = patient(60.0)
"""Given to the guest beyond a command's limit to kill it and say so."""

PANIC_LOOK_S = 2.0
"""How often the console of a guest that boots is looked at: one whose kernel has panicked says nothing more."""

QMP_LIMIT_S = patient(30.0)
EVENT_LIMIT_S = patient(60.0)
QUIT_LIMIT_S = patient(10.0)

SHARE_MESSAGE_BYTES = 512_000
"""Most that one request to a shared directory carries; the kernel's default of 128 KiB is slower."""

PREFIX = "farbus-lab."
"""How directories of guests are called, below ``TMPDIR``."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"

CONSOLE_TAIL_BYTES = 4000
FIRST_CABLE_SLOT = 0x10
"""Where network devices begin on the guest's bus; QEMU gives the lower slots to others."""

PORTS = ("64M", "64M", "64M", "")
"""Windows for prefetchable memory of the PCIe ports that devices can be plugged into, ``port1`` and on.

The firmware gives a port without a size the usual 2 MiB of one that can be plugged into: too small for a GPU.
"""

NARROW_PORT = "narrow"
"""Port whose window is really too small for 64 MiB, of a machine with the devices :data:`NARROW`."""

NARROW = (
    *("-device", f"x3130-upstream,bus=port{len(PORTS)},id=upstream"),
    *("-device", f"xio3130-downstream,bus=upstream,id={NARROW_PORT},chassis=9,slot=9"),
)
"""A switch in the last port: the kernel makes the window of a port bigger, and not that of the bridge above it."""

DRIVERS_LEFT_OUT = ("kvm", "kvm_amd", "iTCO_wdt", "lpc_ich", "pcspkr", "powernow_k8")
"""Of devices that the emulation has and no test needs: loading them takes seconds."""

UNTIL = """
while began=${{EPOCHREALTIME/./}}; ! output=$({script}); do
    took=$(( ${{EPOCHREALTIME/./}} - began ))
    rest=$(( took > 200000 ? took : 200000 ))
    sleep $(( rest / 1000000 )).$(printf %06d $(( rest % 1000000 )))
done
printf %s "$output"
"""
"""Runs a script until it succeeds, and prints what it printed then; times in microseconds."""

COPY_LIMIT_BYTES = 12 * 2**20
"""Most that is copied from a guest at a time, as an archive: the control server keeps 16 MiB of what it has read."""


@dataclass(frozen=True)
class Result:
    """How a command in a guest ended; ``code`` is negative for a signal."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    output: bytes = field(default=b"", repr=False)
    """``stdout`` as it came."""

    def __str__(self) -> str:
        return f"{shlex.join(self.argv)} ends with {self.code}:\n{self.stdout}{self.stderr}"


class GuestError(AssertionError):
    """A guest did not do what a test needs; the message tells why, with the end of its console."""


class BootTimeout(GuestError):
    """A guest has not booted within its limit; it may have had too little of the processor to."""

    def __init__(self, message: str, processor_s: float) -> None:
        super().__init__(message)
        self.processor_s = processor_s


@dataclass(frozen=True)
class Machine:
    """The hardware of a guest, and the kernel it boots.  What is saved of one fits only another that is equal."""

    kernel: str = KERNELS[0]
    """Series of Linux."""
    memory_mib: int = 1536
    processors: int = 2
    ports: tuple[str, ...] = PORTS
    cables: int = 0
    adapter: str = "virtio-net-pci"
    """QEMU's device at the end of each cable."""
    shares: tuple[str, ...] = ()
    """Names under which directories of this machine can be mounted."""
    devices: tuple[str, ...] = ()
    """Further arguments of QEMU."""


@dataclass(frozen=True)
class Snapshot:
    """A guest that has been saved: its disk, its memory, and the state of its devices."""

    directory: Path
    machine: Machine
    identity: uuid.UUID | None = None
    """Who was saved and comes back; without it, each restored guest becomes one of its own."""

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"

    @property
    def memory(self) -> Path:
        return self.directory / "memory"

    @property
    def state(self) -> Path:
        return self.directory / "state"


class Running:
    """A command that runs in a guest."""

    def __init__(self, guest: Guest, argv: tuple[str, ...], answer: Future[dict[str, Any]], limit_s: float) -> None:
        self._guest = guest
        self._argv = argv
        self._answer = answer
        self._limit_s = limit_s

    @property
    def ended(self) -> bool:
        """Say whether it has ended."""
        return self._answer.done()

    def wait(self, *, check: bool = True, margin_s: float = ANSWER_MARGIN_S) -> Result:
        """Return its result; raise :class:`GuestError` where it failed and ``check``, or where it ran too long."""
        try:
            answer = self._answer.result(self._limit_s + margin_s)
        except (FutureTimeoutError, ConnectionError) as error:
            reason = str(error) or "no answer"
            raise self._guest.trouble(f"{shlex.join(self._argv)}: {reason}") from None
        output = base64.b64decode(answer["stdout"])
        stdout, stderr = output.decode(errors="replace"), base64.b64decode(answer["stderr"]).decode(errors="replace")
        if answer["code"] is None:
            raise GuestError(f"{shlex.join(self._argv)} ran for more than {self._limit_s:g} s:\n{stdout}{stderr}")
        result = Result(self._argv, answer["code"], stdout, stderr, output)
        if check and result.code:
            raise GuestError(str(result))
        return result


class Guest:
    """One virtual machine; use it as a context manager, or call :meth:`stop`."""

    living: ClassVar[list[Guest]] = []
    """All that have not been stopped: whose consoles are kept when a test fails."""

    before_it_ends_in_error: ClassVar[Callable[[Guest], None]] = staticmethod(lambda guest: None)
    """Called before a guest is stopped because of an exception, while its console is there and it may still answer."""

    def __init__(
        self,
        image: Path,
        machine: Machine,
        *,
        name: str = "guest",
        share: Mapping[str, Path] | None = None,
        join: Sequence[Cable] = (),
        address: str = "",
        snapshot: Snapshot | None = None,
        saved_in: Path | None = None,
    ) -> None:
        """Begin to boot a guest, or to restore it from ``snapshot``; :meth:`wait_for_boot` comes before all else.

        ``address`` is the one of its first cable, for a guest of a snapshot whose network needs it.  ``saved_in`` is
        where its disk and memory lie by name, for it to become a snapshot.
        """
        assert len(join) == machine.cables, "as many cables as the machine has sockets"
        assert tuple(share or {}) == machine.shares, "the directories that the machine shares"
        self.name = name
        self.machine = machine
        self.image = image
        self.address = address
        self.boot_id = ""
        self.boot_s = 0.0
        """How long its last boot took, from power on or the order to reboot to the first command, in seconds."""
        # Network devices in the given slots: systemd names an interface after its slot (systemd.net-naming-scheme(7)).
        self.cables = tuple(f"enp0s{FIRST_CABLE_SLOT + number}" for number in range(len(join)))
        """Names of the network interfaces in the guest, in the order of ``join``."""
        self.identity = (snapshot.identity if snapshot else None) or uuid.uuid4()
        """Its machine id; network addresses come from it."""
        self._share = dict(share or {})
        self._join = tuple(join)
        self._snapshot = snapshot
        self._saved_in = saved_in
        self._place = Place(Path(tempfile.gettempdir()), PREFIX)
        #: Where it has its console and its log on this machine.
        self.place = self._place.path
        self.monitor = self.place / "monitor"
        """Socket of a second QMP monitor, for one client at a time: a fabric that plugs and unplugs."""
        self._requests = itertools.count(1)
        self._drives: dict[str, str] = {}
        self._disk = self._new_disk()
        self._disk_to_read = self._read_only(self._disk)
        self._power_on(restore=snapshot is not None)
        Guest.living.append(self)

    @classmethod
    def boot(
        cls,
        image: Path,
        *,
        name: str = "guest",
        memory_mib: int = 1536,
        processors: int = 2,
        share: Mapping[str, Path] | None = None,
        join: Sequence[Cable] = (),
        devices: Sequence[str] = (),
        kernel: str = KERNELS[0],
        limit_s: float = BOOT_LIMIT_S,
    ) -> Guest:
        """Boot a guest from ``image`` (:func:`tests.lab.image.ensure_image`) and return once it runs commands.

        ``devices`` are further arguments of QEMU.  Raises :class:`GuestError` where it does not come up.
        """
        guest = cls.power_on(
            image,
            name=name,
            memory_mib=memory_mib,
            processors=processors,
            share=share,
            join=join,
            devices=devices,
            kernel=kernel,
        )
        guest.wait_for_boot(limit_s)
        return guest

    @classmethod
    def power_on(
        cls,
        image: Path,
        *,
        name: str = "guest",
        memory_mib: int = 1536,
        processors: int = 2,
        share: Mapping[str, Path] | None = None,
        join: Sequence[Cable] = (),
        devices: Sequence[str] = (),
        kernel: str = KERNELS[0],
    ) -> Guest:
        """Begin to boot a guest, so that several can boot at a time: :meth:`wait_for_boot` comes before all else."""
        machine = Machine(
            kernel=kernel,
            memory_mib=memory_mib,
            processors=processors,
            cables=len(join),
            shares=tuple(share or {}),
            devices=tuple(devices),
        )
        return cls(image, machine, name=name, share=share, join=join)

    def _new_disk(self) -> BinaryIO:
        """Make the layer that the guest writes to, over the image or over what was saved; return it opened."""
        below, format_ = (self._snapshot.disk, "qcow2") if self._snapshot else (self.image / "root.ext4", "raw")
        disk = (self._saved_in or self.place) / "disk.qcow2"
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(below), "-F", format_, str(disk)], check=True
        )
        opened = disk.open("r+b")
        if not self._saved_in:
            disk.unlink()
        return opened

    @staticmethod
    def _read_only(file: BinaryIO) -> BinaryIO:
        """Return a file that has no name any more, opened again for reading alone."""
        return Path(f"/proc/self/fd/{file.fileno()}").open("rb")

    def _power_on(self, *, restore: bool = False) -> None:
        """Start QEMU, from power on or where the snapshot has ended."""
        control, qmp = socket.socketpair(), socket.socketpair()
        ends = [cable.plug(self.name) for cable in self._join]
        command = [
            *qemu_command(self.image, self.machine, self.identity, self.name, self.place, self._share),
            *("-chardev", f"socket,id=control,fd={control[1].fileno()}"),
            *("-device", "virtserialport,chardev=control,name=lab.control"),
            *("-chardev", f"socket,id=qmp,fd={qmp[1].fileno()}", "-mon", "chardev=qmp,mode=control"),
            # QEMU asks a set for a descriptor of just the access that it needs: it first looks without writing.
            *("-add-fd", f"fd={self._disk.fileno()},set=1", "-add-fd", f"fd={self._disk_to_read.fileno()},set=1"),
        ]
        if self._saved_in:
            disk = f"file={self._saved_in / 'disk.qcow2'},cache=unsafe"
        else:
            # What the guest has flushed outlives a power cut, the rest need not.  QEMU's lock of the file would
            # outlive QEMU, by the descriptors that are kept here.
            disk = "file=/dev/fdset/1,cache=writeback,file.locking=off"
        command += ["-drive", f"{disk},id=root,if=none,format=qcow2"]
        command += ["-device", "virtio-blk-pci,drive=root"]
        for number, end in enumerate(ends):
            address, slot = self._mac(number), FIRST_CABLE_SLOT + number
            command += ["-netdev", f"socket,id=net{number},fd={end.fileno()}"]
            command += ["-device", f"{self.machine.adapter},netdev=net{number},mac={address},addr={slot:#x}"]
        size = f"id=ram,size={self.machine.memory_mib}M"
        descriptors = [opened.fileno() for opened in (control[1], qmp[1], self._disk, self._disk_to_read, *ends)]
        state: BinaryIO | None = None
        if self._saved_in:
            memory = f"memory-backend-file,{size},share=on,mem-path={self._saved_in / 'memory'}"
        elif restore:
            assert self._snapshot is not None
            # Private: pages are read from the file when they are first needed, and copied when written to.
            memory = f"memory-backend-file,{size},share=off,mem-path={self._snapshot.memory}"
        else:
            memory = f"memory-backend-ram,{size}"
        if restore:
            assert self._snapshot is not None
            state = self._snapshot.state.open("rb")
            descriptors.append(state.fileno())
            command += ["-incoming", "defer"]
        log = (self.place / "qemu.log").open("ab")
        # setpriv asks the kernel to kill what it becomes when the thread that started it ends.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command, "-object", memory, *self.machine.devices],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(self.place)},
        )
        log.close()
        for end in (control[1], qmp[1], *ends):
            end.close()
        self._began = time.monotonic()
        self._greeted = threading.Event()
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._hellos: queue.Queue[str | None] = queue.Queue()
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._control = Lines(control[0], self._heard, self._unheard)
        self._qmp = Lines(qmp[0], self._told, self._untold)
        # QEMU's greeting may be there by now, and is answered.
        self._control.begin()
        self._qmp.begin()
        self._restoring = restore
        if state is not None:
            try:
                self._set_up_migration()
                self.qmp("migrate-incoming", uri=f"fd:{state.fileno()}")
            except BaseException:
                # Nobody else can: who asked for the guest has not got it.
                Guest.before_it_ends_in_error(self)
                self.stop()
                raise
            finally:
                state.close()

    def _mac(self, number: int) -> str:
        """Return the address of a network device: a locally administered one (IEEE 802: bit 1 of the first octet)."""
        return f"52:54:{number:02x}:{self.identity.bytes[:3].hex(':')}"

    def wait_for_boot(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Return once it runs commands; where it does not come up, end it and raise :class:`GuestError`."""
        try:
            if self._restoring:
                self._adopt(limit_s)
            else:
                self._wait_for_boot(limit_s, self._began)
        except BaseException:
            Guest.before_it_ends_in_error(self)
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self in Guest.living:
            Guest.before_it_ends_in_error(self)
        self.stop()

    @property
    def pid(self) -> int:
        """QEMU's process id on this machine."""
        return self._process.pid

    def run(
        self,
        *argv: str,
        check: bool = True,
        user: str = "",
        input: str | bytes = "",
        cwd: str = "",
        environment: Mapping[str, str] | None = None,
        limit_s: float = COMMAND_LIMIT_S,
        margin_s: float = ANSWER_MARGIN_S,
    ) -> Result:
        """Run a command, as root or as ``user``, and return how it ended."""
        return self.start(
            *argv, user=user, input=input, cwd=cwd, environment=environment, limit_s=limit_s
        ).wait(check=check, margin_s=margin_s)  # fmt: skip

    def shell(self, script: str, *, check: bool = True, user: str = "", limit_s: float = COMMAND_LIMIT_S) -> Result:
        """Run a shell's script, which ends at its first error."""
        return self.run("bash", "-euo", "pipefail", "-c", script, check=check, user=user, limit_s=limit_s)

    def start(
        self,
        *argv: str,
        user: str = "",
        input: str | bytes = "",
        cwd: str = "",
        environment: Mapping[str, str] | None = None,
        limit_s: float = COMMAND_LIMIT_S,
    ) -> Running:
        """Start a command, and go on meanwhile."""
        number = next(self._requests)
        answer: Future[dict[str, Any]] = Future()
        self._answers[number] = answer
        request = {
            "id": number,
            "argv": argv,
            "user": user,
            "input": base64.b64encode(input.encode() if isinstance(input, str) else input).decode(),
            "environment": dict(environment or {}),
            "cwd": cwd,
            "limit_s": limit_s,
        }
        self._control.send(request)
        return Running(self, argv, answer, limit_s)

    def write(self, path: str, text: str, *, mode: str = "644") -> None:
        """Write a file, with its directories."""
        self.run("sh", "-c", f'mkdir -p "$(dirname "$0")" && cat > "$0" && chmod {mode} "$0"', path, input=text)

    def read(self, path: str) -> str:
        """Return what is in a file."""
        return self.run("cat", path).stdout

    def until(self, script: str, *, limit_s: float = COMMAND_LIMIT_S, user: str = "") -> str:
        """Run a shell's script in the guest until it succeeds; return what it printed then.

        The guest itself does the waiting, and rests between two runs for as long as one takes: what it waits for needs
        the processor, too.
        """
        return self.run("bash", "-c", UNTIL.format(script=script), limit_s=limit_s, user=user).stdout

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or a directory of this machine to ``target``, which is named as it will be called."""
        self.shell(f"mkdir -p {shlex.quote(os.path.dirname(target))}")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, arcname=os.path.basename(target), filter=_as_root)
        self.run("tar", "-xC", os.path.dirname(target), input=packed.getvalue())

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or a directory of the guest to ``target``, which is named as it will be called."""
        parent, name = os.path.split(source)
        packed = self.run("tar", "-cC", parent, name).output
        assert len(packed) <= COPY_LIMIT_BYTES, f"{source} is too big to be copied"
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive, tempfile.TemporaryDirectory(dir=self.place) as place:
            archive.extractall(place, filter="data")
            shutil.move(Path(place) / name, target)

    def kill(self, unit_or_pid: str, *, signal: str = "KILL") -> None:
        """Kill a process by its id, or the main process of a unit, by ``signal``."""
        if unit_or_pid.isdecimal():
            self.run("kill", f"-{signal}", unit_or_pid)
        else:
            self.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", unit_or_pid)

    def pause(self) -> None:
        """Stop all its processors, as a hypervisor does that has something better to do."""
        self.qmp("stop")

    def resume(self) -> None:
        """Let it go on."""
        self.qmp("cont")

    def processor_s(self) -> float:
        """Return how much of this machine's processors it has had since power on, in seconds."""
        # User and system time come 14th and 15th (proc_pid_stat(5)); the name in brackets has no spaces.
        ticks = sum(map(int, Path(f"/proc/{self.pid}/stat").read_text().split()[13:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def power_off(self) -> None:
        """Take its power away: QEMU is killed.  Of its disk lasts what the guest has flushed."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._qmp.close()
        self._drives.clear()

    def power_on_again(self) -> None:
        """Begin to boot it again, from its own disk; :meth:`wait_for_boot` returns when it has."""
        assert not self.is_on, "it is on"
        self._power_on()

    @property
    def is_on(self) -> bool:
        """Say whether QEMU runs."""
        return self._process.poll() is None

    def plug(self, driver: str, device: str, *, port: str = "", **properties: object) -> None:
        """Plug in a device of QEMU's under the id ``device``; the guest finds it a moment later."""
        self.qmp("device_add", driver=driver, id=device, **({"bus": port} if port else {}), **properties)

    def plug_drive(self, device: str, *, port: str, file: Path, serial: str) -> None:
        """Plug in an NVMe drive whose contents are ``file``, raw.

        QEMU locks the file: a second guest is refused it until the first has lost the drive.
        """
        node = f"drive-{device}"
        self.qmp("blockdev-add", driver="raw", node_name=node, file={"driver": "file", "filename": str(file)})
        self._drives[device] = node
        self.plug("nvme", device, port=port, drive=node, serial=serial)

    def unplug(self, device: str, *, limit_s: float = EVENT_LIMIT_S) -> None:
        """Ask the guest to let go of a device, and return once it is gone, with the file of a drive."""
        self.qmp("device_del", id=device)
        self.wait_for_event("DEVICE_DELETED", device=device, limit_s=limit_s)
        if node := self._drives.pop(device, ""):
            self.qmp("blockdev-del", node_name=node)

    def save(self) -> None:
        """Save its memory and devices beside its disk, and end it: a guest that was begun with ``saved_in``."""
        assert self._saved_in is not None
        self.qmp("stop")
        self._set_up_migration()
        self.qmp("migrate", uri=f"exec:cat > {shlex.quote(str(self._saved_in / 'state'))}")
        self._migrated("saved")
        # Ends QEMU after it has written what it holds of the disk.
        self.stop()

    def _set_up_migration(self) -> None:
        """Leave the memory where it is, and tell by events how it goes."""
        wanted = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        self.qmp("migrate-set-capabilities", capabilities=wanted)

    def _migrated(self, what: str) -> None:
        """Wait until the state of all devices has been written or read."""
        while (status := self.wait_for_event("MIGRATION")["status"]) != "completed":
            if status == "failed":
                raise self.trouble(f"it can't be {what}")

    def reboot(self, *, limit_s: float = BOOT_LIMIT_S) -> None:
        """Reboot as an operator would, and return once it runs commands again."""
        began = time.monotonic()
        self.start("systemctl", "reboot")
        self._wait_for_boot(limit_s, began)

    def reset(self, *, limit_s: float = BOOT_LIMIT_S) -> None:
        """Reset as a power cut would, and return once it runs commands again."""
        began = time.monotonic()
        self.qmp("system_reset")
        self._wait_for_boot(limit_s, began)

    def qmp(self, command: str, **arguments: object) -> Any:
        """Execute a command of the QEMU Machine Protocol and return what it returns."""
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        if not self._greeted.wait(QMP_LIMIT_S):
            raise self.trouble(f"qmp {command}: no greeting")
        try:
            self._qmp.send({"execute": command, "arguments": names})
            reply = self._replies.get(timeout=QMP_LIMIT_S)
        except (OSError, queue.Empty):
            reply = None
        if reply is None:
            raise self.trouble(f"qmp {command}: no answer")
        if "error" in reply:
            raise self.trouble(f"qmp {command}: {reply['error']['desc']}")
        return reply["return"]

    def wait_for_event(self, event: str, *, limit_s: float = EVENT_LIMIT_S, **data: object) -> dict[str, Any]:
        """Return the data of the next QMP event of this name that has ``data``; events before it are dropped."""
        until = time.monotonic() + limit_s
        while True:
            try:
                heard = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                heard = None
            if heard is None:
                raise self.trouble(f"no event {event} {data or ''}")
            told: dict[str, Any] = heard.get("data", {})
            if heard["event"] == event and data.items() <= told.items():
                return told

    def console(self) -> str:
        """Return the end of what the guest's kernel and systemd printed."""
        tails = []
        for name in ("qemu.log", "console.log"):
            path = self.place / name
            if path.exists():
                tails.append(path.read_bytes()[-CONSOLE_TAIL_BYTES:].decode(errors="replace"))
        return "\n".join(tails).replace("\r", "")

    def trouble(self, what: str) -> GuestError:
        """Return the error that tells ``what`` with the end of the console."""
        code = self._process.poll()
        state = "" if code is None else f" (QEMU has ended with {code})"
        return GuestError(f"guest {self.name}: {what}{state}; its console ends:\n{self.console()}")

    def stop(self) -> None:
        """End the guest, as a power cut would, and remove what it had on this machine."""
        if self._process.poll() is None:
            try:
                self._qmp.send({"execute": "quit"})
                self._process.wait(QUIT_LIMIT_S)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._control.close()
        self._qmp.close()
        self._disk.close()
        self._disk_to_read.close()
        self._place.remove()
        if self in Guest.living:
            Guest.living.remove(self)

    def _adopt(self, limit_s: float) -> None:
        """Tell a guest that was restored the time, and make it one of its own where it is to be.

        Its random numbers have been reseeded by the kernel (QEMU's device vmgenid).
        """
        self._migrated("restored")
        self.resume()
        script = [f"date --set=@{time.time():.3f} > /dev/null"]
        if self._snapshot is None or self._snapshot.identity is None:
            script += [
                f"echo {self.identity.hex} > /etc/machine-id; echo {self.name} > /etc/hostname; hostname {self.name}",
                # Until its first reboot: the kernel's own is that of the boot that was saved.
                f"echo {uuid.uuid4()} > /run/lab-boot-id",
                f"grep -q ' {BOOT_ID} ' /proc/mounts || mount --bind /run/lab-boot-id {BOOT_ID}",
            ]
            script += [f"ip link set dev {device} address {self._mac(i)}" for i, device in enumerate(self.cables)]
            if self.address:
                script += [f"echo {self.address} > /etc/lab-address; systemctl start lab-network"]
            # Its journal is kept under the machine id.
            script += ["systemctl restart systemd-journald"]
        script += [f"cat {BOOT_ID}"]
        self.boot_id = self.shell("\n".join(script), limit_s=limit_s).stdout.strip()
        self.boot_s = time.monotonic() - self._began
        self._mount_shares()

    def _wait_for_boot(self, limit_s: float, began: float) -> None:
        """Wait for the control server of a boot that is not the one known."""
        until = began + limit_s
        while True:
            try:
                boot_id = self._hellos.get(timeout=PANIC_LOOK_S)
            except queue.Empty:
                if "Kernel panic" in self.console():
                    raise self.trouble("its kernel has panicked") from None
                if time.monotonic() > until:
                    used = self.processor_s()
                    trouble = self.trouble(f"it has not booted within {limit_s:g} s, {used:.0f} s of the processor")
                    raise BootTimeout(str(trouble), used) from None
                continue
            if boot_id is None:
                raise self.trouble("it has not booted")
            if boot_id != self.boot_id:
                break
        self.boot_id = boot_id
        self.boot_s = time.monotonic() - began
        if not self._saved_in:
            self._mount_shares()

    def _mount_shares(self) -> None:
        for name in self._share:
            options = f"trans=virtio,version=9p2000.L,ro,msize={SHARE_MESSAGE_BYTES}"
            self.shell(f"mkdir -p /media/{name} && mount -t 9p -o {options} {name} /media/{name}")

    # What comes in, on threads of its own.

    def _heard(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            # Commands of the boot before can't be answered any more.
            self._unanswered("the guest has rebooted")
            self._hellos.put(message["hello"])
        elif (answer := self._answers.pop(message["id"], None)) is not None:
            answer.set_result(message)

    def _unheard(self) -> None:
        self._unanswered("the guest is gone")
        self._hellos.put(None)

    def _unanswered(self, reason: str) -> None:
        for answer in [self._answers.pop(number) for number in list(self._answers)]:
            answer.set_exception(ConnectionError(reason))

    def _told(self, message: dict[str, Any]) -> None:
        if "QMP" in message:
            self._qmp.send({"execute": "qmp_capabilities", "id": "greeting"})
        elif message.get("id") == "greeting":
            self._greeted.set()
        elif "event" in message:
            self._events.put(message)
        else:
            self._replies.put(message)

    def _untold(self) -> None:
        # One that ended before it greeted is not waited for.
        self._greeted.set()
        self._replies.put(None)
        self._events.put(None)


class Lines:
    """JSON objects, a line each, both ways over a socket; nothing is read before :meth:`begin`."""

    def __init__(
        self, connection: socket.socket, heard: Callable[[dict[str, Any]], None], ended: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._ended = ended
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Read, on a thread of its own: who hears may answer at once, and so has to know whom."""
        self._reader.start()

    def send(self, message: Mapping[str, object]) -> None:
        with self._writing:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._heard(json.loads(line))
        except OSError:
            pass
        self._ended()

    def close(self) -> None:
        # Wakes the reader, which a close alone would not.
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._reader.join()
        self._connection.close()


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry of an archive as root's."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def qemu_command(
    image: Path, machine: Machine, identity: uuid.UUID, name: str, place: Path, share: Mapping[str, Path]
) -> list[str]:
    """Return QEMU's command line but for what is opened for it: disk, memory, control and network.

    A machine that is saved and one that is restored have the same devices in the same order.
    """
    arguments = " ".join(
        (
            "console=ttyS0 quiet rw root=/dev/vda",
            # systemd's own id and name for this guest (kernel-command-line(7)).
            f"systemd.machine_id={identity.hex} systemd.hostname={name}",
            # Services may be as slow as all else.  The lab's own limits end the waiting: what is told here is in the
            # key of snapshots, and the same for every patience.
            f"systemd.default_timeout_start_sec={UNIT_START_LIMIT_S}",
            # The test of the timer's interrupts fails where the processor is taken away meanwhile.
            "no_timer_check",
            # Units that fail are told on the console, where a failed boot is looked at.
            "systemd.show_status=auto systemd.unit=multi-user.target",
            f"module_blacklist={','.join(DRIVERS_LEFT_OUT)}",
        )
    )
    command = [
        *("qemu-system-x86_64", "-name", f"farbus-lab-{name}", "-nodefaults", "-display", "none"),
        *("-machine", "q35,memory-backend=ram,smbus=off,sata=off,i8042=off"),
        *("-accel", accelerator(), "-m", str(machine.memory_mib), "-smp", str(machine.processors)),
        # What the emulation has, since numpy and its like ask for more than the default of 2003; but for AVX2, by which
        # numpy's argsort comes out wrong in QEMU 7.2's emulation.
        *("-cpu", "max,avx2=off", "-uuid", str(identity)),
        # Slots as servers have them, by the driver pciehp; the default is ACPI's.
        *("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"),
        *("-kernel", str(image / f"vmlinuz-{machine.kernel}"), "-initrd", str(image / f"initrd-{machine.kernel}")),
        *("-append", arguments),
        *("-chardev", f"file,id=console,append=on,path={place / 'console.log'}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=monitor,path={place / 'monitor'},server=on,wait=off"),
        *("-mon", "chardev=monitor,mode=control"),
        # A new id after each restoration, at which the kernel reseeds its random numbers.
        *("-device", "virtio-serial-pci", "-device", "virtio-rng-pci", "-device", "vmgenid,guid=auto"),
    ]
    for number, window in enumerate(machine.ports, start=1):
        reserve = f",pref64-reserve={window}" if window else ""
        command += ["-device", f"pcie-root-port,id=port{number},slot={number},chassis={number}{reserve}"]
    for tag, directory in share.items():
        command += [
            *("-fsdev", f"local,id={tag},path={directory},security_model=none,readonly=on,multidevs=remap"),
            *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]
    return command


def accelerator() -> str:
    """Return how QEMU is to run a guest's instructions."""
    return os.environ.get("FARBUS_LAB_ACCELERATOR", "tcg,thread=multi")
