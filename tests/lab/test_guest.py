"""The lab itself: guests boot, run commands, lose and get devices, hear each other, and leave nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import Cable, Guest, GuestError, patient

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(900))]


def test_debian_boots_with_systemd_and_runs_commands(made_image: Path) -> None:
    with Guest.boot(made_image, name="smoke") as guest:
        assert guest.run("cat", "/proc/1/comm").stdout == "systemd\n"


@pytest.fixture(scope="module")
def guest(image: Path) -> Iterator[Guest]:
    drive = ["-blockdev", "null-co,node-name=drive,size=67108864,read-zeroes=on"]
    with Guest.boot(image, name="alpha", devices=drive) as booted:
        yield booted


def test_system_has_nothing_that_failed(guest: Guest) -> None:
    assert guest.run("systemctl", "is-system-running", "--wait", check=False).stdout == "running\n"


def test_command_tells_code_output_and_user(guest: Guest) -> None:
    result = guest.run("sh", "-c", "id -un; cat >&2; exit 7", user="alice", input="heard", check=False)
    assert (result.code, result.stdout, result.stderr) == (7, "alice\n", "heard")


def test_failed_command_raises_with_what_it_said(guest: Guest) -> None:
    with pytest.raises(GuestError, match="no such thing"):
        guest.shell("echo no such thing >&2; false")


def test_command_is_killed_at_its_limit(guest: Guest) -> None:
    with pytest.raises(GuestError, match="ran for more than 1 s"):
        guest.run("sleep", "1000", limit_s=1)


def test_commands_run_beside_each_other(guest: Guest) -> None:
    waiting = guest.start("sh", "-c", "until [ -e /run/go ]; do sleep 0.1; done; echo went")
    guest.run("touch", "/run/go")
    assert waiting.wait().stdout == "went\n"


def test_drive_is_plugged_and_unplugged(guest: Guest) -> None:
    guest.qmp("device_add", driver="nvme", id="nv0", bus="port1", drive="drive", serial="4711")
    assert guest.until("cat /sys/class/nvme/nvme0/serial").strip() == "4711"
    guest.qmp("device_del", id="nv0")
    guest.wait_for_event("DEVICE_DELETED", device="nv0")
    guest.until("! test -e /sys/class/nvme/nvme0")


def test_disk_lasts_through_a_reboot_and_run_does_not(guest: Guest) -> None:
    guest.write("/var/tmp/kept", "kept")
    guest.write("/run/lost", "lost")
    guest.run("sync")
    guest.reboot()
    assert guest.shell("cat /var/tmp/kept; ! test -e /run/lost").stdout == "kept"


def test_guests_on_one_cable_hear_each_other(guest: Guest, image: Path) -> None:
    del guest
    cable = Cable()
    with (
        Guest.power_on(image, name="beta", join=[cable], memory_mib=512, processors=1) as one,
        Guest.power_on(image, name="gamma", join=[cable], memory_mib=512, processors=1) as other,
    ):
        for number, each in enumerate((one, other), start=1):
            each.wait_for_boot()
            each.shell(f"ip addr add 10.9.0.{number}/24 dev {each.cables[0]}; ip link set {each.cables[0]} up")
        server = one.start("python3", "-c", _SERVE)
        said = other.until("python3 -c 'import socket; print(socket.create_connection((\"10.9.0.1\", 99)).recv(9))'")
        assert said == "b'hello'"
        server.wait()


_SERVE = "import socket; s = socket.create_server(('10.9.0.1', 99)); c, _ = s.accept(); c.sendall(b'hello'); c.close()"


def test_guest_dies_with_its_test(image: Path) -> None:
    program = (
        "import time; from pathlib import Path; from tests.lab.guest import Guest;"
        f"guest = Guest.boot(Path({str(image)!r}), memory_mib=512, processors=1);"
        "print(guest.pid, flush=True); time.sleep(9999)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent
    ) as test:
        assert test.stdout is not None
        descriptor = os.pidfd_open(int(test.stdout.readline()))
        test.kill()
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], patient(60))[0]
