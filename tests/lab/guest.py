"""Guests: virtual machines with real systemd on Debian's own kernel, in QEMU's software emulation.

A test boots one, runs commands in it and reaches its hardware over QMP::

    with Guest.boot(image, name="alpha", share={"wheels": directory}) as guest:
        guest.run("systemctl", "is-system-running", "--wait")
        guest.qmp("device_add", driver="nvme", id="nv0", bus="port1", drive="nd", serial="42")
        guest.wait_for_event("DEVICE_DELETED", device="nv0")

* A guest's disk is the image of :mod:`tests.lab.image`; what it writes lasts through its reboots and ends with it.
* ``share`` names directories of this machine that it finds, read-only, in ``/media/NAME``.
* ``join`` joins guests by Ethernet: all those that are given the same :class:`Cable`.  Nothing leads outside.
* Everything waits for a limited time only, and tells the end of the guest's console when it gave up.
* QEMU dies with the thread that booted it, also where that is killed (PR_SET_PDEATHSIG), and holds no path that
  has to be removed.

Hardware acceleration is not used: a /dev/kvm that opens may still hang a guest.  ``FARBUS_LAB_ACCELERATOR=kvm`` asks
for it.  ``FARBUS_LAB_PATIENCE=3`` makes all limits three times as long.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PATIENCE = float(os.environ.get("FARBUS_LAB_PATIENCE", "1"))
"""By this all limits of the lab are multiplied, for machines that are slow or crowded.  What is asserted stays."""


def patient(seconds: float) -> float:
    """Return a limit as it holds on this machine."""
    return seconds * PATIENCE


BOOT_LIMIT_S = patient(180.0)
"""From power on to the first command, on a machine that has much else to do: ten times what an idle one takes."""

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

CONSOLE_TAIL_BYTES = 4000
FIRST_CABLE_SLOT = 0x10
"""Where network devices begin on the guest's bus; QEMU gives the lower slots to others."""

PORTS = 2
"""PCIe ports that devices can be plugged into: ``port1``, ``port2``."""


@dataclass(frozen=True)
class Result:
    """How a command in a guest ended; ``code`` is negative for a signal."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"{shlex.join(self.argv)} ends with {self.code}:\n{self.stdout}{self.stderr}"


class GuestError(AssertionError):
    """A guest did not do what a test needs; the message tells why, with the end of its console."""


class Cable:
    """An Ethernet segment: guests that are joined by it hear each other, by multicast on this machine's loopback."""

    def __init__(self) -> None:
        # The kernel chooses a port that is free now; another group than QEMU's examples keeps strangers out.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"239.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.1:{probe.getsockname()[1]}"


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

    def wait(self, *, check: bool = True) -> Result:
        """Return its result; raise :class:`GuestError` where it failed and ``check``, or where it ran too long."""
        try:
            answer = self._answer.result(self._limit_s + ANSWER_MARGIN_S)
        except (FutureTimeoutError, ConnectionError) as error:
            reason = str(error) or "no answer"
            raise self._guest.trouble(f"{shlex.join(self._argv)}: {reason}") from None
        stdout, stderr = (base64.b64decode(answer[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        if answer["code"] is None:
            raise GuestError(f"{shlex.join(self._argv)} ran for more than {self._limit_s:g} s:\n{stdout}{stderr}")
        result = Result(self._argv, answer["code"], stdout, stderr)
        if check and result.code:
            raise GuestError(str(result))
        return result


class Guest:
    """One virtual machine; use it as a context manager, or call :meth:`stop`."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], place: Path, control: socket.socket, qmp: socket.socket
    ) -> None:
        self.name = name
        self._process = process
        self._place = place
        self._requests = 0
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._hellos: queue.Queue[str | None] = queue.Queue()
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._share: tuple[str, ...] = ()
        self._control = _Lines(control, self._heard, self._unheard)
        self._qmp = _Lines(qmp, self._told, self._untold)
        self.boot_id = ""
        self.boot_s = 0.0
        """How long its last boot took, from power on or the order to reboot to the first command, in seconds."""
        self.cables: tuple[str, ...] = ()
        """Names of the network interfaces in the guest, in the order of ``join``."""

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
        limit_s: float = BOOT_LIMIT_S,
    ) -> Guest:
        """Boot a guest from ``image`` (:func:`tests.lab.image.ensure_image`) and return once it runs commands.

        ``devices`` are further arguments of QEMU.  Raises :class:`GuestError` where it does not come up.
        """
        guest = cls.power_on(
            image, name=name, memory_mib=memory_mib, processors=processors, share=share, join=join, devices=devices
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
    ) -> Guest:
        """Begin to boot a guest, so that several can boot at a time: :meth:`wait_for_boot` comes before all else."""
        place = Path(tempfile.mkdtemp(prefix="farbus-lab."))
        control, qmp = socket.socketpair(), socket.socketpair()
        share = dict(share or {})
        command = _qemu(image, place, name, memory_mib, processors, share, join, control[1].fileno(), qmp[1].fileno())
        environment = {**os.environ, "TMPDIR": str(place)}
        process = subprocess.Popen(
            # setpriv asks the kernel to kill what it becomes when the thread that started it ends.
            ["setpriv", "--pdeathsig", "KILL", "--", *command, *devices],
            pass_fds=(control[1].fileno(), qmp[1].fileno()),
            stdin=subprocess.DEVNULL,
            stdout=(place / "qemu.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=environment,
        )
        control[1].close()
        qmp[1].close()
        guest = cls(name, process, place, control[0], qmp[0])
        guest._share = tuple(share)
        # virtio-net-pci in the given slots: systemd names an interface after its slot (systemd.net-naming-scheme(7)).
        guest.cables = tuple(f"enp0s{FIRST_CABLE_SLOT + number}" for number in range(len(join)))
        return guest

    def wait_for_boot(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Return once it runs commands; where it does not come up, end it and raise :class:`GuestError`."""
        try:
            self._wait_for_boot(limit_s)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        input: str = "",
        cwd: str = "",
        environment: Mapping[str, str] | None = None,
        limit_s: float = COMMAND_LIMIT_S,
    ) -> Result:
        """Run a command, as root or as ``user``, and return how it ended."""
        return self.start(
            *argv, user=user, input=input, cwd=cwd, environment=environment, limit_s=limit_s
        ).wait(check=check)  # fmt: skip

    def shell(self, script: str, *, check: bool = True, user: str = "", limit_s: float = COMMAND_LIMIT_S) -> Result:
        """Run a shell's script, which ends at its first error."""
        return self.run("bash", "-euo", "pipefail", "-c", script, check=check, user=user, limit_s=limit_s)

    def start(
        self,
        *argv: str,
        user: str = "",
        input: str = "",
        cwd: str = "",
        environment: Mapping[str, str] | None = None,
        limit_s: float = COMMAND_LIMIT_S,
    ) -> Running:
        """Start a command, and go on meanwhile."""
        self._requests += 1
        answer: Future[dict[str, Any]] = Future()
        self._answers[self._requests] = answer
        request = {
            "id": self._requests,
            "argv": argv,
            "user": user,
            "input": base64.b64encode(input.encode()).decode(),
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

        The guest itself does the waiting, so that a slow one is asked as often as it can answer.
        """
        loop = f'while ! output=$({script}); do sleep 0.2; done; printf %s "$output"'
        return self.run("bash", "-c", loop, limit_s=limit_s, user=user).stdout

    def reboot(self, *, limit_s: float = BOOT_LIMIT_S) -> None:
        """Reboot as an operator would, and return once it runs commands again."""
        self.start("systemctl", "reboot")
        self._wait_for_boot(limit_s)

    def reset(self, *, limit_s: float = BOOT_LIMIT_S) -> None:
        """Reset as a power cut would, and return once it runs commands again."""
        self.qmp("system_reset")
        self._wait_for_boot(limit_s)

    def qmp(self, command: str, **arguments: object) -> Any:
        """Execute a command of the QEMU Machine Protocol and return what it returns."""
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._qmp.send({"execute": command, "arguments": names})
        try:
            reply = self._replies.get(timeout=QMP_LIMIT_S)
        except queue.Empty:
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
            path = self._place / name
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
        shutil.rmtree(self._place, ignore_errors=True)

    def _wait_for_boot(self, limit_s: float) -> None:
        """Wait for the control server of a boot that is not the one known."""
        began = time.monotonic()
        until = began + limit_s
        while True:
            try:
                boot_id = self._hellos.get(timeout=PANIC_LOOK_S)
            except queue.Empty:
                if "Kernel panic" in self.console():
                    raise self.trouble("its kernel has panicked") from None
                if time.monotonic() > until:
                    raise self.trouble(f"it has not booted within {limit_s:g} s") from None
                continue
            if boot_id is None:
                raise self.trouble("it has not booted")
            if boot_id != self.boot_id:
                break
        self.boot_id = boot_id
        self.boot_s = time.monotonic() - began
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
            return
        elif "event" in message:
            self._events.put(message)
        else:
            self._replies.put(message)

    def _untold(self) -> None:
        self._replies.put(None)
        self._events.put(None)


class _Lines:
    """JSON objects, a line each, both ways over a socket."""

    def __init__(
        self, connection: socket.socket, heard: Callable[[dict[str, Any]], None], ended: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._ended = ended
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
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


def _qemu(
    image: Path,
    place: Path,
    name: str,
    memory_mib: int,
    processors: int,
    share: Mapping[str, Path],
    join: Sequence[Cable],
    control: int,
    qmp: int,
) -> list[str]:
    """Return QEMU's command line."""
    accelerator = os.environ.get("FARBUS_LAB_ACCELERATOR", "tcg,thread=multi")
    identity = uuid.uuid4()
    arguments = " ".join(
        (
            "console=ttyS0 quiet rw root=/dev/vda",
            # systemd's own id and name for this guest (kernel-command-line(7)).
            f"systemd.machine_id={identity.hex} systemd.hostname={name}",
            # Services may be as slow as all else.
            f"systemd.default_timeout_start_sec={patient(90):g}",
            # The test of the timer's interrupts fails where the processor is taken away meanwhile.
            "no_timer_check",
            # Units that fail are told on the console, where a failed boot is looked at.
            "systemd.show_status=auto systemd.unit=multi-user.target",
        )
    )
    command = [
        *("qemu-system-x86_64", "-name", f"farbus-lab-{name}", "-nodefaults", "-display", "none"),
        *("-machine", "q35", "-accel", accelerator, "-m", str(memory_mib), "-smp", str(processors)),
        # Everything that the emulation has: numpy and its like ask for more than the default of 2003.
        *("-cpu", "max", "-uuid", str(identity)),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"), "-append", arguments),
        # snapshot=on: writes go to an unlinked file in TMPDIR.
        *("-drive", f"file={image / 'root.ext4'},if=virtio,format=raw,snapshot=on,cache=unsafe"),
        *("-chardev", f"file,id=console,path={place / 'console.log'}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=control,fd={control}", "-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=control,name=lab.control"),
        *("-chardev", f"socket,id=qmp,fd={qmp}", "-mon", "chardev=qmp,mode=control"),
        *("-device", "virtio-rng-pci"),
    ]
    for number in range(1, PORTS + 1):
        command += ["-device", f"pcie-root-port,id=port{number},slot={number},chassis={number}"]
    for tag, directory in share.items():
        command += [
            *("-fsdev", f"local,id={tag},path={directory},security_model=none,readonly=on,multidevs=remap"),
            *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]
    for number, cable in enumerate(join):
        address, slot = identity.bytes[:3].hex(":"), FIRST_CABLE_SLOT + number
        command += [
            *("-netdev", f"socket,id=net{number},mcast={cable.address},localaddr=127.0.0.1"),
            # Locally administered (IEEE 802: the second bit of the first octet).
            *("-device", f"virtio-net-pci,netdev=net{number},mac=52:54:{number:02x}:{address},addr={slot:#x}"),
        ]
    return command
