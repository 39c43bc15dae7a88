"""The lab itself: guests boot, run commands, lose and get devices, hear each other, and leave nothing."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.guest import PREFIX, BootTimeout, Guest, GuestError, Machine, Snapshot, patient
from tests.lab.nodes import Lab
from tests.lab.place import Place

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(900))]


SMOKE_LIMIT_S = patient(100)
"""Longest that make test waits for a boot; an idle machine boots in 16 to 30 s."""

SMOKE_PROCESSOR_S = patient(80)
"""A boot takes 25 s of the processor, and more where that is slow.  One that had as much and hangs has failed."""


def test_debian_boots_with_systemd_and_runs_commands(made_image: Path, tell: Callable[[str], None]) -> None:
    with Guest.power_on(made_image, name="smoke") as guest:
        try:
            guest.wait_for_boot(SMOKE_LIMIT_S)
        except BootTimeout as error:
            if error.processor_s > SMOKE_PROCESSOR_S:
                raise
            pytest.skip(f"a guest boots too slowly beside what else this machine does: {error.processor_s:.0f} s of it")
        tell(f"guest smoke booted in {guest.boot_s:.0f} s, {guest.processor_s():.0f} s of the processor")
        assert guest.run("cat", "/proc/1/comm").stdout == "systemd\n"


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    return lab.node("a")


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


def test_copies_arrive(guest: Guest, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    content = bytes(range(256)) * 1000
    (tree / "below" / "file").write_bytes(content)
    guest.copy_in(tree, "/var/tmp/copied/there")
    assert guest.read("/var/tmp/copied/there/below/file") == content.decode(errors="replace")
    guest.copy_out("/var/tmp/copied/there", tmp_path / "back")
    assert (tmp_path / "back" / "below" / "file").read_bytes() == content


def test_process_is_killed(guest: Guest) -> None:
    running = guest.start("sh", "-c", "echo $$ > /run/pid; exec sleep 100000")
    guest.kill(guest.until("grep . /run/pid").strip())
    assert running.wait(check=False).code == -9


def test_unit_is_killed(guest: Guest) -> None:
    guest.run("systemd-run", "--quiet", "--unit=victim", "sleep", "100000")
    guest.kill("victim.service")
    guest.until("systemctl is-failed --quiet victim")
    assert guest.run("systemctl", "show", "--property=Result", "--value", "victim").stdout == "signal\n"
    guest.run("systemctl", "reset-failed", "victim")


def test_paused_guest_goes_on_where_it_was(guest: Guest) -> None:
    guest.pause()
    running = guest.start("echo", "heard")
    assert guest.qmp("query-status")["status"] == "paused"
    assert not running.ended
    guest.resume()
    assert running.wait().stdout == "heard\n"


def test_console_is_heard(guest: Guest) -> None:
    guest.shell("echo nobody can miss this > /dev/console")
    assert "nobody can miss this" in guest.console()


def test_plain_device_is_plugged_and_unplugged(guest: Guest) -> None:
    guest.plug("pci-testdev", "thing", port="port2", membar=32 * 2**20)
    # Red Hat's vendor id, which QEMU's own devices have (docs/specs/pci-testdev.txt).
    path = guest.until("grep -lx 0x0005 /sys/bus/pci/devices/*/device").strip()
    guest.unplug("thing")
    guest.until(f"! test -e {path}")


def test_other_client_plugs_through_the_second_monitor(guest: Guest) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(guest.monitor))
        for command in ({"execute": "qmp_capabilities"}, {"execute": "query-status"}):
            client.sendall(json.dumps(command).encode() + b"\n")
        answers = client.makefile()
        assert "QMP" in json.loads(answers.readline())
        assert json.loads(answers.readline()) == {"return": {}}
        assert json.loads(answers.readline())["return"]["running"]


def test_disk_lasts_through_a_reboot_and_run_does_not(guest: Guest) -> None:
    guest.write("/var/tmp/kept", "kept")
    guest.write("/run/lost", "lost")
    guest.run("sync")
    guest.reboot()
    assert guest.shell("cat /var/tmp/kept; ! test -e /run/lost").stdout == "kept"


def test_flushed_files_last_through_a_power_cut_and_the_node_stays_itself(guest: Guest) -> None:
    who = "hostname; cat /etc/machine-id; ip -br address show dev enp0s16 | cut -d/ -f1"
    before, boot = guest.shell(who).stdout, guest.boot_id
    guest.write("/var/tmp/flushed", "flushed")
    guest.run("sync")
    guest.power_off()
    assert not guest.is_on
    guest.power_on_again()
    guest.wait_for_boot()
    assert guest.boot_id != boot
    assert guest.read("/var/tmp/flushed") == "flushed"
    guest.until("test -e /sys/class/net/enp0s16 && systemctl is-active --quiet multi-user.target")
    assert guest.shell(who).stdout == before


def test_guest_that_does_not_come_up_is_handed_over_before_it_ends(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def keep(guest: Guest) -> None:
        kept.append((guest.place.exists(), guest.is_on))

    monkeypatch.setattr(Guest, "before_it_ends_in_error", keep)
    with pytest.raises(BootTimeout):
        Guest.boot(image, memory_mib=512, processors=1, limit_s=0)
    assert kept == [(True, True)]


REFUSES = f"""#!{sys.executable}
import socket, sys
(qmp,) = (word for word in sys.argv if word.startswith("socket,id=qmp,fd="))
monitor = socket.socket(fileno=int(qmp.rpartition("=")[2]))
monitor.sendall(b'{{"QMP": null}}\\n')
for line in monitor.makefile():
    if "quit" in line:
        break
    greets = "qmp_capabilities" in line
    monitor.sendall(b'{{"return": {{}}, "id": "greeting"}}\\n' if greets else b'{{"error": {{"desc": "refused"}}}}\\n')
"""
ENDS_AT_ONCE = "#!/bin/sh\necho no such machine; exit 1\n"
MAKES_NO_DISK = '#!/bin/sh\nfor disk; do true; done; : > "$disk"\n'
"""What stands in for QEMU, and for qemu-img, where a guest is not to come up."""


@pytest.mark.parametrize(
    ("program", "told"), [(REFUSES, "refused"), (ENDS_AT_ONCE, "no such machine")], ids=["refuses", "ends at once"]
)
def test_guest_that_can_t_be_restored_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    for name, text in (("qemu-system-x86_64", program), ("qemu-img", MAKES_NO_DISK)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "state").touch()
    ended: list[Guest] = []
    monkeypatch.setattr(Guest, "before_it_ends_in_error", ended.append)
    with pytest.raises(GuestError, match=told):
        Guest(tmp_path, Machine(), snapshot=Snapshot(tmp_path, Machine()))
    (guest,) = ended
    assert not guest.is_on
    assert not guest.place.exists()


def test_guest_dies_with_its_test_and_what_it_leaves_with_the_next_one(image: Path) -> None:
    program = (
        "import time; from pathlib import Path; from tests.lab.guest import Guest;"
        f"guest = Guest.boot(Path({str(image)!r}), memory_mib=512, processors=1);"
        "print(guest.pid, guest.place, flush=True); time.sleep(9999)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent
    ) as test:
        assert test.stdout is not None
        pid, place = test.stdout.readline().split()
        descriptor = os.pidfd_open(int(pid))
        test.kill()
    # Readable once the process has ended (pidfd_open(2)).
    assert select.select([descriptor], [], [], patient(60))[0]
    # Its console, and the socket of its monitor.
    assert Path(place).exists()
    Place(Path(place).parent, PREFIX).remove()
    assert not Path(place).exists()
